"""A model with other types and layouts of inputs and outputs, verified against the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtopt.data import feeds
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import attribute, graphs_of, names_in, opset_of, refill, rename_uses, take_name
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.onnxio.shape_inference import FLOATS
from trtopt.printable import counted
from trtopt.records.tensors import IoRequest, TypedTensor
from trtopt.rewrite import equivalence
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.rewrite.typed_io.requested import (
    TO_NCHW,
    TO_NHWC,
    Edit,
    constant_in,
    edits_for,
    readers_of,
    record,
    recorded_in,
    shape_of,
)

Array = np.ndarray[Any, Any]
_BF16_OPSET = 13
"""The least in which Cast knows BF16."""
_BROADCAST_OPSET = 7
"""The least in which arithmetic broadcasts as it does today."""


@dataclass(frozen=True)
class TypedGraph:
    """The graph with its new inputs and outputs, what they are, and the verification."""

    model: ModelFile
    tensors: tuple[TypedTensor, ...] = ()
    checked: tuple[Deviation, ...] = ()


def type_graph(
    model: ModelFile, request: IoRequest, *, data: str | Path | None = None, check: bool = True
) -> TypedGraph:
    """The model with the requested types, layouts and normalisation, run against the original.

    INT8 tensors get their layout alone here; see `move_quantization`. `data` has the new inputs.
    """
    made = replace(model, proto=deepcopy(model.proto))
    recorded = {one.name: one for one in recorded_in(model.proto)}
    edits = list(edits_for(made, request, recorded))
    _apply(made.proto, edits)
    tensors = tuple(edit.tensor for edit in edits)
    checked = verify(model, made, tensors, data) if check and tensors else ()
    for one in tensors:
        known = recorded.get(one.name)
        recorded[one.name] = msgspec.structs.replace(known, layout=one.layout) if known else one
    if tensors:
        record(made.proto, recorded.values())
    return TypedGraph(made, tuple(recorded.values()), checked)


def type_reference(model: ModelFile, tensors: Sequence[TypedTensor]) -> ModelFile:
    """The original model with the inputs and outputs of one that was made of it, as a reference for that.

    What it has so already stays.
    """
    made = replace(model, proto=deepcopy(model.proto))
    values = {item.name: item for item in (*made.proto.graph.input, *made.proto.graph.output)}
    same = {one.name for one in recorded_in(model.proto)}
    edits = [Edit(one, values[one.name]) for one in tensors if one.name not in same and one.name in values]
    _apply(made.proto, [edit for edit in edits if edit.held == edit.tensor.model_dtype])
    return made


def _apply(model: onnx.ModelProto, edits: Sequence[Edit]) -> None:
    """Write changes into the graph, in place, after raising its opset if that lacks what they need."""
    takes_bf16 = any(edit.tensor.dtype == "bfloat16" for edit in edits)
    if edits and opset_of(model) < (_BF16_OPSET if takes_bf16 else _BROADCAST_OPSET):
        raise_opset(model, _BF16_OPSET)
    for edit in edits:
        (_type_input if edit.tensor.role == "input" else _type_output)(model.graph, edit)


# ── the nodes that give an input or output another type or layout ─────────────────────────────────────────
#
# An input becomes input → Cast → Transpose → (x - mean) · 1/std → the model's own input; an output the
# reverse. `fold-scale-before` then folds the arithmetic into the first convolution where that is exact.


class _Chain:
    """Nodes one after the other, with names that the graph does not have."""

    def __init__(self, graph: GraphProto, like: str) -> None:
        self._graph, self._like = graph, like
        self._taken = names_in(graph) | {node.name for part in graphs_of(graph) for node in part.node}
        self.nodes: list[NodeProto] = []

    def name(self, what: str) -> str:
        """A new name of the tensor's."""
        return take_name(f"{self._like}/{what}", self._taken)

    def add(self, op: str, source: str, *more: str, **attributes: Any) -> str:
        """Append a node; returns its output."""
        target = self.name(op.lower())
        node = helper.make_node(op, [source, *more], [target], name=self.name(op), **attributes)
        self.nodes.append(node)
        return target

    def constant(self, values: Array | np.generic, what: str) -> str:
        """A new initializer."""
        name = self.name(what)
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name


def _retype(value: ValueInfoProto, dtype: int, *, nhwc: bool) -> None:
    kind = value.type.tensor_type
    kind.elem_type = dtype
    if nhwc:
        refill(kind.shape.dim, [kind.shape.dim[axis] for axis in TO_NHWC])


def _keep_value(graph: GraphProto, value: ValueInfoProto, name: str) -> None:
    """What was known of the tensor stays known under its new name."""
    refill(graph.value_info, [item for item in graph.value_info if item.name != value.name])
    kept = graph.value_info.add()
    kept.CopyFrom(value)
    kept.name = name


