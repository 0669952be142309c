"""What a rule is: data that names it and three functions over a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from trtopt.rewrite.evidence import Evidence, earns_a_build, earns_quantising, of_rule
from trtopt.rewrite.scope import Scope
from trtopt.targets import target_names

Exactness = Literal["B", "N"]
"""B bit-exact, N equal up to rounding."""


@dataclass(frozen=True)
class Match:
    """A place where a rule's pattern stands: `node` names it in the trace, `parts` are the rule's own."""

    node: Any
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One idea: `what` says it as pattern → replacement.

    `find` walks a scope and yields matches of the pattern, each taken from the graph at that moment;
    `check` answers None, or why this match must be left alone; `apply` replaces it. `targets` are
    those that it suits: for others it must be named. `enables` says what TensorRT can do afterwards,
    `evidence` what has been found of that; builds, and `trtopt rewrite` by itself, apply what has earned it.
    """

    name: str
    what: str
    exactness: Exactness
    enables: str
    find: Callable[[Scope], Iterator[Match]]
    check: Callable[[Scope, Match], str | None]
    apply: Callable[[Scope, Match], None]
    targets: tuple[str, ...] = target_names()
    evidence: tuple[Evidence, ...] = ()

    def known(self, target: str) -> tuple[Evidence, ...]:
        """All that is known of its worth on a target."""
        return of_rule(self.name, self.evidence, target)

    def is_built_in(self, target: str) -> bool:
        """Whether builds for the target apply it unasked."""
        return target in self.targets and earns_a_build(self.name, self.evidence, target)

    def quantises(self, target: str) -> bool:
        """Whether quantising and `trtopt rewrite` apply it unasked: what builds apply, and more."""
        return target in self.targets and earns_quantising(self.name, self.evidence, target)


def always(scope: Scope, match: Match) -> str | None:
    """The check of a rule whose pattern is condition enough."""
    return None
