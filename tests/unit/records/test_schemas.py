"""Published schemas are those of the records, and files keep to them; other fields are a new version."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support import examples
from tests.support.paths import DATA
from tests.support.schemas import (
    changed_under_their_version,
    problems_of,
    published,
    records,
    schema_of,
    version_of,
)
from tests.unit.records.test_records import records_of
from trtopt.records import Record, to_json


def test_fields_do_not_change_under_a_version() -> None:
    assert changed_under_their_version() == [], "raise its version"


def test_the_published_schemas_are_those_of_the_records() -> None:
    present = {kind.__name__: schema_of(kind) for kind in records()}
    assert published() == present, "run `python -m tests.support.reference_pages`"


@pytest.mark.parametrize("place", sorted((DATA / "results").glob("*.json")), ids=lambda place: place.stem)
def test_stored_results_keep_to_their_schemas(place: Path) -> None:
    assert problems_of(place.read_bytes()) == []


@pytest.mark.parametrize("kind", sorted(records(), key=lambda kind: kind.__name__))
@given(st.data())
@settings(max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.too_slow])
def test_any_record_keeps_to_its_schema(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(records_of(kind))
    found = msgspec.structs.replace(record, schema=version_of(kind))
    assert problems_of(to_json(found)) == []


def test_a_schema_finds_what_is_wrong_in_a_file() -> None:
    report = examples.report()
    assert problems_of(to_json(report)) == []
    whole = msgspec.to_builtins(report)
    wrong = {
        "another version": {**whole, "schema": "trtopt.bench/1"},
        "no date": {name: one for name, one in whole.items() if name != "created"},
        "an unknown field": {**whole, "colour": "red"},
    }
    whole["points"][0]["latency"]["samples"]["start_ms"][0] = "soon"
    wrong["a text among numbers"] = whole
    assert [what for what, file in wrong.items() if not problems_of(msgspec.json.encode(file))] == []