def _type_input(graph: GraphProto, edit: Edit) -> None:
    """Make the new input, and the model's own of it, in place."""
    tensor, value = edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc and not tensor.mean:
        return
    chain = _Chain(graph, tensor.name)
    last, current = tensor.name, given
    computed = TensorProto.FLOAT if tensor.mean or tensor.scale is not None else held
    if current != computed:
        last, current = chain.add("Cast", last, to=computed), computed
    if tensor.scale is not None:
        last = chain.add("Mul", last, chain.constant(np.float32(tensor.scale), "scale"))
    if nhwc:
        last = chain.add("Transpose", last, perm=TO_NCHW)
    if tensor.mean:
        axes = (-1, *[1] * (len(shape_of(value) or ()) - 2)) if len(tensor.mean) > 1 else ()
        mean, factor = (
            np.asarray(numbers, np.float64).astype(np.float32).reshape(axes)
            for numbers in (tensor.mean, [1.0 / one for one in tensor.std])
        )
        if any(tensor.mean):
            last = chain.add("Sub", last, chain.constant(mean, "mean"))
        last = chain.add("Mul", last, chain.constant(factor, "factor"))
    if current != held:
        last = chain.add("Cast", last, to=held)
    rename_uses(graph, {tensor.name: last}, makers=False)
    _keep_value(graph, value, last)
    for place, node in enumerate(chain.nodes):
        graph.node.insert(place, node)
    _retype(value, given, nhwc=nhwc)


def _type_output(graph: GraphProto, edit: Edit) -> None:
    """Make the new output of the model's own, in place."""
    tensor, value = edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc:
        return
    chain = _Chain(graph, tensor.name)
    own = chain.name("computed")
    rename_uses(graph, {tensor.name: own}, makers=True)
    _keep_value(graph, value, own)
    last = chain.add("Transpose", own, perm=TO_NHWC) if nhwc else own
    if tensor.scale is not None:
        scale, zero = chain.constant(np.float32(tensor.scale), "scale"), chain.constant(np.int8(0), "zero")
        chain.add("QuantizeLinear", last, scale, zero)
    elif given != held:
        chain.add("Cast", last, to=given)
    chain.nodes[-1].output[0] = tensor.name
    graph.node.extend(chain.nodes)
    _retype(value, given, nhwc=nhwc)


# ── verification against the original ─────────────────────────────────────────────────────────────────────


def to_model(array: Array, tensor: TypedTensor, *, only_type: bool = False) -> Array:
    """What the graph makes of a new input before the model's own input, by NumPy."""
    if tensor.scale is not None:
        array = array.astype(np.float32) * np.float32(tensor.scale)
    if tensor.layout == "nhwc" and not only_type:
        array = array.transpose(TO_NCHW)
    if tensor.mean and not only_type:
        axes = (-1, *[1] * (array.ndim - 2)) if len(tensor.mean) > 1 else ()
        mean, std = (np.asarray(numbers).reshape(axes) for numbers in (tensor.mean, tensor.std))
        array = (array.astype(np.float64) - mean) / std
    return np.asarray(array.astype(numpy_dtype(tensor.model_dtype)), order="C")


def _from_model(array: Array, tensor: TypedTensor | None, *, only_type: bool) -> Array:
    """What the new output must be, given the model's own."""
    if tensor is None:
        return array
    if tensor.scale is not None:
        levels = np.rint(array.astype(np.float32) / np.float32(tensor.scale))
        quantized: Array = np.clip(levels, -128, 127).astype(np.int8)
        return quantized
    moved = array.transpose(TO_NHWC) if tensor.layout == "nhwc" and not only_type else array
    dtype = tensor.model_dtype if tensor.dtype == "int8" else tensor.dtype
    with np.errstate(over="ignore"):  # told by `_overflow`
        return np.asarray(moved.astype(numpy_dtype(dtype)), order="C")


