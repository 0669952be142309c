"""What every record has in common: its JSON form, its schema's versions, and what results show."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

import msgspec

from trtopt.errors import BackendMissingError

if TYPE_CHECKING:
    from pandas import DataFrame


Shape = tuple[int, ...]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: strict when read. Subclasses repeat `kw_only`, and `frozen` for type checkers."""

    def __repr__(self) -> str:
        """All fields, long sequences by their length: passes hold thousands of samples."""
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"


class ResultFile(Record, frozen=True, kw_only=True):
    """A file that a command wrote: when (ISO 8601, UTC), and the command line of the program, as typed."""

    schema: str
    created: str
    argv: tuple[str, ...] = ()


JobResult = TypeVar("JobResult")


class Job(Record, Generic[JobResult], frozen=True, kw_only=True):
    """What a worker process is asked to do; the parameter is the type of what comes of it."""

    @classmethod
    def result_type(cls) -> Any:
        """The parameter."""
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]


_MOST_SHOWN = 12


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)) and len(value) > _MOST_SHOWN:
        return f"<{len(value)} items>"
    return repr(value)


_OUTLINE = bytes.maketrans(b"0123456789 \t\r\n,:[-", b"0" * 10 + b" " * 8)
_LONG = b" " + b"0" * 19
"""In the outline of a JSON text: digits that may exceed 64 bits, of an integer or of a float in full."""

_MAX_DIGITS = 20

AnyRecord = TypeVar("AnyRecord", bound=Record)
_Decoded = TypeVar("_Decoded")


def to_json(record: Record, *, indent: int | None = 2) -> bytes:
    """`record` as UTF-8 JSON with a closing newline; `indent=None` gives one line."""
    try:
        text = msgspec.json.encode(record)
    except UnicodeEncodeError:  # names of files and arguments may not be valid text
        text = msgspec.json.encode(as_text(msgspec.to_builtins(record)))
    return (msgspec.json.format(text, indent=indent) if indent else text) + b"\n"


def as_text(value: Any) -> Any:
    """Builtins with every string made encodable; bytes that are not text are written as escapes."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {as_text(key): as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_text(item) for item in value]
    return value


def from_json(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a record.

    A ValueError says that it is no JSON, nested beyond reason, not a `kind` (it names the field), or has an
    integer of more than 64 bits, which no later arithmetic would expect.
    """
    found = _decoded(text, kind)
    if _LONG in text.translate(_OUTLINE):  # ten times as fast as a pattern: results have megabytes
        json.loads(text, parse_int=_bounded)
    return found


def _decoded(text: bytes, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:  # ValidationError is one too
        raise ValueError(str(error)) from None


def _bounded(digits: str) -> int:
    if len(digits) > _MAX_DIGITS or not -(1 << 63) <= int(digits) < 1 << 64:
        raise ValueError(f"{digits[:_MAX_DIGITS]}… is an integer of more than 64 bits")
    return int(digits)


# ── schemas and their versions ──────────────────────────────────────────────────────────────────────────


class OtherVersionError(ValueError):
    """The file is of a kind that this trtopt knows, and of another version of it; `remedy` is what to do."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


_SCHEMA = re.compile(r"(?P<kind>trtopt\.[a-z]+)/(?P<version>[1-9][0-9]{0,5})")

_START = re.compile(rb'\s*\{\s*"schema"\s*:\s*"(?P<schema>trtopt\.[a-z]+/[0-9]+)"')


class _Header(msgspec.Struct):
    schema: Any = None


def read_versioned(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a file of `kind`, a record whose `schema` defaults to what this trtopt writes.

    A ValueError says that it is of another kind, of another trtopt, cut short, or edited beyond its schema.
    """
    present = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    _check(_decoded(text, _Header).schema, present)
    return from_json(text, kind)


def kind_of(text: bytes) -> str | None:
    """`trtopt.KIND` if a file has such a schema, even if it is cut short; None for any other file."""
    try:
        schema = _decoded(text, _Header).schema
    except ValueError:  # trtopt writes the schema first
        start = _START.match(text)
        schema = start["schema"].decode() if start else None
    match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    return match["kind"] if match else None


def _check(schema: object, present: str) -> None:
    if not isinstance(schema, str):
        raise ValueError("it has no schema")
    file, newest = _SCHEMA.fullmatch(schema), _SCHEMA.fullmatch(present)
    assert newest is not None
    if file is None or file["kind"] != newest["kind"]:
        raise ValueError(f"of schema {schema[:60]!r}, not {present}")
    if int(file["version"]) > int(newest["version"]):
        problem = f"of schema {schema}, written by a newer trtopt; this one reads {present}"
        raise OtherVersionError(problem, "upgrade trtopt to read it")
    if schema != present:
        problem = f"of schema {schema}, written by an earlier trtopt; this one reads {present}"
        raise OtherVersionError(problem, "make it again with this trtopt")


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────

Cell = str | int | float | bool | None
Row = dict[str, Cell]


class Result:
    """Base of the records that public functions return: as one line, a table, JSON or a data frame."""

    __slots__ = ()

    views: ClassVar[Callable[[], ModuleType]]
    """`trtopt.results`, which shows results, loaded when it is needed: the public package attaches it."""

    @property
    def view(self) -> Any:
        """All that is shown of it."""
        return Result.views().view_of(self)

    def __repr__(self) -> str:
        """One line: the type, and its outcome in short."""
        return f"<{type(self).__name__}: {self.view.headline}>"

    def table(self) -> str:
        """The text that the command line prints."""
        return str(Result.views().table(self))

    def plot(self) -> Any:
        """Its charts as an SVG image, which a notebook shows and `.save("NAME.svg")` writes.

        Raises:
            UsageError: it has none.
            BackendMissingError: what draws them is not installed.
        """
        return Result.views().plot(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(self.view.html())

    def rows(self) -> list[Row]:
        """The main figures with units in their names: a row for each engine, batch size, layer or node."""
        return list(self.view.rows)

    def to_dict(self) -> dict[str, object]:
        """The JSON form: the same that `--json` writes."""
        whole: dict[str, object] = json.loads(to_json(self.record()))
        return whole

    def record(self) -> Record:
        """The record that holds the result."""
        assert isinstance(self, Record)
        return self

    def to_pandas(self) -> DataFrame:
        """`rows` as a data frame."""
        try:
            import pandas
        except ImportError:
            raise BackendMissingError(
                "to_pandas: pandas is not installed", "pip install pandas; or take rows(), a list of dicts"
            ) from None
        return pandas.DataFrame(self.rows())
