"""What depends on constants and known shapes alone is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import DRAWN, DisjointNames
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.rewrite.match import pick_axes
from trtopt.rewrite.rule import (
    BUILD_TESTS,
    BUILT_HERE,
    DOCUMENTED,
    OPERATORS,
    OPERATORS_8_6,
    Match,
    Rule,
    Verdict,
    at,
    builds,
    faster,
    layers,
    quantizes,
    rule,
)
from trtopt.rewrite.scope import STANDARD, Scope


@rule(
    "Shape(x) whose axes are known → a constant; also Gather or Slice of known axes out of a Shape",
    "B",
    "no shape layers",
    evidence=(layers("does it itself"), quantizes("pads that are computed of shapes go into convolutions")),
)
@at("Shape", "Gather", "Slice")
def fold_shapes(scope: Scope, node: Any) -> Verdict | None:
    """Honours Shape's `start` and `end` (opset 15). Axes that stay dynamic stay computed."""
    out = node.outputs[0]
    picked = None if scope.is_fixed(out) else pick_axes(scope, node)
    if picked is None:
        return None
    source, places = picked
    if not all(isinstance(source.shape[place], int) for place in np.ravel(places)):
        return None
    if not all(scope.is_constant(tensor) for tensor in node.inputs[1:] if not tensor.is_empty()):
        return "an index is computed"
    value = np.asarray(np.array(source.shape, dtype=object)[places], np.int64)
    return lambda: scope.bypass(node, scope.constant(value, out.name))


# ── fold-constants ─────────────────────────────────────────────────────────────────────────────────────────

