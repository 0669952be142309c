"""What a rule is: a function that looks at a node, or at a graph; and what earns it a place in builds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeAlias

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


# ── what is known of a rule's worth on a target, each with its source ──────────────────────────────────────

Kind = Literal["builds", "faster", "stage", "layers"]
"""`builds`: models import, build, or have the right sizes only with the rule; `faster`: engines measured
with it and without; `stage`: a later stage does more with it; `layers`: what the engine inspector lists."""

AUDIT = "benchmarks/fusion-audit/layers.json"
AUDIT_RTX = "benchmarks/fusion-audit/layers-rtx.json"
ALONE = "benchmarks/plain/results/rnnt-prediction-1.json"
RULES_ALONE = "benchmarks/plain/results-rules/rules.json"
MERGED = "benchmarks/kernels/results-forms/merged-8.turns.json"
STAGES = "tests/unit/rewrite/test_evidence.py"
PARSER_8_6 = "https://github.com/onnx/onnx-tensorrt/blob/release/8.6-GA/builtin_op_importers.cpp"
OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/release/10.1-GA/docs/operators.md"
OPERATORS_8_6 = "https://github.com/onnx/onnx-tensorrt/blob/release/8.6-GA/docs/operators.md"
BUILD_TESTS = "tests/cpu/test_build_rewrite.py"

AUDITED = ("8.6",)
"""The target of the audit and of all that was measured."""
BUILT_HERE, DOCUMENTED = ("rtx",), ("10", "11")
"""Targets that were audited without a GPU, and those of which documents alone are known."""


@dataclass(frozen=True)
class Evidence:
    """One finding for the targets named; `source` is a file of the repository or an address."""

    kind: Kind
    targets: tuple[str, ...]
    shows: str
    source: str


def builds(shows: str, targets: tuple[str, ...] = AUDITED, source: str = AUDIT) -> Evidence:
    """What TensorRT refuses, or gets wrong, without the rule."""
    return Evidence("builds", targets, shows, source)


def layers(shows: str) -> Evidence:
    """What the fusion audit found in engines of TensorRT 8.6 on an H200."""
    return Evidence("layers", AUDITED, shows, AUDIT)


def faster(shows: str, source: str = ALONE) -> Evidence:
    """What an engine of TensorRT 8.6 gained by the rule alone."""
    return Evidence("faster", AUDITED, shows, source)


def quantizes(shows: str) -> Evidence:
    """What Q/DQ placement does only with the rule, by itself or by what it enables, whatever the target."""
    return Evidence("stage", target_names(), shows, STAGES)


# ── rules ───────────────────────────────────────────────────────────────────────────────────────────────────


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
