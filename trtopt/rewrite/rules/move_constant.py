"""Slice, Split, Concat, Squeeze or Unsqueeze of constants → the resulting constants, also for large weights.

Exporters put an LSTM's gates in ONNX's order this way, and take packed projections of attention apart.
Elements only move, and the model grows no larger if nothing else needs what went in: a weight is cut up only
if all that read it cut it up too, into parts that together are no larger. TensorRT then sees a weight where
it wants one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.axes import FAR
from trtopt.rewrite.evidence import faster, layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Array, Scope


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Slice", "Split", "Concat", "Squeeze", "Unsqueeze"):
        weights = _weights(node)
        all_constant = all(scope.is_constant(tensor) for tensor in node.inputs if not tensor.is_empty())
        if all_constant and not all(scope.is_small(tensor) for tensor in weights):
            yield Match(node, {"weights": weights})


def _weights(node: Any) -> list[Any]:
    """The inputs whose elements move; the others say how."""
    return list(node.inputs) if node.op == "Concat" else list(node.inputs[:1])


def _check(scope: Scope, match: Match) -> str | None:
    node, weights = match.node, match.parts["weights"]
    if any(scope.value(tensor) is None for tensor in weights):
        return "its type is none of NumPy's"
    if node.op == "Slice" and _sliced(scope, node, np.asarray(scope.value(weights[0]))) is None:
        return "it counts backwards to an end that runtimes read differently"
    if not all(_is_used_up(scope, node, tensor) for tensor in weights):
        return "the weight is used elsewhere too: a second copy would cost its size"
    if node.op == "Split" and any(scope.is_fixed(out) for out in node.outputs):
        return "a part is an output of the graph, whose name must stay"
    return scope.why_not_bypass(node, weights[0])


def _is_used_up(scope: Scope, node: Any, weight: Any) -> bool:
    """Whether the weight can go once `node` and those like it have gone."""
    if scope.is_small(weight) or len(weight.outputs) == 1:
        return True
    if not all(scope.is_one_of(user, "Slice") and user.inputs[0] is weight for user in weight.outputs):
        return False
    if not scope.is_read_only_here(weight) or any(scope.is_fixed(user.outputs[0]) for user in weight.outputs):
        return False
    value = scope.value(weight)
    parts = [None if value is None else _sliced(scope, user, value) for user in weight.outputs]
    return (
        value is not None and sum(value.nbytes + 1 if p is None else p.nbytes for p in parts) <= value.nbytes
    )


def _sliced(scope: Scope, node: Any, value: Array) -> Array | None:
    """What a Slice takes, as a view; None if its bounds are computed or unclear."""
    starts, ends, axes, steps = (
        scope.integers(node, name, position)
        for position, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None or not all(scope.is_constant(tensor) for tensor in node.inputs[1:]):
        return None
    cuts = [slice(None)] * value.ndim
    bounds = zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True)
    for axis, start, end, step in bounds:
        if step < 0 and end >= FAR:
            return None
        cuts[axis] = slice(start, end, step)
    return value[tuple(cuts)]


def _split(scope: Scope, node: Any, value: Array) -> list[Array]:
    """The parts that a Split makes; without lengths they are equal, but for the last."""
    axis = node.attrs.get("axis", 0)
    lengths = scope.integers(node, "split", 1) or [-(-value.shape[axis] // len(node.outputs))] * len(
        node.outputs
    )
    return np.split(value, np.cumsum(lengths)[:-1], axis)


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    values = [value for tensor in match.parts["weights"] if (value := scope.value(tensor)) is not None]
    axes = scope.integers(node, "axes", 1)
    made: Any
    if node.op == "Split":
        for out, part in zip(node.outputs, _split(scope, node, values[0]), strict=True):
            scope.rewire(out, scope.constant(part, out.name))
        scope.kill(node)
        return
    if node.op == "Slice":
        made = _sliced(scope, node, values[0])
    elif node.op == "Concat":
        made = np.concatenate(values, axis=node.attrs["axis"])
    elif node.op == "Squeeze":
        made = np.squeeze(values[0], axis=None if axes is None else tuple(axes))
    else:
        made = np.expand_dims(values[0], tuple(axes or ()))
    scope.bypass(node, scope.constant(made, node.outputs[0].name))


RULE = Rule(
    "move-constant",
    "B",
    "weights where TensorRT wants them",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("erase-arithmetic",),
    evidence=(
        faster("rnnt-prediction -30.7% at 1 by this rule alone"),
        layers("four layers instead of ten"),
        quantises("products whose weights are cut out of others"),
    ),
)
