"""What a gate says, in the formats of CI services: only what it lets pass is a success in any of them."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from trtopt.report.ci import FORMATS
from trtopt.report.view import GateRow

OK = GateRow("trtopt a", "ok", "no change", (1.5, 1.25, 1.75))
SLOWER = GateRow("trtopt b", "slower", "+5 % <since> \x1b & \udc80", (2.5,))
UNDECIDED = GateRow("trtopt c", "undecided", "too noisy", (1.5,))
UNTRUSTWORTHY = GateRow("trtopt d", "untrustworthy", "too hot", (0.5,))
FAILED = GateRow("trtopt compare", "failed", "no such file")


def written(name: str, *rows: GateRow) -> bytes:
    return FORMATS[name][0](rows)


def test_junit_counts_a_failure_where_it_is_slower_and_an_error_where_nothing_is_shown() -> None:
    (suite,) = suites = ElementTree.fromstring(
        written("junit", OK, SLOWER, UNDECIDED, UNTRUSTWORTHY, FAILED).decode()
    )
    for one in (suites, suite):
        assert (one.get("tests"), one.get("failures"), one.get("errors")) == ("5", "1", "3")
    children = [[(child.tag, child.get("type")) for child in case] for case in suite]
    assert children == [
        [("system-out", None)],
        [("failure", "slower")],
        [("error", "undecided")],
        [("error", "untrustworthy")],
        [("error", "failed")],
    ]
    assert all(case.get("name") and case.get("classname") for case in suite)
    assert suite[1][0].get("message") == "+5 % <since> \\x1b & \\udc80"


@pytest.mark.parametrize(
    ("rows", "message", "colour"),
    [
        ([OK, OK], "not slower", "brightgreen"),
        ([OK, UNDECIDED, SLOWER, SLOWER], "2 slower, 1 undecided", "red"),
        ([UNDECIDED], "1 undecided", "yellow"),
        ([OK, UNTRUSTWORTHY], "1 untrustworthy", "orange"),
        ([FAILED], "1 failed", "red"),
        ([], "1 undecided", "yellow"),
    ],
)
def test_a_badge_is_green_only_where_all_is_shown(rows: list[GateRow], message: str, colour: str) -> None:
    badge = json.loads(written("badge", *rows))
    assert badge == {
        "schemaVersion": 1,
        "label": "trtopt",
        "message": message,
        "color": colour,
        "isError": colour != "brightgreen",
    }


def test_dashboards_get_the_figures_that_can_be_believed_in_their_units() -> None:
    rows = (OK, SLOWER, UNTRUSTWORTHY, FAILED)
    entries = json.loads(written("github-action-benchmark", *rows))
    assert [(one["name"], one["unit"], one["value"]) for one in entries] == [
        ("trtopt a", "ms", 1.5),
        ("trtopt b", "ms", 2.5),
    ]
    assert (entries[0]["range"], entries[0]["extra"]) == ("1.25 to 1.75", "ok: no change")
    assert all(isinstance(one[key], str) for one in entries for key in ("range", "extra"))
    assert json.loads(written("bencher", *rows)) == {
        "trtopt a": {"latency": {"value": 1.5e6, "lower_value": 1.25e6, "upper_value": 1.75e6}},
        "trtopt b": {"latency": {"value": 2.5e6}},
    }


def test_a_name_is_no_longer_than_bencher_takes() -> None:
    (name,) = json.loads(written("bencher", GateRow(f"trtopt {'×' * 1024}", "ok", "", (1.0,))))
    assert len(name.encode()) == 1023  # not in the middle of a character


@pytest.mark.parametrize("rows", [(OK,), (FAILED,)])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_known_again_as_trtopts(name: str, rows: tuple[GateRow, ...]) -> None:
    assert written(name, *rows).startswith(FORMATS[name][1])
