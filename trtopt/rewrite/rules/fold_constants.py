"""What depends on constants alone is computed once, here.

ONNX Runtime evaluates the nodes, driven by onnx-graphsurgeon; results above 1 MiB, random numbers, control
flow and foreign operators stay. Quantised weights keep their Q and DQ: TensorRT reads the scale and the type
of a weight from them. Shapes are folded by `fold-shapes`, what is fed by a large weight by `fold-weights`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from trtopt.device.reference import hush
from trtopt.rewrite.rule import Match, Rule, always
from trtopt.rewrite.scope import STANDARD, Scope

SIZE_CAP = 1 << 20
_COMPUTED_CAP = 64 << 20  # a table that a few numbers are picked out of would fill the memory
_NEVER = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "RandomNormal",
    "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout", "If",
    "Loop", "Scan", "SplitToSequence", "ConcatFromSequence",
}  # fmt: skip
_NO_TENSORS = ("Sequence", "Optional")


def may_evaluate(scope: Scope, node: Any) -> bool:
    """Whether the node may be evaluated, provided that its inputs are known."""
    odd = any(scope.is_constant(tensor) and scope.value(tensor) is None for tensor in node.inputs)
    kept = any(scope.is_fixed(out) for out in node.outputs)
    free = (
        node.op not in _NEVER and not node.op.startswith(_NO_TENSORS) and node.name not in scope.context.stuck
    )
    return free and node.domain in STANDARD and not (odd or kept)


def _foldable(scope: Scope, node: Any, kept: tuple[str, ...]) -> bool:
    """Whether the node may be evaluated, reads no large weight, makes nothing huge and is none of `kept`."""
    heavy = any(scope.is_constant(tensor) and not scope.is_small(tensor) for tensor in node.inputs)
    huge = result_bytes(scope, node) > _COMPUTED_CAP
    return not (heavy or huge) and node.op not in kept and may_evaluate(scope, node)


def _find(scope: Scope, kept: tuple[str, ...] = ()) -> Iterator[Match]:
    known: set[int] = set()
    front = []
    for node in scope.nodes():
        inputs = [tensor for tensor in node.inputs if not tensor.is_empty()]
        given = all(scope.is_constant(item) or id(item) in known for item in inputs)
        if given and _foldable(scope, node, kept):
            known |= {id(out) for out in node.outputs}
            front.append(node)
    large = [node for node in front if result_bytes(scope, node) > SIZE_CAP]
    if len(front) > len(large):
        yield Match(next(node for node in front if node not in large), {"nodes": front, "kept": kept})


def result_bytes(scope: Scope, node: Any) -> int:
    """What the node's results take, as far as their shapes are known."""
    total = 0
    for out in node.outputs:
        shape, dtype = scope.static_shape(out), scope.dtype(out)
        count = 1
        for axis in shape or ():
            count *= axis
        total += count * (dtype.itemsize if dtype is not None else 4)
    return total


def _apply(scope: Scope, match: Match) -> None:
    hush()
    fold = partial(
        scope.graph.fold_constants,
        fold_shapes=False,
        recurse_subgraphs=False,
        recurse_functions=False,
        flatten_subgraphs=False,
        size_threshold=SIZE_CAP,
        should_exclude_node=lambda node: not _foldable(scope, node, match.parts["kept"]),
    )
    try:
        fold(error_ok=False)
    except Exception:  # noqa: BLE001  (one that ONNX Runtime cannot evaluate spoils all)
        fold(partitioning="recursive")  # one by one, each in a copy of the graph
    resisting = {node.name for node in match.parts["nodes"] if node.outputs}
    if len(resisting) == len(match.parts["nodes"]):
        scope.context.stuck |= resisting  # ONNX Runtime could evaluate none of them


RULE = Rule(
    "fold-constants",
    "B",
    "no shape or weight arithmetic in the engine",
    _find,
    always,
    _apply,
    audit="8.6: no arithmetic at run time",
)


def keeping(*ops: str) -> Rule:
    """The rule, but nodes of these operators stay."""
    return replace(RULE, find=partial(_find, kept=ops))
