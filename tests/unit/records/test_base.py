"""What all records have in common, and which files are read."""

import json

import pytest

from tests.support import examples
from tests.support.paths import DATA
from trtopt.records import (
    BatchPlan,
    BenchReport,
    Manifest,
    Record,
    kind_of,
    read_versioned,
    to_json,
)

PRESENT = {BenchReport: "trtopt.bench/6", Manifest: "trtopt.build/8"}


def document(kind: type[Record]) -> dict[str, object]:
    record = examples.report() if kind is BenchReport else examples.manifest()
    found = json.loads(to_json(record))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("name", "kind"), [("bench", BenchReport), ("manifest", Manifest), ("plan", BatchPlan)]
)
def test_a_stored_file_is_read(name: str, kind: type[Record]) -> None:
    text = (DATA / "results" / f"{name}.json").read_bytes()
    assert json.loads(to_json(read_versioned(text, kind))) == json.loads(text)


@pytest.mark.parametrize("kind", PRESENT)
def test_a_file_of_an_earlier_schema_is_refused_by_both(kind: type[Record]) -> None:
    name = PRESENT[kind].partition("/")[0]
    with pytest.raises(ValueError, match=rf"{name}/1, written by an earlier trtopt; .* {PRESENT[kind]}"):
        read_versioned(json.dumps(document(kind) | {"schema": f"{name}/1"}).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
def test_a_file_of_a_later_schema_is_refused_by_it_whatever_else_it_holds(kind: type[Record]) -> None:
    name, _, version = PRESENT[kind].partition("/")
    later = document(kind) | {"schema": f"{name}/{int(version) + 1}", "a field of later": 1}
    with pytest.raises(ValueError, match=rf"{name}/{int(version) + 1}, written by a newer trtopt"):
        read_versioned(json.dumps(later).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
@pytest.mark.parametrize("schema", ["trtopt.other/1", "trtopt.bench", "bench/1", "", "trtopt.build/0", "/1"])
def test_a_file_of_another_kind_is_refused_with_what_it_says(kind: type[Record], schema: str) -> None:
    with pytest.raises(ValueError, match=rf"of schema '{schema}', not {PRESENT[kind]}"):
        read_versioned(json.dumps(document(kind) | {"schema": schema}).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
@pytest.mark.parametrize("schema", [None, 1, ["trtopt.bench/1"]])
def test_a_file_that_says_no_schema_is_refused(kind: type[Record], schema: object) -> None:
    with pytest.raises(ValueError, match="it has no schema"):
        read_versioned(json.dumps(document(kind) | {"schema": schema}).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
def test_an_unknown_field_in_a_file_of_this_schema_is_named(kind: type[Record]) -> None:
    with pytest.raises(ValueError, match="unknown field `edited`"):
        read_versioned(json.dumps(document(kind) | {"edited": 1}).encode(), kind)


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b'{"schema": "trtopt.bench/1"', b"\xff"])
def test_what_is_no_such_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_versioned(text, BenchReport)
    with pytest.raises(ValueError, match=r"."):
        read_versioned(b'{"schema":' * 100_000, BenchReport)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"schema": "trtopt.profile/1", "created": ""}', "trtopt.profile"),
        (b'{"created": "", "schema": "trtopt.bench/99"}', "trtopt.bench"),
        (b'{\n  "schema":"trtopt.bench/2","created":"20', "trtopt.bench"),
        (b'{"schema": "other/1"}', None),
        (b'{"schema": "other/1', None),
        (b'{"schema": 1}', None),
        (b'["trtopt.bench/1"]', None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_a_file_says_what_kind_it_is_even_when_it_was_cut_short(text: bytes, kind: str | None) -> None:
    assert kind_of(text) == kind


class Pass(Record, frozen=True, kw_only=True):
    name: str
    shape: tuple[int, ...]
    latency_ms: list[float]


def test_records_show_all_their_fields_and_only_the_length_of_long_sequences() -> None:
    shown = repr(Pass(name="latency", shape=(8, 3, 224, 224), latency_ms=[0.25] * 4000))
    assert shown == "Pass(name='latency', shape=(8, 3, 224, 224), latency_ms=<4000 items>)"
