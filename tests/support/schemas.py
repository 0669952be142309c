"""The published JSON Schemas of result files: made of the records, and what files are held against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from inspect import cleandoc
from typing import Any

import jsonschema
import msgspec

import trtopt.api  # noqa: F401  (which imports every record)
from tests.support.paths import ROOT
from trtopt.records import Record
from trtopt.records.base import kind_of, read_versioned

FOLDER = ROOT / "docs" / "reference" / "schemas"
Schema = dict[str, Any]


def records(kind: type[Record] = Record) -> Iterator[type[Record]]:
    """Every record that is a file, by its `schema`."""
    for one in kind.__subclasses__():
        is_file = any(field.name == "schema" and not field.required for field in msgspec.structs.fields(one))
        if is_file and one.__module__.startswith("trtopt."):
            yield one
        yield from records(one)


def version_of(kind: type[Record]) -> str:
    """`trtopt.KIND/N`."""
    (version,) = (field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return str(version)


def schema_of(kind: type[Record]) -> Schema:
    """A file of this record holds its schema's name and version, which reading insists on."""
    made: Schema = json.loads(json.dumps(msgspec.json.schema(kind)))
    for record in made["$defs"].values():
        record["description"] = cleandoc(record["description"])
    fields = made["$defs"][kind.__name__]
    fields["properties"]["schema"] = {"const": version_of(kind)}
    fields["required"] = ["schema", *fields["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": version_of(kind), **made}


def fields_of(schema: Schema) -> Any:
    """Fields, types, limits and defaults, without names and texts of records."""
    return _fields({"$ref": schema["$ref"]}, schema["$defs"])


def _fields(value: Any, records: Schema) -> Any:
    if isinstance(value, dict) and "$ref" in value:
        return _fields(records[value["$ref"].rpartition("/")[2]], records)
    if isinstance(value, dict):
        words = {name for name in ("title", "description") if isinstance(value.get(name), str)}
        return {name: _fields(item, records) for name, item in value.items() if name not in words}
    if isinstance(value, list):  # of names or types, whose order says nothing
        return sorted((_fields(item, records) for item in value), key=str)
    return value


def published() -> dict[str, Schema]:
    """The schemas in the documentation, by the name of the record."""
    return {place.stem: json.loads(place.read_text("utf-8")) for place in FOLDER.glob("*.json")}


def changed_under_their_version() -> list[str]:
    """Records whose fields are others than published, and whose version is the same."""
    stored = published()
    return [
        f"{kind.__name__} {version_of(kind)}"
        for kind in records()
        if (old := stored.get(kind.__name__)) is not None
        and old["title"] == version_of(kind)
        and fields_of(old) != fields_of(schema_of(kind))
    ]


def write() -> None:
    """Publish the present schemas; none whose fields changed and whose version did not."""
    assert not (changed := changed_under_their_version()), f"raise the version of {', '.join(changed)}"
    FOLDER.mkdir(exist_ok=True)
    present = {kind.__name__: schema_of(kind) for kind in records()}
    for name, schema in present.items():
        (FOLDER / f"{name}.json").write_text(_text(schema), "utf-8")
    for name in published().keys() - present.keys():
        (FOLDER / f"{name}.json").unlink()


def _text(schema: Schema) -> str:
    """JSON with a line for each record, so that a change of one is a change of one line."""
    line = partial(json.dumps, ensure_ascii=False)
    head = [f" {line(name)}: {line(value)}" for name, value in schema.items() if name != "$defs"]
    records = ",\n".join(f"  {line(name)}: {line(value)}" for name, value in schema["$defs"].items())
    return "{\n" + ",\n".join([*head, ' "$defs": {\n' + records + "\n }"]) + "\n}\n"


def record_of(text: bytes) -> type[Record] | None:
    """The record that trtopt reads a file as; none where it refuses it."""
    for kind in _records_of(kind_of(text)):
        with suppress(ValueError):
            read_versioned(text, kind)
            return kind
    return None


@cache
def _records_of(kind: str | None) -> list[type[Record]]:
    """Two records share `trtopt.quantization`."""
    return [one for one in records() if version_of(one).partition("/")[0] == kind]


def problems_of(text: bytes) -> list[str]:
    """What a result file has against the published schema of its kind; nothing for any other file."""
    found = json.loads(text) if (kind := kind_of(text)) is not None else None
    held = [[one.message for one in validator.iter_errors(found)] for validator in _validators(kind)]
    return min(held, key=len, default=[])


def _items(validator: Any, items: Any, found: Any, schema: Schema) -> Iterator[Any]:
    """Thousands of numbers are looked at one by one only where one is something else."""
    if items == {"type": "number"} and all(type(one) in (int, float) for one in found):
        return
    yield from jsonschema.Draft202012Validator.VALIDATORS["items"](validator, items, found, schema)


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"items": _items})


@cache
def _validators(kind: str | None) -> list[Any]:
    return [_Validator(one) for one in published().values() if one["title"].partition("/")[0] == kind]
