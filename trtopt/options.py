"""Options: each is declared once, as the annotation of a request's field, and every face follows from it.

    batch: Annotated[int | Sequence[int] | None, Option("Batch sizes.", metavar="N,N,…", parse=sizes)] = None

makes the command line's `--batch N,N,…` (`trtopt.cli.declared`), the keyword `batch` of the Python function
with its type, its default and its line in `help()`, and how a message names it on either. Several requests
share an option as an alias of its annotation, and many as a mix-in class.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextvars import copy_context
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    runtime_checkable,
)

from trtopt.errors import TrtoptError, UsageError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Names = Callable[[], Iterable[str]]


@dataclass(frozen=True)
class Option:
    """How a field is spelled and explained; its type and default say the rest.

    `flag` is `--name` of the field's name by default; None: Python alone has it. `parse` reads a value where
    the type does not say how; for a mapping, one of its pairs. `names` are values that a shell offers, with
    `is_path` files too. `bare` is what the flag means without a value.
    """

    help: str
    _: KW_ONLY
    python: str | None = None
    """The help where Python writes the value differently."""
    flag: str | None = ""
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    names: Names | None = None
    is_path: bool = False
    must_exist: bool = False
    is_repeated: bool | None = None
    """Whether it may be given several times [default: with a mapping, and with a list that is not parsed]."""
    choices: tuple[str, ...] = ()
    """Those of a table; of a type, the type names them."""
    bare: str | None = None
    range: tuple[float, float] | None = None
    """The least and the greatest number that it may be; of several, that each may be."""


@dataclass(frozen=True)
class Argument:
    """A positional one; `kind` says what it may be."""

    help: str
    kind: Literal["path", "onnx", "folder", "name"] = "path"
    _: KW_ONLY
    metavar: str | None = None
    names: Names | None = None


@dataclass(frozen=True)
class Output:
    """`-o`, what is written: a folder, which is checked when it is made, or a file that holds this."""

    help: str
    holds: Literal["folder", "model", "quantised model", "plan", "page"]


@dataclass(frozen=True)
class Declared:
    """A field of a request."""

    name: str
    hint: Any
    default: Any
    declaration: Any
    is_positional: bool = False

    @property
    def flag(self) -> str | None:
        """Its option, if it has one."""
        if isinstance(self.declaration, Option):
            own = self.declaration.flag
            return f"--{self.name.replace('_', '-')}" if own == "" else own
        return "--output" if isinstance(self.declaration, Output) else None

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def is_path(self) -> bool:
        """Whether it may name a file or a folder."""
        if isinstance(self.declaration, Argument):
            return self.declaration.kind != "name"
        return isinstance(self.declaration, Output) or self.declaration.is_path or self.declaration.must_exist

    @property
    def members(self) -> tuple[Any, ...]:
        """The alternatives of its type, None left out."""
        return members_of(self.hint)


@cache
def declared_in(request: type) -> tuple[Declared, ...]:
    """The fields of a request: its own, then those of its mix-ins, the nearest first; the listener last."""
    hints: dict[str, Any] = {}
    places: dict[str, int] = {}
    for place, kind in reversed([*enumerate(request.__mro__)]):
        hints |= inspect.get_annotations(kind, eval_str=True)
        places |= dict.fromkeys(inspect.get_annotations(kind), place)
    found = [
        field_of(one.name, hints[one.name], _default(one), is_positional=not one.kw_only)
        for one in fields(request)
        if get_origin(hints[one.name]) is Annotated
    ]
    return tuple(
        sorted(found, key=lambda one: (one.name == "listener", places[one.name], not one.is_positional))
    )


def _default(one: Any) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return inspect.Parameter.empty if one.default is MISSING else one.default


def field_of(name: str, hint: Any, default: Any, *, is_positional: bool = False) -> Declared:
    """Of `Annotated[type, declaration]`; what follows replaces the declaration, or a text its help."""
    kind, declaration, *more = get_args(hint)
    for other in more:
        declaration = replace(declaration, help=other, python=None) if isinstance(other, str) else other
    return Declared(name, kind, default, declaration, is_positional)


def members_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, None left out; another type is its own only one."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(one for one in alternatives if one is not NoneType)


def parse_names(text: str) -> tuple[str, ...]:
    """`fp16,int8` as its entries; an empty one stays, to be refused as no name that is known."""
    return tuple(name.strip() for name in text.split(","))


_SIZE = re.compile(r"(\d{1,18}(?:\.\d*)?(?:e\d\d?)?)\s*([BKMG]?)(?:iB)?", re.IGNORECASE)
_BYTES = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size_in(text: str, unit: str = "") -> float | None:
    """Bytes of `4G` or `4 GiB`, and of a number alone in the `unit`; None of any other text."""
    match = _SIZE.fullmatch(text.strip())
    letter = (match[2].upper() or unit) if match else ""
    return float(match[1]) * _BYTES[letter] if match and letter else None


def parse_mib(flag: str, text: str) -> int:
    """`4G`, or a number of MiB, as MiB."""
    size = size_in(text, "M")
    if size is None:
        raise UsageError(f"{flag} {text}: not a size", f"write, say, {flag} 512 (MiB) or {flag} 4G")
    return round(size / _BYTES["M"])


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────


class Checked:
    """A request, whose values are judged when it is made."""

    def __post_init__(self) -> None:
        kind: type = type(self)
        check_values(self, declared_in(kind))

    def values_for(self, other: type[Checked]) -> dict[str, Any]:
        """The values of the options that another kind of request has too."""
        kinds: tuple[type, type] = (type(self), other)
        own, others = ({one.name for one in declared_in(kind)} for kind in kinds)
        return {name: getattr(self, name) for name in own & others}


def check_values(values: object, declared: Iterable[Declared]) -> None:
    """Refuse numbers out of range, words that are no choice and empty paths, in a request or its like."""
    for one in declared:
        span, choices = getattr(one.declaration, "range", None), tuple(choices_of(one))
        for value in _listed(getattr(values, one.name)):
            written = f"{one.flag} {value:g}" if isinstance(value, float) else f"{one.flag} {value}"
            if isinstance(value, str) and choices and value not in choices:
                raise UsageError(f"{written}: no such choice", f"choose among {', '.join(choices)}")
            if value == "" and one.is_path:  # which would be the current folder, or not given
                raise UsageError(
                    f"{one.flag or one.name}: the name is empty",
                    "give one (the current folder is '.'), or omit it",
                )
            is_number = isinstance(value, SupportsFloat) and not isinstance(value, bool)
            if span and is_number and not span[0] <= value <= span[1]:
                raise UsageError(f"{written}: out of range", f"choose {span[0]} to {span[1]}")


def _listed(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, Sequence | Set) and not isinstance(value, str) else (value,)


# ── the Python function ─────────────────────────────────────────────────────────────────────────────────


def keywords_of(request: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Make of a function of a request one with the request's fields as parameters.

    Its help lists them. It refuses values of other types, and its errors name parameters where messages name
    options.
    """
    declared = declared_in(cast(type, request))

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            try:
                bound = signature.bind(*arguments, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            for one in declared:
                if one.name in bound:
                    _check(one.name, one.hint, bound[one.name])
                    bound[one.name] = _plain(one.hint, bound[one.name])
            try:  # in a context: a later call may find other data behind a name
                return copy_context().run(function, cast(Callable[..., T], request)(**bound))
            except TrtoptError as error:
                error.args = tuple(in_python(text, declared) for text in (error.problem, error.remedy))
                error.problem, error.remedy = error.args
                raise

        signature = inspect.Signature(
            [_parameter(one) for one in declared], return_annotation=function.__annotations__["return"]
        )
        call.__dict__.update(__signature__=signature)
        call.__annotations__ = {one.name: one.hint for one in declared} | {
            "return": signature.return_annotation
        }
        call.__doc__ = _write_help(inspect.getdoc(function) or "", declared)
        call.__module__ = "trtopt"
        return call

    return decorate


def _parameter(one: Declared) -> inspect.Parameter:
    kinds = inspect.Parameter
    kind = kinds.POSITIONAL_OR_KEYWORD if one.is_positional else kinds.KEYWORD_ONLY
    annotation = re.sub(r"[\w.]+\.(?=\w)", "", inspect.formatannotation(one.hint))
    annotation = re.sub(r"Optional\[(.*)\]$", r"\1 | None", annotation)
    return inspect.Parameter(one.name, kind, default=one.default, annotation=annotation)


_RAISES = """
    UsageError: a parameter is wrong, contradicts another or has no effect here.
    ModelError, DataError, ArtifactError: a model, samples, a build or a result cannot be used.{}
    TrtoptError: anything else; all of these say what to do.
"""
_RAISES_AT_OUTPUT = "\n    OutputError: the output cannot be written; an error leaves nothing under its name."


def _write_help(text: str, declared: Sequence[Declared]) -> str:
    """A docstring with its parameters before what it returns, and what any function raises after its own."""
    above, returns, below = text.partition("\nReturns:")
    found, example, lines = below.partition("\nExample:")
    raises = found.rstrip() if "\nRaises:" in found else f"{found.rstrip()}\n\nRaises:"
    writes = any(isinstance(one.declaration, Output) for one in declared)
    entries = (
        textwrap.fill(f"{one.name}: {_explain(one, declared)}", 106, initial_indent="    ",
                      subsequent_indent="        ", break_on_hyphens=False, break_long_words=False)
        for one in declared
    )  # fmt: skip
    errors = _RAISES.format(_RAISES_AT_OUTPUT if writes else "")
    return "\n".join((f"{above}\nArgs:", *entries, returns + raises + errors + example + lines))


def _explain(one: Declared, declared: Sequence[Declared]) -> str:
    declaration = one.declaration
    text = getattr(declaration, "python", None) or in_python(declaration.help, declared)
    if of_table := getattr(declaration, "choices", ()):  # those of a type are in the signature
        text = f"{text.rstrip('.')}; one of {', '.join(of_table)}."
    if isinstance(one.default, int | float) and not isinstance(one.default, bool) and "[default" not in text:
        text = f"{text.rstrip('.')} [default: {one.default:g}]."
    first = text.split(" ", 1)[0].rstrip(",")
    is_plain = first == "A" or (first[1:].islower() and first.isalpha())  # no TensorRT, no GPUs
    return text[0].lower() + text[1:] if is_plain else text


# ── what a Python caller gives ──────────────────────────────────────────────────────────────────────────


@runtime_checkable
class _Truth(Protocol):
    """A truth value, NumPy's too; text has none."""

    def __bool__(self) -> bool: ...


_SCALARS: dict[Any, tuple[type, str]] = {
    bool: (_Truth, "True or False"),
    int: (SupportsIndex, "a whole number"),
    float: (SupportsFloat, "a number"),
    str: (str, "text"),
    Literal: (str, "text"),
    Path: (PathLike, "a path"),
}
"""What stands for a value of each type, NumPy's numbers too, and its name."""
_CONTAINERS = {Sequence: "a list", Mapping: "a dictionary"}


def _check(written: str, hint: Any, value: object) -> None:
    """Refuse a value of another type than the declared one; of lists and dictionaries every entry."""
    kinds = {get_origin(kind) or kind: kind for kind in members_of(hint)}
    if value is None and NoneType in get_args(hint):
        return
    if Mapping in kinds and isinstance(value, Mapping):
        key_hint, entry_hint = get_args(kinds[Mapping])
        for key, entry in value.items():
            _check(f"{written}: key", key_hint, key)
            _check(f"{written}[{key!r}]", entry_hint, entry)
    elif Sequence in kinds and isinstance(value, Sequence | Set) and not isinstance(value, str):
        (entry_hint,) = get_args(kinds[Sequence])
        if entry_hint is int and not len(value):
            raise UsageError(f"{written}={value!r}: is empty", "give one number at least, or omit it")
        for place, entry in enumerate(value):
            _check(f"{written}[{place}]", entry_hint, entry)
    elif Literal in kinds and isinstance(value, str):
        if value not in (choices := get_args(kinds[Literal])):
            raise UsageError(f"{written}={value!r}: no such choice", f"choose among {', '.join(choices)}")
    elif (isinstance(value, Sized) and not isinstance(value, str)) or not any(
        _is_one(kind, value) for kind in kinds if kind not in _CONTAINERS
    ):
        raise _refusal(written, kinds, value)


def _is_one(kind: Any, value: object) -> bool:
    """Whether a value stands for one of a kind; None has a truth value but is none, and True is no number."""
    if value is None or (isinstance(value, bool) and kind is not bool):
        return False
    return isinstance(value, _SCALARS.get(kind, (kind,))[0])


def _plain(hint: Any, value: Any) -> Any:
    """The number or truth value as Python's own: records and worker processes take no other."""
    (kind, *others) = members_of(hint)
    return kind(value) if not others and kind in (bool, int, float) and value is not None else value


def _refusal(written: str, kinds: Mapping[Any, Any], value: object) -> UsageError:
    """The error of a value that is of none of these kinds: text is no list of letters."""
    known = {kind: name for kind, (_, name) in _SCALARS.items()} | _CONTAINERS
    names = dict.fromkeys(name for kind, name in known.items() if kind in kinds)
    wanted = " or ".join(names or (f"a {kind.__name__}" for kind in kinds))
    given = f"{written}={value!r}"
    if set(kinds) == {Sequence}:
        (entry,) = get_args(kinds[Sequence])
        entries = {get_origin(kind) or kind for kind in members_of(entry)} & _SCALARS.keys()
        if any(_is_one(kind, value) for kind in entries):
            return UsageError(f"{given}: not {wanted}", f"give {written}=[{value!r}]")
    if Mapping in kinds:
        return UsageError(f"{given}: not {wanted}", f"give {written}={{KEY: VALUE, …}}")
    if not names:
        (kind,) = kinds
        return UsageError(f"{given}: not {wanted}", f"give {written}={kind.__name__}(KEY=VALUE, …)")
    return UsageError(f"{given}: not {wanted}", f"give {wanted}")


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────

_COMMAND = re.compile(r"(`[^`]*`|\b(?:trtopt [a-z]|nvidia-smi )[^,;)]*)")
_FLAG = re.compile(
    r"(?<![\w-])(?P<flag>--[a-z][a-z0-9-]*|-o\b)"
    r"(?:[ =](?P<value>'[^']*'|\"[^\"]*\"|(?![-\[])[^\s;()]*[^\s;(),:.]|-\d[\d.]*))?(?P<colon>:?)"
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_,.:=]*(\.so)?|.*….*|'.*'|\".*\"|True|False", re.DOTALL)
"""What stands for a value, and what is written in Python already."""


