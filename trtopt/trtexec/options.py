"""Every option of trtexec 8.6, 10 and 11, and what it is in trtopt, as options.txt beside this file says.

The translator (`trtopt trtexec`), the answers to options of trtexec given to other commands, and the table in
docs/coming-from/trtexec.md are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from trtopt.errors import UsageError
from trtopt.targets import ROWS, TENSORRT

VERSIONS = tuple(dict.fromkeys(row.name for row in ROWS if row.backend == TENSORRT))
"""Of trtexec: it comes with TensorRT."""
GRAPHS_BY_DEFAULT = VERSIONS[2:]
"""Those that by default measure with a CUDA graph, without copies and with a spinning host."""
Kind = Literal["translated", "no effect", "refused"]


@dataclass(frozen=True)
class TrtexecOption:
    """One option: who has it, and what becomes of it.

    `value` is the placeholder of its value, empty for a switch. `words` are those that it becomes, by
    command, and none where the translator works them out together with other options. `harmless` are values
    of a refused option that change nothing.
    """

    name: str
    versions: tuple[str, ...]
    value: str
    kind: Kind
    form: str
    note: str
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()

    def words_for(self, command: str, value: str) -> list[str]:
        """The words that the option becomes in a command line of trtopt."""
        words = self.words.get(command)
        read = READ.get(self.name, str)(value) if words else None
        return [] if read is None else [_PLACEHOLDER.sub(lambda _: read, word) for word in words or ()]

    @property
    def answer(self) -> str:
        """What is said to it where another command is given it."""
        here = {"no effect": "no effect", "refused": "cannot be translated"}.get(self.kind, self.form)
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.name} is an option of trtexec. In trtopt: {here}{note}.\n"
            "A whole command line of trtexec: trtopt trtexec ARGS…"
        )


def _options() -> Iterator[TrtexecOption]:
    for line in Path(__file__).with_name("options.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            versions, options, kind, here, note = (cell.strip() for cell in line.split("|"))
            for name, _, value in (option.partition("=") for option in options.split()):
                yield TrtexecOption(
                    name=name,
                    versions=_versions(versions),
                    value=value,
                    kind=cast("Kind", "translated" if kind in ("words", "jointly") else kind),
                    form="–" if kind in ("no effect", "refused") else re.sub("[{}]", "", here),
                    note=note,
                    words=_words(here) if kind == "words" else {},
                    harmless=tuple(here.split(", ")) if kind == "refused" and here else (),
                )


def _versions(text: str) -> tuple[str, ...]:
    """`all`, `10`, `to 10` or `from 10`."""
    *bound, name = text.split()
    if name == "all":
        return VERSIONS
    place = VERSIONS.index(name)
    return VERSIONS[place if bound != ["to"] else 0 : place + 1 if bound != ["from"] else None]


def _words(here: str) -> dict[str, tuple[str, ...]]:
    return {command: tuple(words) for command, *words in map(str.split, here.split(", "))}


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────

_TILING = ("none", "fast", "moderate", "full")
"""The levels, in the order of their numbers."""
_MIB = {"": 1, "B": 2**-20, "K": 2**-10, "M": 1, "G": 2**10}


def _workspace(spec: str) -> str:
    """The workspace in MiB, of `workspace:1024` or `workspace:1G`."""
    match = re.fullmatch(r"workspace:(\d+(?:\.\d+)?)([BKMG]?)(?:iB)?", spec)
    if match is None:
        raise UsageError(
            f"--memPoolSize={spec}: cannot be translated", "give one pool, --memPoolSize=workspace:MIB"
        )
    return str(max(1, round(float(match[1]) * _MIB[match[2]])))


def _tiling(level: str) -> str:
    if level not in map(str, range(len(_TILING))):
        raise UsageError(f"--tilingOptimizationLevel={level}: no such level", f"give 0 to {len(_TILING) - 1}")
    return _TILING[int(level)]


def _l2_limit(text: str) -> str | None:
    """The limit in MiB; below 0 it is TensorRT's own."""
    limit = _number("--l2LimitForTiling", text)
    if limit >= 0 and round(limit / 2**20) < 1:
        raise UsageError(f"--l2LimitForTiling={limit:g}: less than 1 MiB", "give bytes, 1048576 or more")
    return str(round(limit / 2**20)) if limit >= 0 else None


def _warmup(milliseconds: str) -> str:
    return f"{_number('--warmUp', milliseconds) / 1000:g}"


def _duration(text: str) -> str | None:
    seconds = _number("--duration", text)
    return f"{seconds:g}" if seconds else None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name}={text}: not a number", f"write, say, {name}=200") from None


READ: dict[str, Callable[[str], str | None]] = {
    "--memPoolSize": _workspace,
    "--tilingOptimizationLevel": _tiling,
    "--l2LimitForTiling": _l2_limit,
    "--warmUp": _warmup,
    "--duration": _duration,
}
"""How values are read that are no words of trtopt as they are; None: the option has no effect."""
_PLACEHOLDER = re.compile(r"\{.*\}")

OPTIONS = tuple(_options())
BY_NAME = {option.name: option for option in OPTIONS}
