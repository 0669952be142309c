"""The options of another program, a peer, and what each is in trtopt: a table, the parser and the notes.

A table is a text file beside this one, with a row a line: found in | options | kind | here | note.

words      becomes the words under `here`, by command (`*`: every one), with the value in place of {…}
jointly    the translator works it out together with other options
no effect  dropped, with the note
refused    the note is the remedy; values under `here` change nothing, and are accepted

Options are `--name=VALUE` or `--name,--alias=VALUE`; `VALUE…` are one or more, `[VALUE…]` any number,
`[VALUE]` at most one, and `VALUE...` is the rest of the line. They are found in versions of the peer, or in
tools of it; a row without options is about these.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Any, Literal, NoReturn, cast

from trtopt.errors import UsageError
from trtopt.options import size_in
from trtopt.peers.shapes import Profile, profile_words

Kind = Literal["translated", "no effect", "refused"]
Read = Callable[[str], "str | None"]
"""Reads a value that is no word of trtopt, unchanged; None: the option has no effect."""
_PLACEHOLDER = re.compile(r"\{.*\}")
_COUNTS = {"…": "+", "…]": "*", "]": "?", "...": argparse.REMAINDER}


@dataclass(frozen=True)
class PeerOption:
    """One option: where it is found, and what becomes of it.

    `value` is the placeholder of its value, empty for a switch. `words` are those that it becomes, by
    command, and none where the translator works them out together with other options. `harmless` are values
    of a refused option that change nothing.
    """

    names: tuple[str, ...]
    found_in: tuple[str, ...]
    value: str
    kind: Kind
    form: str
    note: str
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    read: Read | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def count(self) -> int | str | None:
        """How many values it takes, as argparse has it."""
        end = re.search(r"…?\]$|…$|\.{3}$|$", self.value)
        return _COUNTS.get(end[0] if end else "") if self.value else 0

    @property
    def usage(self) -> str:
        """How to write it."""
        values = self.value.replace("...", "…")
        return f"{self.name}{'=' if values[-1:].isalnum() else ' ' if values else ''}{values}"

    @property
    def commands(self) -> set[str]:
        """The commands of trtopt whose words it becomes; none if it is no command's."""
        return {word for part in self.form.split(", ") if (word := part.split()[0]).isalpha()}

    @property
    def answer(self) -> str:
        """What it is in trtopt."""
        here = {"no effect": "no effect", "refused": "cannot be translated"}.get(self.kind, self.form)
        return f"{here} ({self.note})" if self.note else here


def read_table(
    file: Path, found_in: Callable[[str], tuple[str, ...]], read: Mapping[str, Read]
) -> tuple[PeerOption, ...]:
    """The rows of a table; `found_in` reads a first column, `read` values, by option."""
    lines = [line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return tuple(
        PeerOption(
            names=tuple(names.split(",")),
            found_in=found_in(where),
            value=value,
            kind=cast("Kind", "translated" if kind in ("words", "jointly") else kind),
            form="–" if kind in ("no effect", "refused") else re.sub("[{}]", "", here),
            note=note,
            words={part.split()[0]: tuple(part.split()[1:]) for part in parts if kind == "words"},
            harmless=tuple(part for part in parts if part and kind == "refused"),
            read=read.get(names.split(",")[0]),
        )
        for where, options, kind, here, note in ([cell.strip() for cell in line.split("|")] for line in lines)
        for parts in [here.split(", ")]
        for names, _, value in (option.partition("=") for option in options.split() or ("",))
    )


# ── a command line ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Given:
    """An option of the command line, and its values."""

    option: PeerOption
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The option's."""
        return self.option.name

    @property
    def value(self) -> str:
        """All values as one."""
        return " ".join(self.values)

    @property
    def text(self) -> str:
        """As it may have been typed."""
        joint = "=" if len(self.values) == 1 else " "
        return f"{self.name}{joint}{self.value}" if self.values else self.name

    @property
    def is_harmless(self) -> bool:
        """Whether it is refused, but not with this value."""
        return self.option.kind == "refused" and self.value.lower() in map(str.lower, self.option.harmless)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "write the option out")


