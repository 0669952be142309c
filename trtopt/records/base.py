"""What every record has in common, and its JSON form."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

Shape = tuple[int, ...]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: strict when read. Subclasses repeat `kw_only`, and `frozen` for type checkers."""

    def __repr__(self) -> str:
        """All fields, long sequences by their length: passes hold thousands of samples."""
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"


_MOST_SHOWN = 12


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)) and len(value) > _MOST_SHOWN:
        return f"<{len(value)} items>"
    return repr(value)


_LONG = re.compile(rb"(?<![.\d])\d{19}")
"""Digits that may exceed 64 bits: of an integer, of a hash, of a float in full."""
_MAX_DIGITS = 20

AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record, *, indent: int | None = 2) -> bytes:
    """`record` as UTF-8 JSON with a closing newline; `indent=None` gives one line."""
    try:
        text = msgspec.json.encode(record)
    except UnicodeEncodeError:  # names of files and arguments may not be valid text
        text = msgspec.json.encode(_as_text(msgspec.to_builtins(record)))
    return (msgspec.json.format(text, indent=indent) if indent else text) + b"\n"


def _as_text(value: Any) -> Any:
    """Builtins with every string made encodable; bytes that are not text are written as escapes."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return value


def from_json(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a record.

    Raises:
        ValueError: not JSON, nested beyond reason, not a `kind` (the message names the field), or with an
            integer of more than 64 bits, which no later arithmetic would expect.
    """
    try:
        found = msgspec.json.decode(text, type=kind)
        if _LONG.search(text):
            json.loads(text, parse_int=_bounded)
        return found
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:  # ValidationError is one too
        raise ValueError(str(error)) from None


def _bounded(digits: str) -> int:
    if len(digits) > _MAX_DIGITS or not -(1 << 63) <= int(digits) < 1 << 64:
        raise ValueError(f"{digits[:_MAX_DIGITS]}… is an integer of more than 64 bits")
    return int(digits)
