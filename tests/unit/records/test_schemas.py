"""A record's fields and its schema's version change together: files of another version are refused by it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import trtopt.api  # noqa: F401  (which imports every record)
from tests.support.paths import DATA
from trtopt.records import Record

STORED: dict[str, str] = json.loads((DATA / "results" / "schemas.json").read_text("utf-8"))


def with_schema(kind: type[Record] = Record) -> Iterator[type[Record]]:
    for one in kind.__subclasses__():
        if "schema" in one.__struct_fields__ and one.__module__.startswith("trtopt."):
            yield one
        yield from with_schema(one)


def fields_of(value: Any, records: dict[str, Any]) -> Any:
    """A JSON Schema without names and texts of records: fields, types, limits and defaults."""
    if isinstance(value, dict) and "$ref" in value:
        return fields_of(records[value["$ref"].rpartition("/")[2]], records)
    if isinstance(value, dict):
        words = {name for name in ("title", "description") if isinstance(value.get(name), str)}
        return {name: fields_of(item, records) for name, item in value.items() if name not in words}
    if isinstance(value, list):  # of names or types, whose order says nothing
        return sorted((fields_of(item, records) for item in value), key=str)
    return value


def fingerprint(kind: type[Record]) -> dict[str, str]:
    whole = msgspec.json.schema(kind)
    fields = json.dumps(fields_of({"$ref": whole["$ref"]}, whole["$defs"]), sort_keys=True)
    (schema,) = (field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return {f"{kind.__name__} {schema}": hashlib.sha256(fields.encode()).hexdigest()[:16]}


@pytest.mark.parametrize("kind", sorted(with_schema(), key=lambda kind: kind.__name__))
def test_fields_do_not_change_under_a_version(kind: type[Record]) -> None:
    ((name, found),) = fingerprint(kind).items()
    assert name in STORED, f"a new version: replace its line in schemas.json by {name!r}: {found!r}"
    assert STORED[name] == found, f"the fields of {name} changed: raise its version"


def test_no_other_schema_is_stored() -> None:
    assert STORED.keys() == {name for kind in with_schema() for name in fingerprint(kind)}
