"""Messages as a Python caller reads them: with parameters for the options of the command line.

Messages are written with options, as help and documentation are: `--batch 0: …`. In Python the same option is
a parameter: `batch=0: …`. What is in backticks, or follows `trtopt COMMAND`, is a command line and stays one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from trtopt.errors import TrtoptError, UsageError
from trtopt.precision.bounds import Bounds
from trtopt.recipe import Recipe
from trtopt.records import Terms
from trtopt.records.tensors import split_io, split_normalize

P = ParamSpec("P")
R = TypeVar("R")

ALIASES = {
    "axis": "axes",
    "calib": "data",
    "for": "for_triton",
    "input": "data",
    "memory": "memory_bytes",
    "model": "task",
    "o": "output",
    "plugin": "plugins",
    "queue": "queue_ahead",
    "recipe": "profile",
    "shape": "shapes",
    "workspace": "workspace_mib",
    "l2_limit": "l2_limit_mib",
}
"""Options whose parameter has another name, where the function has no parameter of the option's own name."""

_COMMAND = re.compile(r"(`[^`]*`|\b(?:trtopt [a-z]|nvidia-smi )[^,;)]*)")
_OPTION = re.compile(
    r"(?<![\w-])(?:--(?P<name>[a-z][a-z0-9-]*)|-(?P<short>o)\b)"
    r"(?:[ =](?P<value>'[^']*'|\"[^\"]*\"|(?!-)[^\s;()]*[^\s;(),:.]|-\d[\d.]*))?(?P<colon>:?)"
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_,.:=]*(\.so)?|.*….*|'.*'|\".*\"", re.DOTALL)
"""What stands for a value, and what is quoted already."""
_PAIR = re.compile(r"([^:=,]+)[:=]([^:=]+?)(?=,[^:=,]+[:=]|$)")
"""`ids:Nx1,Nx128,Nx512` is one, `128:0.7,384:0.3` are two."""
_SPLIT = {"io": split_io, "normalize": split_normalize}
"""Options whose value is a key and text that has the separators, too."""
GROUPS: dict[str, tuple[type, str]] = {
    "terms": (Terms, "terms={{{key!r}: {value}}}"),
    "bounds": (Bounds, "bounds={{{key!r}: {value}}}"),
    "recipe": (Recipe, "recipe=Recipe({key}={value})"),
}
"""Parameters whose keys are options, and how one is set."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that an option stands for; of `group`, if it is a key of that parameter."""

    name: str
    hint: Any
    group: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether it is True or False alone."""
        return {*_members(self.hint)} == {bool}

    def set_to(self, value: str) -> str:
        """The parameter with a value as text: `batch=4`, or in a group `terms={'graph': False}`."""
        if self.group is not None:
            return GROUPS[self.group][1].format(key=self.name, value=_literal(value, self.hint))
        if self.name in _SPLIT:
            with suppress(UsageError):
                key, rest = _SPLIT[self.name](value)
                return f"{self.name}={{{key!r}: {rest!r}}}"
        if any(get_origin(member) is Mapping for member in _members(self.hint)) and not _PAIR.match(value):
            return f"{self.name}[{value!r}]"
        return f"{self.name}={_literal(value, self.hint)}"


def naming_parameters(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose errors name its parameters where the command line has options.

    The function's own errors, and UsageError for text, or a list, where it takes a dictionary or a list.
    """

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        check_containers(
            function, dict(zip(signature(function).parameters, arguments, strict=False), **keywords)
        )
        try:
            return function(*arguments, **keywords)
        except TrtoptError as error:
            options = options_of(function)
            error.args = tuple(with_parameters(text, options) for text in (error.problem, error.remedy))
            error.problem, error.remedy = error.args
            raise

    return call


def check_containers(function: Callable[..., object], given: Mapping[str, object]) -> None:
    """Find out that dictionaries and lists were given where nothing else fits: text is a list of letters.

    Raises:
        UsageError: one was not.
    """
    hints = get_type_hints(function)
    for name, value in given.items():
        kinds = {get_origin(member) for member in _members(hints.get(name))}
        if kinds == {Mapping} and value is not None and not isinstance(value, Mapping):
            raise UsageError(f"{name}={value!r}: not a dictionary", f"give {name}={{KEY: VALUE, …}}")
        if kinds == {Sequence} and isinstance(value, str):
            raise UsageError(f"{name}={value!r}: not a list", f"give {name}=[{value!r}]")


def options_of(function: Callable[..., object]) -> dict[str, Parameter]:
    """The parameters of a function by the options that stand for them, underscores for dashes."""
    hints = get_type_hints(function)
    named = {name: Parameter(name, hint) for name, hint in hints.items() if name != "return"}
    for group, (kind, _) in GROUPS.items():
        if group in hints:
            named = {key: Parameter(key, hint, group) for key, hint in get_type_hints(kind).items()} | named
    return {option: named[name] for option, name in ALIASES.items() if name in named} | named


def with_parameters(text: str, options: Mapping[str, Parameter]) -> str:
    """A message with parameters for options; an option that stands for none of them remains."""

    def parameter(found: re.Match[str]) -> str:
        option, value, colon = found["name"] or found["short"], found["value"], found["colon"]
        option = option.replace("-", "_")
        one, switched = options.get(option), "True"
        if one is None and option.startswith("no_"):
            one, switched = options.get(option.removeprefix("no_")), "False"
        if one is None:
            return found[0]
        if one.is_switch:
            return one.set_to(switched) + (f" {value}" if value else "") + colon
        if value is None:
            return one.name + colon
        if not colon and value.isalpha() and value.islower() and value not in choices:
            return f"{one.name} {value}"  # the next word of the sentence
        return one.set_to(value) + colon

    choices = {choice for one in options.values() for choice in _choices(one.hint)}
    pieces = _COMMAND.split(text)
    pieces[::2] = [_OPTION.sub(parameter, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, None left out; another type is its own only one."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(one for one in alternatives if one is not NoneType)


def _choices(hint: Any) -> Iterator[object]:
    """The words that a type names."""
    for member in _members(hint):
        if get_origin(member) is Literal:
            yield from get_args(member)


def _literal(value: str, hint: Any) -> str:
    """A value of the command line, as Python writes one of that type."""
    members = _members(hint)
    for member in members:
        kind, inner = get_origin(member), get_args(member)
        if kind is Mapping:
            pairs = (
                f"{_literal(key, inner[0])}: {_literal(one, inner[1])}" for key, one in _PAIR.findall(value)
            )
            return f"{{{', '.join(pairs)}}}"
        if kind is Sequence and ("," in value or len(members) == 1):
            return f"[{', '.join(_literal(item, inner[0]) for item in value.split(','))}]"
    if _NUMBER.fullmatch(value):
        return value if {int, float} & {*members} else repr(value)
    return value if value in ("True", "False") or _PLACEHOLDER.fullmatch(value) else repr(value)