SIZE_CAP = 1 << 20
IR_VERSION = 8
"""Of what is made to be evaluated: any that ONNX Runtime reads."""
_COMPUTED_CAP = 64 << 20  # a table that a few numbers are picked out of would fill the memory
_NEVER = {
    *DRAWN, "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "Dropout", "If",
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


def _foldable(scope: Scope, node: Any) -> bool:
    """Whether the node may be evaluated, reads no large weight and makes nothing huge."""
    heavy = any(scope.is_constant(tensor) and not scope.is_small(tensor) for tensor in node.inputs)
    huge = result_bytes(scope, node) > _COMPUTED_CAP
    return not (heavy or huge) and may_evaluate(scope, node)


def _constant_nodes(scope: Scope, may_fold: Callable[[Scope, Any], bool]) -> dict[str, Any]:
    """The nodes that depend on constants and on one another alone, in order, by name."""
    known: dict[str, Any] = {}
    for node in scope.nodes():
        made = [item for item in node.inputs if not (item.is_empty() or scope.is_constant(item))]
        makers = [scope.producer(item) for item in made]
        if may_fold(scope, node) and all(maker is not None and maker.name in known for maker in makers):
            known[node.name] = node
    return known


@rule(
    "Nodes that depend on constants only are computed once, during the rewrite",
    "B",
    "no shape or weight arithmetic in the engine",
    evidence=(layers("no arithmetic at run time"), quantizes("weights, scales and pads that are computed")),
)
def fold_constants(scope: Scope) -> Iterator[Match]:
    """ONNX Runtime evaluates the nodes; large results, random numbers, control flow, foreign operators stay.

    Large are more than 1 MiB. Quantised weights keep their Q and DQ: TensorRT reads the scale and the type of
    a weight from them. Shapes are folded by `fold-shapes`, what is fed by a large weight by `fold-weights`.
    """
    front = [*_constant_nodes(scope, _foldable).values()]
    while unwritable := {id(out.inputs[0]) for out in _ends(front) if not is_stored(scope, out)}:
        front = [node for node in front if id(node) not in unwritable]
    large = [node for node in front if result_bytes(scope, node) > SIZE_CAP]
    if len(front) > len(large):
        first = next(node for node in front if node not in large)
        yield Match(first, partial(_evaluate, scope, front))


def _ends(nodes: Sequence[Any]) -> list[Any]:
    """The results of nodes that not only these nodes read."""
    inside, made = {id(node) for node in nodes}, (out for node in nodes for out in node.outputs)
    return [out for out in made if not out.outputs or any(id(user) not in inside for user in out.outputs)]


def result_bytes(scope: Scope, node: Any) -> int:
    """What the node's results take, as far as their shapes are known."""
    return sum(_bytes(scope, out) for out in node.outputs)


def _bytes(scope: Scope, tensor: Any) -> int:
    dtype = scope.dtype(tensor)
    return math.prod(scope.static_shape(tensor) or ()) * (dtype.itemsize if dtype is not None else 4)


def _evaluate(scope: Scope, nodes: Sequence[Any]) -> None:
    made = {out.name: out for node in nodes for out in node.outputs if not out.is_empty()}
    ends = [out for out in _ends(nodes) if not out.is_empty() and _bytes(scope, out) <= SIZE_CAP]
    found = _evaluate_ends(scope, nodes, ends)
    values = {name: value for name, value in found.items() if value.nbytes <= SIZE_CAP}
    for name, value in values.items():
        if value.dtype.kind in _STORED:
            made[name].to_constant(value)
            made[name].inputs.clear()
    resisting = {node.name for node in nodes if node.outputs}
    if len(resisting) == len(nodes):
        scope.context.stuck |= resisting  # ONNX Runtime could evaluate none of them


def _evaluate_ends(scope: Scope, nodes: Sequence[Any], ends: Sequence[Any]) -> dict[str, NDArray[Any]]:
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


# ── fold-bias ──────────────────────────────────────────────────────────────────────────────────────────────


@rule(
    "DequantizeLinear of a bias in INT32 → the bias in floating point",
    "B",
    "models that ONNX Runtime has quantised",
    evidence=(
        builds("documented: it dequantises INT8 alone", source=OPERATORS_8_6),
        builds("refuses INT32", BUILT_HERE, BUILD_TESTS),
        builds("documented: it dequantises INT8, FP8 and INT4", DOCUMENTED, OPERATORS),
    ),
)
@at("DequantizeLinear")
def fold_bias(scope: Scope, node: Any) -> Verdict | None:
    """ONNX Runtime stores a bias in steps of the product's scales; TensorRT adds it in floating point."""
    if scope.dtype(node.inputs[0]) != np.int32:
        return None
    if scope.is_fixed(node.outputs[0]):
        return "its output is an output of the graph"
    if not all(scope.is_constant(tensor) for tensor in node.inputs if not tensor.is_empty()):
        return "it is computed"
    if result_bytes(scope, node) > SIZE_CAP:
        return "it is no bias: it is larger than 1 MiB"
    return partial(_evaluate, scope, [node])


# ── fold-weights ───────────────────────────────────────────────────────────────────────────────────────────


_WIDEST = 8
"""How much larger FP32 is than the narrowest type that weights are stored in."""


@rule(
    "What depends on large weights only → the resulting weights, where the model grows no larger",
    "B",
    "weights where TensorRT and INT8 want them",
    evidence=(
        builds("no convolution with computed weights without it"),
        faster("rnnt-prediction -30.7% at 1 by this rule alone"),
        layers("four layers instead of ten where weights are cut up and joined"),
        quantizes("convolutions and products whose weights are computed, or cut out of others"),
    ),
)
def fold_weights(scope: Scope, *, may_grow: bool = False) -> Iterator[Match]:
    """Weight normalisation and standardised convolutions leave such nodes behind.

    Exporters put an LSTM's gates in ONNX's order by them, and take packed projections of attention apart.
    TensorRT computes them at every build, but folding, casting and quantising before the build need the
    result. Results up to 1 MiB are stored in any case, larger ones if together they take the place of the
    weights that they are made of. ONNX Runtime evaluates the nodes; what it cannot stays, and so do Q and DQ
    (see `fold-constants`).
    """
    known = _constant_nodes(scope, may_evaluate)
    for nodes, weights in _connect(scope, known):
        results = [out for out in _ends(nodes) if out.outputs]
        first = next((out.inputs[0] for out in results if is_stored(scope, out)), None)
        if weights and first is not None:
            scope.at = first.name
            yield Match(first, _fold(scope, nodes, weights, results, may_grow))


def growing_weights() -> Rule:
    """The rule where the model may grow, up to weights as wide as FP32."""
    return replace(fold_weights, find=partial(fold_weights.find, may_grow=True))


def _connect(scope: Scope, known: Mapping[str, Any]) -> Iterable[tuple[list[Any], list[Any]]]:
    """Nodes that read one another or the same large weights, in order, and these weights."""
    weights = {
        f"weight {id(item)}": item
        for node in known.values()
        for item in node.inputs
        if scope.is_constant(item) and not scope.is_small(item)
    }
    groups = DisjointNames((*known, *weights))
    for name, node in known.items():
        makers = [scope.producer(item) for item in node.inputs]
        groups.join(name, *(maker.name for maker in makers if maker is not None))
        groups.join(name, *(key for item in node.inputs if (key := f"weight {id(item)}") in weights))
    found: dict[str, tuple[list[Any], list[Any]]] = {groups.root(name): ([], []) for name in known}
    for name, node in known.items():
        found[groups.root(name)][0].append(node)
    for key, item in weights.items():
        found[groups.root(key)][1].append(item)
    return found.values()


def _fold(
    scope: Scope, nodes: Sequence[Any], weights: Sequence[Any], results: Sequence[Any], may_grow: bool
) -> Verdict:
    sizes = {
        out.name: _bytes(scope, out)
        for out in results
        if is_stored(scope, out) and scope.static_shape(out) is not None
    }
    if not sizes:
        return "the size of the result is not known"
    inside, total = {id(node) for node in nodes}, sum(sizes.values())
    own = len(sizes) == len(results) and all(
        id(user) in inside for weight in weights for user in weight.outputs
    )
    given = sum(weight._values.nbytes for weight in weights)
    fits = total <= _WIDEST * given if may_grow else own and total <= given
    made = [out for out in results if out.name in sizes and (fits or sizes[out.name] <= SIZE_CAP)]
    if not made:
        return (
            "the result would be stored in addition to the weight, which is used elsewhere too or is smaller"
        )
    graph = gs.Graph(nodes, outputs=made, opset=scope.opset, ir_version=IR_VERSION)
    try:
        values = _run(scope, gs.export_onnx(graph, do_type_check=False))
    except ModelError as error:
        return error.problem

    def apply() -> None:
        for out in made:
            scope.rewire(out, scope.constant(values[out.name], out.name))

    return apply
