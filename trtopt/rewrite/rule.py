"""What a rule is: data that names it and three functions over a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from trtopt.rewrite.scope import Scope
from trtopt.rewrite.target import EVERY

Exactness = Literal["B", "N", "A"]
"""B bit-exact, N equal up to rounding, A approximate."""


@dataclass(frozen=True)
class Match:
    """A place where a rule's pattern stands: `node` names it in the trace, `parts` are the rule's own."""

    node: Any
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One idea.

    `find` walks a scope and yields matches of the pattern, each taken from the graph's current state;
    `check` returns None, or why this match must not be replaced; `apply` replaces it. `default` names the
    targets for which it is on. `enables`: what TensorRT can do afterwards. `audit`: for which TensorRT
    engines have shown that, or that the rule is not needed there.
    """

    name: str
    exactness: Exactness
    enables: str
    find: Callable[[Scope], Iterator[Match]]
    check: Callable[[Scope, Match], str | None]
    apply: Callable[[Scope, Match], None]
    default: tuple[str, ...] = EVERY
    audit: str = "not audited"


def always(scope: Scope, match: Match) -> str | None:
    """The check of a rule whose pattern is condition enough."""
    return None