def in_python(text: str, declared: Sequence[Declared]) -> str:
    """A message, written with options, as a Python caller reads it: `--batch 0: …` becomes `batch=0: …`.

    What is in backticks, or follows `trtopt COMMAND`, is a command line and stays one, and so does an option
    that stands for none of the parameters.
    """
    keywords = {flag: one for one in declared for flag in _flags(one)}
    choices = {word for one in declared for word in choices_of(one)}

    def parameter(found: re.Match[str]) -> str:
        flag, value, colon = found["flag"], found["value"], found["colon"]
        if flag not in keywords:
            return found[0]
        one = keywords[flag]
        if {*one.members} == {bool} and one.declaration.parse is None:
            value = f" {value}" if value else ""
            return f"{one.name}={not flag.startswith('--no-')}{value}{colon}"
        if value is None:
            return one.name + colon
        if not colon and value.isalpha() and value.islower() and value not in choices:
            return f"{one.name} {value}"  # the next word of the sentence
        literal = _literal(one, value)
        return (f"{one.name}[{value!r}]" if literal is None else f"{one.name}={literal}") + colon

    pieces = _COMMAND.split(text)
    pieces[::2] = [_FLAG.sub(parameter, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _flags(one: Declared) -> tuple[str, ...]:
    """Each spelling of an option."""
    if isinstance(one.declaration, Output):
        return ("--output", "-o")
    return tuple((one.flag or "").split("/"))


def choices_of(one: Declared) -> Iterator[Any]:
    """The words that a field can have, where they are a closed set."""
    yield from getattr(one.declaration, "choices", ())
    for member in one.members:
        inner = get_args(member)[0] if get_origin(member) is Sequence else member
        if get_origin(inner) is Literal:
            yield from get_args(inner)


def _literal(one: Declared, text: str) -> str | None:
    """A value of the command line as Python writes it; None: of a mapping it is but a key."""
    kinds = {get_origin(member) or member for member in one.members}
    parse = getattr(one.declaration, "parse", None)  # an Output has none
    value: object = text
    if parse is not None and (Mapping in kinds or not _PLACEHOLDER.fullmatch(text)):
        try:
            value = parse(text)
        except (UsageError, ValueError):
            if Mapping in kinds:
                return None
    if Mapping in kinds and isinstance(value, tuple):
        return repr(dict([value]))
    if isinstance(value, tuple):
        return repr(value[0] if len(value) == 1 and {int, str} & kinds else list(value))
    if not isinstance(value, str | Path):
        return repr(value)
    if _PLACEHOLDER.fullmatch(text) or (_NUMBER.fullmatch(text) and {int, float} & kinds):
        return f"[{text}]" if kinds == {Sequence} else text
    return repr([text] if kinds == {Sequence} else text)