def _overflow(feed: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> str | None:
    """The output whose new type does not hold the model's values, in words."""
    for name, array in before.items():
        narrow = after[name]
        if narrow.dtype.kind in "fV" and np.isfinite(array).all() and not np.isfinite(narrow).all():
            largest = float(np.abs(array.astype(np.float32)).max())
            return f"--io {name}: the output reaches {largest:.6g}, beyond {narrow.dtype} ({feed})"
    return None


def verify(
    before: ModelFile,
    after: ModelFile,
    tensors: Sequence[TypedTensor],
    data: str | Path | None,
    *,
    only_type: bool = False,
) -> tuple[Deviation, ...]:
    """The new model on new inputs against the old one on the converted ones.

    16-bit arithmetic is emulated in both: ONNX Runtime rounds it in other places once a Q is gone, and a
    level of INT8 that flips for that is no error of ours. A Q that moves changes no bit then.
    """
    old, new = (in_fp32(replace(model, spool=None)) for model in (before, after))
    by_name = {one.name: one for one in tensors}
    real = () if data is None else (feeds.from_data(data, after.proto),)

    def run(seeded: Sequence[feeds.Feed]) -> tuple[tuple[Deviation, ...], list[str]]:
        given = (*seeded, *real)
        converted = [
            replace(
                feed,
                values={
                    name: to_model(array, by_name[name], only_type=only_type) if name in by_name else array
                    for name, array in feed.values.items()
                },
            )
            for feed in given
        ]
        computed = equivalence.run(old, converted)
        reference = [
            {
                name: _from_model(array, by_name.get(name), only_type=only_type)
                for name, array in outputs.items()
            }
            for outputs in computed
        ]
        found = equivalence.compare(reference, new, given, "B" if only_type else "N", emulated=True)
        if any(item.error == float("inf") for item in found):
            equivalence.run(new, given)  # raises the reason, if it does not run
        decisive = {feed.name for feed in real or given}
        overflows = [
            _overflow(feed.name, *outputs)
            for feed, *outputs in zip(given, computed, reference, strict=True)
            if feed.name in decisive
        ]
        return found, list(filter(None, overflows))

    checked, overflows = feeds.on_seeded(after.proto, run, spared=bool(real))
    if overflows:
        raise ModelError(
            overflows[0], "leave it in fp32, or request bf16" + ("" if real else "; --data gives real inputs")
        )
    worst = max(checked, key=lambda item: item.error)
    if not all(item.ok for item in checked):
        raise ModelError(
            f"output {worst.output!r} moved by {worst.error:.3g} with the requested inputs and outputs, "
            f"beyond its bound {worst.bound:.3g} ({worst.feed})",
            "please report the model; build it without --io and --normalize",
        )
    return checked


def describe(tensors: Sequence[TypedTensor], checked: Sequence[Deviation]) -> list[str]:
    """A line for each tensor, and what the verification found."""
    lines = [str(one) for one in tensors]
    if checked:
        worst = max(item.error for item in checked)
        runs = len({item.feed for item in checked})
        lines.append(f"inputs and outputs verified on {counted(runs, 'input')}: largest error {worst:.3g}")
    return lines


# ── INT8: Q and DQ move from the quantised graph to the caller ─────────────────────────────────────────────


def move_quantization(model: ModelFile, tensors: Sequence[TypedTensor], *, check: bool = True) -> TypedGraph:
    """A quantised model whose INT8 inputs and outputs are quantised by the caller: with their scales."""
    floats = {
        item.name
        for item in (*model.proto.graph.input, *model.proto.graph.output)
        if item.type.tensor_type.elem_type in FLOATS
    }
    wanted = [one for one in tensors if one.dtype == "int8" and one.name in floats]
    if not wanted:
        return TypedGraph(model, tuple(tensors))
    made = replace(model, proto=deepcopy(model.proto))
    scales = {
        one.name: (_without_q if one.role == "input" else _without_dq)(made, one.name) for one in wanted
    }
    after = tuple(msgspec.structs.replace(one, scale=scales.get(one.name, one.scale)) for one in tensors)
    moved = tuple(one for one in after if one.name in scales)
    checked = verify(model, made, moved, None, only_type=True) if check else ()
    record(made.proto, after)
    return TypedGraph(made, after, checked)


def _scale_of(model: ModelFile, node: NodeProto) -> float | None:
    """The scale of a Q or DQ of one symmetric INT8 scale; None for any other."""
    scale = constant_in(model, node.input[1])
    zero = constant_in(model, node.input[2]) if len(node.input) > 2 else None
    if zero is None or zero.dtype != np.int8 or zero.any() or scale is None or scale.size != 1:
        return None
    return float(scale.reshape(()))


def _outputs(graph: GraphProto) -> set[str]:
    return {item.name for part in graphs_of(graph) for item in part.output}


def _only_moves(node: NodeProto) -> bool:
    """Whether INT8 values pass through a node as floats do."""
    if node.op_type == "Cast":
        return attribute(node, "to") in FLOATS
    return node.op_type in ("Transpose", "Identity")


def _value_readers(graph: GraphProto, name: str) -> list[NodeProto]:
    """The nodes that read a tensor's values, not its shape alone, which is that of any type."""
    return [node for node in readers_of(graph, name) if node.op_type not in ("Shape", "Size")]


def _behind(graph: GraphProto, name: str) -> tuple[list[NodeProto], str, list[NodeProto]]:
    """The casts and transposes of an input, what they make of it, and what reads that."""
    passed, last, outputs = list[NodeProto](), name, _outputs(graph)
    while True:
        readers = _value_readers(graph, last)
        if len(readers) != 1 or not _only_moves(readers[0]) or last in outputs:
            return passed, last, readers
        passed.append(readers[0])
        last = readers[0].output[0]


def _before(graph: GraphProto, name: str) -> tuple[list[NodeProto], NodeProto | None]:
    """The casts and transposes that make an output, the last first, and what makes their input."""
    passed, first, outputs = list[NodeProto](), name, _outputs(graph)
    while True:
        maker = next((node for node in graph.node if first in node.output), None)
        if maker is None or not _only_moves(maker):
            return passed, maker
        first = maker.input[0]
        if len(_value_readers(graph, first)) != 1 or first in outputs:
            return passed, maker
        passed.append(maker)


def _without_q(model: ModelFile, name: str) -> float:
    """Make the input INT8, its Q taken out; casts and transposes in front of it stay, in INT8."""
    graph = model.proto.graph
    passed, last, readers = _behind(graph, name)
    scales = {_scale_of(model, node) if node.op_type == "QuantizeLinear" else None for node in readers}
    found = scales.pop() if len(scales) == 1 and last not in _outputs(graph) else None
    if found is None:
        other = next((node for node in readers if node.op_type != "QuantizeLinear"), None)
        if other is None:
            reason = "its QuantizeLinear nodes do not have one symmetric INT8 scale"
            remedy = "quantise with --precision int8, or request fp16"
        else:
            reason = f"node {other.name or other.output[0]!r} ({other.op_type}) uses it as numbers"
            is_quantized = any(node.op_type == "QuantizeLinear" for node in graph.node)
            remedy = (
                "request fp16"
                if is_quantized
                else "quantise with --precision int8 (trtopt quantize or build), or request fp16"
            )
        raise UsageError(f"--io {name}=int8: {reason}, so its quantisation cannot move to the caller", remedy)
    for node in [node for node in passed if node.op_type == "Cast"]:
        _remove(graph, node)
        rename_uses(graph, {node.output[0]: node.input[0]}, makers=False)
        last = node.input[0] if last == node.output[0] else last
    for node in readers:
        if node.output[0] in _outputs(graph):  # whose name stays
            node.op_type = "Identity"
            node.input[:] = [last]
            del node.attribute[:]
        else:
            _remove(graph, node)
            rename_uses(graph, {node.output[0]: last}, makers=False)
    (value,) = (item for item in graph.input if item.name == name)
    value.type.tensor_type.elem_type = TensorProto.INT8
    _forget(graph, {name, *(node.output[0] for node in passed)})
    return found


def _remove(graph: GraphProto, node: NodeProto) -> None:
    """Take a node out of the graph, or of the one inside it, that has it."""
    next(part for part in graphs_of(graph) if node in part.node).node.remove(node)


def _forget(graph: GraphProto, names: set[str]) -> None:
    """Remove what was known of tensors whose type has changed."""
    refill(graph.value_info, [item for item in graph.value_info if item.name not in names])


def _without_dq(model: ModelFile, name: str) -> float:
    """Make the output INT8, its DQ taken out; casts and transposes behind it stay, in INT8."""
    graph = model.proto.graph
    passed, maker = _before(graph, name)
    scale = _scale_of(model, maker) if maker is not None and maker.op_type == "DequantizeLinear" else None
    if maker is None or scale is None or _value_readers(graph, name):
        raise UsageError(
            f"--io {name}=int8: the output is not made by a DequantizeLinear of one symmetric INT8 scale "
            "that it alone has",
            "request fp16, or quantise the output in the model",
        )
    held = maker.input[0]
    if held in {item.name for item in (*graph.input, *graph.output, *graph.initializer)}:
        raise UsageError(f"--io {name}=int8: {held!r} is an input, output or weight itself", "request fp16")
    for node in [node for node in passed if node.op_type == "Cast"]:
        _remove(graph, node)
        rename_uses(graph, {node.input[0]: node.output[0]}, makers=True)
    _remove(graph, maker)
    if maker.output[0] == name:
        rename_uses(graph, {held: name}, makers=True)
    else:
        rename_uses(graph, {maker.output[0]: held}, makers=False)
    (value,) = (item for item in graph.output if item.name == name)
    value.type.tensor_type.elem_type = TensorProto.INT8
    _forget(graph, {name, *(node.input[0] for node in passed), *(node.output[0] for node in passed)})
    return scale
