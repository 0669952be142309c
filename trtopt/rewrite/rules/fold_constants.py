"""Nodes that depend on constants only are computed once, during the rewrite.

ONNX Runtime evaluates the nodes; results above 1 MiB, random numbers, control flow and foreign operators
stay. Quantised weights keep their Q and DQ: TensorRT reads the scale and the type of a weight from them.
Shapes are folded by `fold-shapes`, what is fed by a large weight by `fold-weights`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.rewrite.evidence import layers, quantises
from trtopt.rewrite.rule import Match, Rule, Stage, always
from trtopt.rewrite.scope import STANDARD, Scope

SIZE_CAP = 1 << 20
IR_VERSION = 8
"""Of what is made to be evaluated: any that ONNX Runtime reads."""
_COMPUTED_CAP = 64 << 20  # a table that a few numbers are picked out of would fill the memory
_NEVER = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "RandomNormal",
    "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout", "If",
    "Loop", "Scan", "SplitToSequence", "ConcatFromSequence",
}  # fmt: skip
_STORED = "fiubO"  # what onnx-graphsurgeon writes: BF16 is none of it
_NO_TENSORS = ("Sequence", "Optional")


def may_evaluate(scope: Scope, node: Any) -> bool:
    """Whether the node may be evaluated, provided that its inputs are known."""
    odd = any(scope.is_constant(tensor) and scope.value(tensor) is None for tensor in node.inputs)
    kept = any(scope.is_fixed(out) for out in node.outputs)
    free = (
        node.op not in _NEVER and not node.op.startswith(_NO_TENSORS) and node.name not in scope.context.stuck
    )
    return free and node.domain in STANDARD and not (odd or kept)


def is_stored(scope: Scope, tensor: Any) -> bool:
    """Whether a constant of the tensor's type can be written, as far as the type is known."""
    dtype = scope.dtype(tensor)
    return tensor.dtype is None if dtype is None else dtype.kind in _STORED


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
    while unwritable := _unwritable_ends(scope, front):
        front = [node for node in front if id(node) not in unwritable]
    large = [node for node in front if result_bytes(scope, node) > SIZE_CAP]
    if len(front) > len(large):
        yield Match(next(node for node in front if node not in large), {"nodes": front, "kept": kept})


def _unwritable_ends(scope: Scope, front: Sequence[Any]) -> set[int]:
    """Nodes whose results others read, in a type that no constant can be written in."""
    inside = {id(node) for node in front}
    return {
        id(node)
        for node in front
        for out in node.outputs
        if not is_stored(scope, out) and not (out.outputs and all(id(user) in inside for user in out.outputs))
    }


def result_bytes(scope: Scope, node: Any) -> int:
    """What the node's results take, as far as their shapes are known."""
    return sum(_bytes(scope, out) for out in node.outputs)


def _bytes(scope: Scope, tensor: Any) -> int:
    dtype = scope.dtype(tensor)
    return math.prod(scope.static_shape(tensor) or ()) * (dtype.itemsize if dtype is not None else 4)


def _apply(scope: Scope, match: Match) -> None:
    nodes = match.parts["nodes"]
    made = {out.name: out for node in nodes for out in node.outputs if not out.is_empty()}
    inside = {id(node) for node in nodes}
    ends = [
        out for out in made.values() if not out.outputs or any(id(user) not in inside for user in out.outputs)
    ]
    found = _evaluated(scope, nodes, [out for out in ends if _bytes(scope, out) <= SIZE_CAP])
    values = {name: value for name, value in found.items() if value.nbytes <= SIZE_CAP}
    for name, value in values.items():
        if value.dtype.kind in _STORED:
            made[name].to_constant(value)
            made[name].inputs.clear()
    resisting = {node.name for node in nodes if node.outputs}
    if len(resisting) == len(nodes):
        scope.context.stuck |= resisting  # ONNX Runtime could evaluate none of them


def _evaluated(scope: Scope, nodes: Sequence[Any], ends: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """The values of `ends` or, where a node cannot be evaluated, of all that do not depend on one."""
    graph = gs.Graph(list(nodes), outputs=list(ends), opset=scope.opset, ir_version=IR_VERSION)
    proto = gs.export_onnx(graph, do_type_check=False)
    if not ends:
        return {}
    try:
        return _run(scope, proto)
    except ModelError:
        return _one_by_one(scope, proto)


def _one_by_one(scope: Scope, proto: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    found: dict[str, NDArray[Any]] = {}
    for node in proto.graph.node:
        reads, makes = ([name for name in names if name] for names in (node.input, node.output))
        if not known.keys() >= set(reads):
            continue
        single = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
        single.graph.name = node.name
        single.graph.node.append(node)
        single.graph.initializer.extend(known[name] for name in dict.fromkeys(reads))
        single.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, makes))
        with suppress(ModelError):
            values = _run(scope, single)
            known |= {name: onnx.numpy_helper.from_array(value, name) for name, value in values.items()}
            found |= values
    return found


def _run(scope: Scope, proto: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return Unoptimised(*runnable(ModelFile(proto, scope.context.folder, external=False))).run({})


RULE = Rule(
    "fold-constants",
    "B",
    "no shape or weight arithmetic in the engine",
    _find,
    always,
    _apply,
    stage=Stage.CLEANING,
    after=("fold-shapes",),
    evidence=(layers("no arithmetic at run time"), quantises("weights, scales and pads that are computed")),
)


def keeping(*ops: str) -> Rule:
    """The rule, but nodes of these operators stay."""
    return replace(RULE, find=partial(_find, kept=ops))
