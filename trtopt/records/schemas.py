"""Which versions of which files this trtopt reads: the one place that knows.

A file says `schema: trtopt.KIND/N`. N grows with every release that changes its records. Files of an earlier
N are read as long as fields were only added since, each with the default that an earlier file means by
leaving it out: that has been so for every N up to now, and tests keep a stored file of each.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from trtopt.records.base import AnyRecord, from_json

_SCHEMA = re.compile(r"(?P<kind>trtopt\.[a-z]+)/(?P<version>[1-9][0-9]{0,5})")
_START = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(?P<schema>trtopt\.[a-z]+/[0-9]+)"')


class _Header(msgspec.Struct):
    schema: Any = None


def read_versioned(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a file of `kind`, a record whose `schema` defaults to what this trtopt writes.

    The record that comes back says the present schema, whichever the file said.

    Raises:
        ValueError: of another kind, written by a newer trtopt, cut short, or edited beyond its schema.
    """
    own = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    _check(_header_of(text).schema, own)
    return msgspec.structs.replace(from_json(text, kind), schema=own)


def kind_of(text: bytes) -> str | None:
    """`trtopt.KIND`, if that is what a file says it is; of one that was cut short too. None of any other."""
    try:
        found = _header_of(text).schema
    except ValueError:  # trtopt writes the schema first
        start = _START.match(text)
        found = start["schema"].decode() if start else None
    match = _SCHEMA.fullmatch(found) if isinstance(found, str) else None
    return match["kind"] if match else None


def _header_of(text: bytes) -> _Header:
    try:
        return msgspec.json.decode(text, type=_Header)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _check(found: object, own: str) -> None:
    if not isinstance(found, str):
        raise ValueError("it says no schema")
    there, here = _SCHEMA.fullmatch(found), _SCHEMA.fullmatch(own)
    assert here is not None
    if there is None or there["kind"] != here["kind"]:
        raise ValueError(f"of schema {found[:60]!r}, not {own}")
    if int(there["version"]) > int(here["version"]):
        raise ValueError(f"of schema {found}, written by a newer trtopt; this one reads up to {own}")
