"""What a rule is: data that names it and three functions over a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any, Literal

from trtopt.rewrite.evidence import Evidence, earns_a_build, earns_quantising, of_rule
from trtopt.rewrite.scope import Scope
from trtopt.targets import target_names

Exactness = Literal["B", "N", "A"]
"""B bit-exact, N equal up to rounding, A approximate."""


class Stage(IntEnum):
    """Rules run stage by stage: what cleans first, what depends on a clean graph after it."""

    CLEANING = auto()
    """Constants are folded, and what does nothing goes."""
    SHUFFLES = auto()
    """Transposes, reshapes and copies are merged."""
    SELECTION = auto()
    """Masks and gathers are simplified, equal nodes shared."""
    NORMALISATION = auto()
    ACTIVATION = auto()
    REDUCTION = auto()
    CONVOLUTION = auto()
    """What stands next to a convolution or a product goes into its weights and attributes."""
    ATTENTION = auto()
    MERGING = auto()
    """Products and convolutions grow wider."""
    PLUGINS = auto()
    """What a parser or a plugin alone needs."""


@dataclass(frozen=True)
class Match:
    """A place where a rule's pattern stands: `node` names it in the trace, `parts` are the rule's own."""

    node: Any
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One idea.

    `find` walks a scope and yields matches of the pattern, each taken from the graph at that moment;
    `check` answers None, or why this match must be left alone; `apply` replaces it. `targets` are
    those that it suits: for others it must be named. `enables` says what TensorRT can do afterwards,
    `evidence` what has been found of that; builds, and `trtopt rewrite` by itself, apply what has earned it.
    Within its `stage` it runs by name, but `after` the rules that it names.
    """

    name: str
    exactness: Exactness
    enables: str
    find: Callable[[Scope], Iterator[Match]]
    check: Callable[[Scope, Match], str | None]
    apply: Callable[[Scope, Match], None]
    stage: Stage = field(kw_only=True)
    after: tuple[str, ...] = ()
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