class _Collect(argparse.Action):
    """Collects options in the order in which they are given."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, _name: str | None = None) -> None:
        texts = [values] if isinstance(values, str) else values or []
        namespace.given.append(Given(namespace.options[self.dest], tuple(texts)))


@cache
def _parser_of(
    options: tuple[tuple[tuple[str, ...], int | str | None], ...], *, abbreviated: bool
) -> _Parser:
    """Making one takes longer than all else that a line is translated with."""
    parser = _Parser(add_help=False, allow_abbrev=abbreviated, exit_on_error=False)
    for names, count in options:
        parser.add_argument(*names, dest=names[0], action=_Collect, nargs=count)
    return parser


@dataclass(frozen=True)
class Line:
    """A command line that has been read: the options that count, other words; `notes` are added to."""

    given: Sequence[Given]
    words: Sequence[str]
    notes: list[str]

    @cached_property
    def by_name(self) -> Mapping[str, Given]:
        """The last of each option."""
        return {one.name: one for one in self.given}

    @property
    def model(self) -> str:
        """The first other word."""
        return self.words[0]

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def value(self, name: str) -> str | None:
        """The value of an option."""
        return self.by_name[name].value if name in self.by_name else None


def read_line(
    program: str,
    options: Sequence[PeerOption],
    arguments: Sequence[str],
    repeated: Set[str],
    *,
    abbreviated: bool,
) -> Line:
    """Read a command line; `abbreviated` takes beginnings of names too.

    Of an option that is not in `repeated` the last one counts, with a note on the others. Options that trtopt
    cannot translate are refused, all of them at once.
    """
    known = tuple((option.names, option.count) for option in options)
    parser = _parser_of(known, abbreviated=abbreviated)
    by_name = {name: option for option in options for name in option.names}
    try:
        found, others = parser.parse_known_args(arguments, argparse.Namespace(given=[], options=by_name))
    except argparse.ArgumentError as error:
        name = (error.argument_name or "").split("/")[0]
        remedy = f"write {by_name[name].usage}" if name in by_name else "write the option out"
        raise UsageError(f"{name}: {error.message}", remedy) from None
    for name in (word.partition("=")[0] for word in others if word.startswith("-")):
        near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else f"omit it; those of trtopt go before {program}'s"
        raise UsageError(f"{name}: no option of {program}", hint)
    given: list[Given] = found.given
    _refuse(given)
    last = {one.name: one for one in given}
    kept = [one for one in given if one.name in repeated or one is last[one.name]]
    superseded = [one for one in given if one.name not in repeated and one.values != last[one.name].values]
    return Line(kept, others, [f"{one.text}: no effect beside {last[one.name].text}" for one in superseded])


def _refuse(given: Sequence[Given]) -> None:
    reasons: dict[str, list[str]] = {}
    for one in given:
        if one.option.kind == "refused" and not one.is_harmless:
            reasons.setdefault(one.option.note, []).append(one.text)
    if reasons:
        every = [text for texts in reasons.values() for text in texts]
        remedies = [f"{', '.join(texts)}: {remedy}" for remedy, texts in reasons.items()]
        raise UsageError(
            f"{', '.join(every)}: cannot be translated",
            "; ".join(remedies) if len(reasons) > 1 else next(iter(reasons)),
        )


def _why_no_effect(one: Given, run: set[str]) -> str:
    option = one.option
    if option.kind == "no effect":
        return option.note
    if one.is_harmless:
        return "trtopt does so in any case"
    if option.read is not None and option.read(one.value) is None:
        return option.note
    if option.commands and not option.commands & run:
        return f"this runs no trtopt {' or '.join(sorted(option.commands))}"
    return ""


def own_words(command: str, given: Sequence[Given]) -> list[str]:
    """What options become by themselves in a command of trtopt."""
    words: list[str] = []
    for one in given:
        template = one.option.words.get(command, one.option.words.get("*", ()))
        read = one.option.read if template else None
        values = [read(one.value)] if read else one.values or ("",)
        words += [_filled(word, value) for value in values if value is not None for word in template]
    return words


def _filled(word: str, value: str) -> str:
    return _PLACEHOLDER.sub(lambda _: value, word)


# ── what becomes of it ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Translation:
    """Command lines of trtopt, without `trtopt` itself, in their order."""

    commands: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[str, ...]:
        """To be pasted into a shell."""
        setting = "".join(f"{name}={shlex.quote(value)} " for name, value in self.environment.items())
        return tuple(f"{setting}{shlex.join(('trtopt', *command))}" for command in self.commands)


def translation_of(commands: Sequence[Sequence[str]], line: Line) -> Translation:
    """The commands with what options become by themselves, and notes on what has no effect in them."""
    run = {command[0] for command in commands}
    reasons = {one.text: _why_no_effect(one, run) for one in line.given}
    idle = [f"{text}: no effect here: {why}" for text, why in reasons.items() if why]
    return Translation(
        tuple((*command, *own_words(command[0], line.given)) for command in commands),
        tuple(dict.fromkeys((*idle, *line.notes))),
    )


def build_folder(engine: str | None, model: str) -> str:
    """Named after the engine file, or after the model in the current folder."""
    file = PurePath(PurePath(model).name if engine is None else engine)
    if file.name in ("", ".."):
        raise UsageError(
            f"{model if engine is None else engine!r}: names no file", "give the file's whole name"
        )
    return str(file.with_suffix(".trtopt"))


_PRECISIONS = ("best", "int4", "fp8", "int8", "bf16", "fp16", "fp-to-fp16")
"""Of several allowed, the first of these is built."""


def build_words(
    line: Line, model: str, engine: str | None, profiles: Sequence[Profile], data: str | None
) -> list[str]:
    """What builds the engine."""
    words = ["build", model]
    if engine is not None:
        words += ["-o", (folder := build_folder(engine, model))]
        line.notes.append(f"the engine is in the build folder {folder}, with its logs and manifest")
    return [*words, *profile_words(profiles), *_precision_words(line, data)]


def _precision_words(line: Line, data: str | None) -> list[str]:
    """The narrowest type that is allowed, with the samples."""
    names = [name for name in _PRECISIONS if f"--{name}" in line]
    if not names:
        return []
    first = names[0]
    if first == "best" and data is None:
        raise UsageError(
            "--best: precisions are chosen by speed and accuracy, which takes samples",
            "add --data DATA (an .npz, a folder of them or module:function), or give --fp16 instead",
        )
    line.notes.extend(f"--{name}: no effect here: --{first} is built" for name in names[1:])
    if data is None or first not in ("best", "int8", "fp8"):  # whose note is to give samples
        line.notes.append(f"--{first}: {line.by_name[f'--{first}'].option.note}")
    return ["--precision", first.removeprefix("fp-to-"), *([] if data is None else ["--data", data])]


def workspace(usage: str, spec: str, unit: str) -> str:
    """MiB, of `workspace:1G`; `unit` is that of a number alone, `usage` the option with what to give."""
    pool, _, text = spec.partition(":")
    size = size_in(text, unit) if pool.lower() == "workspace" else None
    if size is None:
        raise UsageError(f"{spec}: cannot be translated", f"give one pool, {usage}")
    return str(max(1, round(size / 2**20)))
