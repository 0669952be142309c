"""A history's line and its chart."""

from __future__ import annotations

import msgspec

from tests.support.histories import latency, runs_of
from trtopt.records import BenchReport, HistoryReport
from trtopt.report.history import history_view
from trtopt.report.view import Chart
from trtopt.workflows.history import series_of


def test_the_chart_counts_whole_runs_and_says_that_its_axis_does_not_start_at_zero() -> None:
    results = ((f"{number}.json", result) for number, result in enumerate(runs_of([1.0, 1.0])))
    series, _ = series_of(results)
    view = history_view(HistoryReport(folder="kept", series=series))
    assert view.title == "kept: 1 series"
    (chart,) = (one for one in view.on("page") if isinstance(one, Chart))
    x, y = (chart.spec["layer"][0]["encoding"][name] for name in "xy")
    assert x["axis"]["values"] == [1, 2]
    assert y["scale"] == {"zero": False}
    assert "not start at zero" in y["title"]


def gate_of(*results: BenchReport) -> list[tuple[str, str]]:
    """What the gate says of each series, and why."""
    series, notes = series_of((f"{number:03}.json", result) for number, result in enumerate(results))
    rows = history_view(HistoryReport(folder="kept", series=series, notes=notes)).gate
    assert len({row.name for row in rows}) == len(rows)
    return [(row.outcome, row.reason) for row in rows]


def test_the_gate_says_what_slowed_a_series_down() -> None:
    ((outcome, reason),) = gate_of(*runs_of([1.0] * 12 + [1.05] * 5))
    assert outcome == "slower"
    assert "code: 0000000b → 0000000c" in reason
    ((outcome, reason),) = gate_of(*runs_of([1.0] * 22 + [1.3] * 10 + [1.1] * 10))
    assert outcome == "slower"
    assert "code: 00000015 → 00000016" in reason  # not where it became faster again


def test_a_history_of_which_nothing_can_be_read_does_not_pass() -> None:
    hot = [latency(result, untrustworthy=("too hot",)) for result in runs_of([1.0] * 10)]
    ((outcome, reason),) = gate_of(*hot)
    assert outcome == "untrustworthy"
    assert "009.json" in reason
    even = [*runs_of([1.0] * 10)]
    assert gate_of(*even)[0][0] == "ok"
    assert gate_of(*even[:-1], hot[-1])[0][0] == "untrustworthy"
    assert gate_of(*even[:5])[0][0] == "undecided"


def test_series_that_differ_in_one_term_have_names_of_their_own() -> None:
    one, other = runs_of([1.0, 1.0])
    shapes = {"x": (8, 5)}
    assert len(gate_of(one, latency(other, shapes=shapes))) == 2
    contract = msgspec.structs.replace(one.points[0].latency.contract, name="own+no-graph", graph=False)
    assert len(gate_of(one, latency(other, contract=contract))) == 2
