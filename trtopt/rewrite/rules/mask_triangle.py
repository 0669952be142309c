"""Cast(c)·Trilu(ones) → Trilu(Cast(c)), where c is BOOL and its last two axes are the triangle's.

A flag is 0 or 1: times 1 it stays and times 0 it is 0, which Trilu writes there by itself. Of other numbers
the negative would give −0, ∞ and NaN NaN. Cleaning only, for triangles above 1 MiB, which `fold-constants`
leaves: TensorRT-RTX makes as many layers of either and stores none. Not for TensorRT 8.6, whose Trilu takes
two or three axes alone, and batches of masks have more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtopt.rewrite.match import inputs_either_way, is_filled_with
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope
from trtopt.targets import targets_where


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Mul"):
        for flags, mask in inputs_either_way(node):
            triangle = scope.producer(mask, "Trilu")
            if triangle is not None and is_filled_with(scope, triangle.inputs[0], 1):
                yield Match(node, {"flags": flags, "triangle": triangle})
                break


def _check(scope: Scope, match: Match) -> str | None:
    flags, triangle = match.parts["flags"], match.parts["triangle"]
    cast, size = scope.producer(flags, "Cast"), scope.static_shape(triangle.outputs[0])
    if cast is None or scope.dtype(cast.inputs[0]) != np.bool_:
        return "it is multiplied with other numbers than 0 and 1, some of which times 0 may not be 0"
    if size is None or flags.shape is None or len(size) != 2 or size != tuple(flags.shape[-2:]):
        return "the triangle is not known to be as large as the last two axes of what it is multiplied with"
    if scope.only_use(triangle.outputs[0]) is None:
        return "the triangle is used elsewhere too"
    return None


def _apply(scope: Scope, match: Match) -> None:
    flags, triangle = match.parts["flags"], match.parts["triangle"]
    scope.replace(match.node, "Trilu", [flags, *triangle.inputs[1:]], triangle.attrs)


RULE = Rule(
    "mask-triangle",
    "B",
    "",
    _find,
    _check,
    _apply,
    stage=Stage.SELECTION,
    after=("where-not",),
    default=targets_where(lambda target: target.trilu_of_any_rank),
)
