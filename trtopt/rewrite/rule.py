"""What a rule is: a function that looks at a node, or at a graph; and what earns it a place in builds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeAlias

from trtopt.rewrite.evidence import Evidence
from trtopt.rewrite.scope import Scope
from trtopt.targets import target_names

Exactness = Literal["B", "N"]
"""B bit-exact, N equal up to rounding."""
Verdict: TypeAlias = str | Callable[[], object]
"""Why a match must be left alone, or what replaces it."""


@dataclass(frozen=True)
class Match:
    """A place where a rule's pattern stands; `node` names it in the trace."""

    node: Any
    verdict: Verdict


Find: TypeAlias = Callable[..., Iterator[Match]]
"""Yields the matches in a scope, each as the graph then is: it is replaced before the next is sought."""


@dataclass(frozen=True)
class Rule:
    """One idea: `what` says it as pattern → replacement.

    `targets` are those that it suits: for others it must be named. `enables` says what TensorRT can do
    afterwards, `evidence` what has been found of that; builds, and `trtopt rewrite` by itself, apply what has
    earned it.
    """

    name: str
    what: str
    exactness: Exactness
    enables: str
    find: Find
    targets: tuple[str, ...] = target_names()
    evidence: tuple[Evidence, ...] = ()

    def known(self, target: str) -> tuple[Evidence, ...]:
        """All that is known of its worth on a target."""
        return tuple(one for one in self.evidence if target in one.targets)

    def is_built_in(self, target: str) -> bool:
        """Whether builds for the target apply it unasked: models build, or were faster, only with it."""
        kinds = {one.kind for one in self.known(target)}
        return target in self.targets and not kinds.isdisjoint(("builds", "faster"))

    def quantizes(self, target: str) -> bool:
        """Whether quantising and `trtopt rewrite` apply it: builds do, or placement does more with it."""
        helps = any(one.kind == "stage" for one in self.known(target))
        return self.is_built_in(target) or (target in self.targets and helps)


def rule(what: str, exactness: Exactness, enables: str, **more: Any) -> Callable[[Find], Rule]:
    """Make a rule of a function that finds its matches, and call it like that."""
    return lambda find: Rule(find.__name__.replace("_", "-"), what, exactness, enables, find, **more)


def at(*ops: str) -> Callable[[Callable[[Scope, Any], Verdict | None]], Find]:
    """Look at each node of these operators (of any, without them); None: the pattern is not there."""

    def each(look: Callable[[Scope, Any], Verdict | None]) -> Find:
        @wraps(look)
        def find(scope: Scope) -> Iterator[Match]:
            for node in scope.nodes(*ops):
                verdict = look(scope, node)
                if verdict is not None:
                    yield Match(node, verdict)

        return find

    return each
