"""The file schemas and versions that this trtopt reads.

A file says `schema: trtopt.KIND/N`. N grows with every release that changes its records. Files of an earlier
N are read: a field that was added since has the default that an earlier file means by omitting it, one that
was renamed since is found under its old name, and one that left is dropped (`_RENAMED`). Tests keep a stored
file of each.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect

from trtopt.records.base import AnyRecord, from_json


class NewerSchemaError(ValueError):
    """The file is of a kind that this trtopt knows, and of a newer version of it."""


_SCHEMA = re.compile(r"(?P<kind>trtopt\.[a-z]+)/(?P<version>[1-9][0-9]{0,5})")
_START = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(?P<schema>trtopt\.[a-z]+/[0-9]+)"')


_RENAMED: dict[str, dict[str, str | None]] = {
    "BuildPlan": {"several": "multi_profile"},
    "Samples": {"lane": "inference_stream"},
    "PrecisionVerdict": {"asked": "requested"},
    "ProfiledLayer": {"asked_dtype": "requested_dtype"},
    "Fallback": {"asked": "requested"},
    "PrecisionReceipt": {"weights_asked": "weights_requested"},
    "Beyond": {"rehearsals": "trials"},
    "ServingCost": {"rehearsed": "from_trials"},
    "BatchPlan": {"packing": None},
}
"""Fields by the name of their record, old name → present name; None where the field has left."""


class _Header(msgspec.Struct):
    schema: Any = None


def read_versioned(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a file of `kind`, a record whose `schema` defaults to what this trtopt writes.

    The returned record has the present schema, whichever the file has.

    Raises:
        ValueError: of another kind, written by a newer trtopt, cut short, or edited beyond its schema.
    """
    present = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    schema = _header_of(text).schema
    _check(schema, present)
    if schema != present:
        text = msgspec.json.encode(_upgraded(msgspec.json.decode(text), inspect.type_info(kind)))
    return msgspec.structs.replace(from_json(text, kind), schema=present)


def _upgraded(value: Any, kind: inspect.Type) -> Any:
    """A JSON value of an earlier version with the present field names."""
    if isinstance(kind, inspect.UnionType):
        structs = [item for item in kind.types if isinstance(item, inspect.StructType)]
        return _upgraded(value, structs[0]) if len(structs) == 1 else value
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        present = _RENAMED.get(kind.cls.__name__, {})
        named = {now: item for name, item in value.items() if (now := present.get(name, name)) is not None}
        kinds = {field.encode_name: field.type for field in kind.fields}
        return {name: _upgraded(item, kinds[name]) if name in kinds else item for name, item in named.items()}
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        is_plain = not isinstance(kind.item_type, inspect.StructType | inspect.UnionType)
        return value if is_plain else [_upgraded(item, kind.item_type) for item in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {name: _upgraded(item, kind.value_type) for name, item in value.items()}
    return value


def kind_of(text: bytes) -> str | None:
    """`trtopt.KIND` if a file has such a schema, even if it is cut short; None for any other file."""
    try:
        schema = _header_of(text).schema
    except ValueError:  # trtopt writes the schema first
        start = _START.match(text)
        schema = start["schema"].decode() if start else None
    match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    return match["kind"] if match else None


def _header_of(text: bytes) -> _Header:
    try:
        return msgspec.json.decode(text, type=_Header)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _check(schema: object, present: str) -> None:
    if not isinstance(schema, str):
        raise ValueError("it has no schema")
    file, newest = _SCHEMA.fullmatch(schema), _SCHEMA.fullmatch(present)
    assert newest is not None
    if file is None or file["kind"] != newest["kind"]:
        raise ValueError(f"of schema {schema[:60]!r}, not {present}")
    if int(file["version"]) > int(newest["version"]):
        raise NewerSchemaError(
            f"of schema {schema}, written by a newer trtopt; this one reads up to {present}"
        )
