"""Types, layouts and normalisation of inputs and outputs, written into the graph and verified.

An input becomes input → Cast → Transpose → (x − mean) · 1/std → the model's own input; an output the
reverse. `fold-scale-before` then folds the arithmetic into the first convolution where that is exact; a mean
that all channels share is padded first, so that it is exact of a convolution that pads, too.
INT8 is separate: its Q is in the graph only after quantisation, and `move_quantisation` then takes it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from trtopt.onnxio.graph_walk import graphs_of
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.unique_names import unused_name
from trtopt.records import TensorSpec
from trtopt.records.typed_io import (
    IMAGE_RANK,
    LINEAR,
    TYPES,
    IoRequest,
    Normalisation,
    TensorFormat,
    TypedTensor,
    preset_for,
)
from trtopt.rewrite import equivalence
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.targets import Target

Array = np.ndarray[Any, Any]
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_RECORD = "trtopt.io"
"""Metadata of this key holds the typed tensors of a file, as JSON."""
_PAD_OPSET = 11
"""From here on Pad takes its amounts and its value as inputs."""
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class TypedGraph:
    """The graph with its new inputs and outputs, what they are, and the verification."""

    model: ModelFile
    tensors: tuple[TypedTensor, ...] = ()
    checked: tuple[Deviation, ...] = ()


def check_formats(request: IoRequest, target: Target, *, in_engine: bool) -> None:
    """Refuse types and formats that a target does not have.

    `in_engine`: vectorised formats can be set, which takes an engine of TensorRT.

    Raises:
        UsageError: one; with those that it has.
    """
    for one in request.formats:
        if one.dtype not in target.io_formats:
            known = ", ".join(name for name, dtype in TYPES.items() if dtype in target.io_formats)
            raise UsageError(
                f"--io {one.name}: target {target.name} has no {one.type} inputs and outputs",
                f"it has {known}",
            )
        if not one.is_vectorised:
            continue
        if one.layout not in target.io_formats[one.dtype]:
            known = ", ".join((*LINEAR, *target.io_formats[one.dtype]))
            raise UsageError(
                f"--io {one.name}: target {target.name} has no {one.type} in {one.layout}",
                f"with {one.type} it has {known}",
            )
        if not in_engine:
            raise UsageError(
                f"--io {one.name}: {one.layout} is a format of TensorRT's engines, which ONNX cannot express",
                "give it to trtopt build, with TensorRT or TensorRT-RTX; here nchw and nhwc can be written",
            )


def type_graph(
    model: ModelFile, request: IoRequest, *, data: str | Path | None = None, check: bool = True
) -> TypedGraph:
    """The model with the requested types, layouts and normalisation, run against the original.

    INT8 tensors get their layout alone here; see `move_quantisation`. `data` has the new inputs.

    Raises:
        UsageError: a request that does not fit the model's tensors.
        ModelError: one of the models does not run, or the outputs differ.
        DataError: `data` does not fit the new inputs.
    """
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    recorded = {one.name: one for one in recorded_in(model.proto)}
    edits = list(_edits(made.proto.graph, request, recorded))
    for edit in edits:
        (_type_input if edit.tensor.role == "input" else _type_output)(made.proto, edit)
    tensors = tuple(edit.tensor for edit in edits)
    checked = _verified(model, made, tensors, data) if check and tensors else ()
    for one in tensors:
        known = recorded.get(one.name)
        recorded[one.name] = msgspec.structs.replace(known, layout=one.layout) if known else one
    if tensors:
        _record(made.proto, recorded.values())
    return TypedGraph(made, tuple(recorded.values()), checked)


def recorded_in(model: onnx.ModelProto) -> tuple[TypedTensor, ...]:
    """What a file says of its typed inputs and outputs, as far as its graph still has them so."""
    text = next((item.value for item in model.metadata_props if item.key == _RECORD), "[]")
    try:
        found = msgspec.json.decode(text, type=tuple[TypedTensor, ...])
    except msgspec.DecodeError:
        return ()  # anyone may write metadata
    values = {item.name: item.type.tensor_type for item in (*model.graph.input, *model.graph.output)}
    return tuple(
        one
        for one in found
        if one.name in values and helper.tensor_dtype_to_np_dtype(values[one.name].elem_type) == one.dtype
    )


def _record(model: onnx.ModelProto, tensors: Iterable[TypedTensor]) -> None:
    kept = [item for item in model.metadata_props if item.key != _RECORD]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=_RECORD, value=msgspec.json.encode(tuple(tensors)).decode())


def typed_reference(model: ModelFile, tensors: Sequence[TypedTensor]) -> ModelFile:
    """The original model with the inputs and outputs of one that was made of it, as a reference for that.

    What it has so already stays.
    """
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    values = {item.name: item for item in (*made.proto.graph.input, *made.proto.graph.output)}
    same = {one.name for one in recorded_in(model.proto)}
    for tensor in tensors:
        if tensor.name in same or tensor.name not in values:
            continue
        edit = _Edit(tensor, values[tensor.name])
        if edit.held != tensor.model_dtype:
            continue
        (_type_input if tensor.role == "input" else _type_output)(made.proto, edit)
    return made


def typed_specs(
    specs: Sequence[TensorSpec], request: IoRequest, recorded: Sequence[TypedTensor]
) -> tuple[TensorSpec, ...]:
    """Inputs or outputs in their new types and layouts; INT8 keeps its type until it is quantised.

    `recorded` is what the file says of those that are typed already.

    Raises:
        UsageError: a layout that does not suit the shape, or a tensor that is typed otherwise.
    """
    known = {one.name: one for one in recorded}
    return tuple(_typed_spec(spec, request.format_of(spec.name), known.get(spec.name)) for spec in specs)


def _typed_spec(spec: TensorSpec, wanted: TensorFormat | None, known: TypedTensor | None) -> TensorSpec:
    if wanted is None or (known is not None and _is_met(wanted, known)):
        return spec
    _check_layout(wanted, spec.shape)
    nhwc = wanted.layout == "nhwc"
    shape = tuple(spec.shape[axis] for axis in _TO_NHWC) if nhwc else spec.shape
    return msgspec.structs.replace(
        spec, dtype=spec.dtype if wanted.dtype == "int8" else wanted.dtype, shape=shape
    )


# ── what is to be done ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Edit:
    """One tensor's change: `tensor` describes the result, `graph_dtype` is its type in the new graph."""

    tensor: TypedTensor
    value: ValueInfoProto

    @property
    def held(self) -> str:
        """The type before the change, by NumPy name."""
        return str(helper.tensor_dtype_to_np_dtype(self.value.type.tensor_type.elem_type))

    @property
    def graph_dtype(self) -> int:
        """INT8 comes with its scale, after the quantisation: until then the tensor keeps its type."""
        kept = self.tensor.dtype == "int8" and self.tensor.scale is None
        name = self.tensor.model_dtype if kept else self.tensor.dtype
        return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))


def _edits(graph: GraphProto, request: IoRequest, recorded: Mapping[str, TypedTensor]) -> Iterator[_Edit]:
    """Each tensor that the request names and that is not so yet, checked against the graph."""
    weights = {item.name for item in graph.initializer}
    inputs = {item.name: item for item in graph.input if item.name not in weights}
    outputs = {item.name: item for item in graph.output}
    normalised = {one.name: one for one in request.normalisations}
    normalise_flag = f"--preprocess {request.preprocess}" if request.preprocess else "--normalize {}"
    if request.preprocess is not None:
        name = _image_among(inputs, request)
        wanted = request.format_of(name)
        dtype = wanted.dtype if wanted is not None else "float32"
        if dtype == "int8":
            raise UsageError(
                f"--preprocess {request.preprocess}: input {name!r} takes quantised values of what is "
                "normalised already",
                "normalise before trtopt.pack, or make the input uint8",
            )
        normalised[name] = preset_for(name, request.preprocess, dtype)
    for name in dict.fromkeys((*(one.name for one in request.formats), *normalised)):
        wanted, known = request.format_of(name), recorded.get(name)
        flag = f"--io {name}" if wanted is not None else normalise_flag.format(name)
        if (name in inputs) == (name in outputs):
            raise UsageError(
                f"{flag}: {'is both an input and an output' if name in inputs else 'no such tensor'}",
                f"the inputs are {', '.join(inputs)}, the outputs {', '.join(outputs)}",
            )
        if name in normalised and name not in inputs:
            raise UsageError(f"--normalize {name}: is an output", f"the inputs are {', '.join(inputs)}")
        if known is not None and name in normalised:
            raise _typed_already(normalise_flag.format(name), known)
        if known is not None and wanted is not None and _is_met(wanted, known):
            continue
        value = inputs.get(name) or outputs[name]
        if name in normalised:
            _check_normalisation(graph, value, normalised[name], normalise_flag.format(name))
        yield _edit_of(value, name in inputs, wanted, normalised.get(name))


def _is_met(wanted: TensorFormat, known: TypedTensor) -> bool:
    """Whether a file that is typed already has a tensor so.

    Raises:
        UsageError: it has another type, or NHWC, which no other layout is made of.
    """
    if (wanted.dtype, wanted.layout) == (known.dtype, known.layout):
        return True
    if wanted.dtype != known.dtype or known.layout == "nhwc":
        raise _typed_already(f"--io {wanted.name}", known)
    return False


def _typed_already(flag: str, known: TypedTensor) -> UsageError:
    return UsageError(
        f"{flag}: the file was typed before: {known}",
        "give --io and --normalize together, with the model that it was made from",
    )


def _image_among(inputs: dict[str, ValueInfoProto], request: IoRequest) -> str:
    images = [name for name, value in inputs.items() if len(_shape(value) or ()) == IMAGE_RANK]
    if len(images) != 1:
        raise UsageError(
            f"--preprocess {request.preprocess}: the model has {len(images)} inputs of rank {IMAGE_RANK}",
            "name the input with --normalize NAME:mean=…:std=…",
        )
    return images[0]


def _shape(value: ValueInfoProto) -> tuple[int | str, ...] | None:
    """The lengths or names of its axes; None if the model does not say how many there are."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in kind.shape.dim)


def _check_layout(wanted: TensorFormat, shape: Sequence[int | str] | None) -> None:
    """Refuse a layout that a tensor of this shape cannot have."""
    rank = len(shape) if shape is not None else "unknown"
    if wanted.layout != "nchw" and (shape is None or rank != IMAGE_RANK):
        raise UsageError(
            f"--io {wanted.name}: {wanted.layout} needs a tensor of rank {IMAGE_RANK}, "
            f"{wanted.name!r} has rank {rank}",
            "omit the layout",
        )
    if wanted.is_vectorised and shape is not None and not isinstance(shape[1], int):
        raise UsageError(
            f"--io {wanted.name}: {wanted.layout} pads the channels, whose number {shape[1]!r} is dynamic",
            "export the model with a fixed number of channels, or request nchw or nhwc",
        )


def _edit_of(
    value: ValueInfoProto,
    is_input: bool,
    wanted: TensorFormat | None,
    normalise: Normalisation | None,
) -> _Edit:
    name, held = value.name, value.type.tensor_type.elem_type
    model_dtype = str(helper.tensor_dtype_to_np_dtype(held))
    dtype, layout = (wanted.dtype, wanted.layout) if wanted is not None else (model_dtype, "nchw")
    if wanted is not None:
        _check_layout(wanted, _shape(value))
    if dtype != model_dtype and held not in _FLOATS:
        raise UsageError(
            f"--io {name}: {name!r} is {model_dtype}, whose values are used as numbers or indices",
            "only floating-point inputs and outputs can be given another type",
        )
    if not is_input and dtype == "uint8" != model_dtype:
        raise UsageError(
            f"--io {name}: UINT8 would cut off the fractions of the {model_dtype} output", "choose fp16"
        )
    return _Edit(
        TypedTensor(
            name=name,
            role="input" if is_input else "output",
            dtype=dtype,
            layout=layout,
            model_dtype=model_dtype,
            mean=normalise.mean if normalise else (),
            std=normalise.std if normalise else (),
        ),
        value,
    )


def _check_normalisation(graph: GraphProto, value: ValueInfoProto, wanted: Normalisation, flag: str) -> None:
    shape, count = _shape(value) or (), len(wanted.mean)
    if value.type.tensor_type.elem_type not in _FLOATS:
        raise UsageError(f"{flag}: is no floating-point input of the model", "omit it")
    channels = shape[1] if len(shape) > 1 else "no axis of"
    if count > 1 and channels != count:
        shown = "a dynamic number of" if channels in shape and isinstance(channels, str) else channels
        raise UsageError(
            f"{flag}: {count} means, and the input has {shown} channels",
            "give one per channel of a fixed number, or one for all, with --normalize",
        )
    if wanted.is_scaling:
        return
    constants = {item.name for item in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    for node in _readers_past(graph, value.name, ("Cast", "Transpose", "Identity")):
        if node.op_type in ("Sub", "Div", "Add", "Mul") and constants & set(node.input):
            raise UsageError(
                f"{flag}: the model normalises it already, at node {node.name or node.output[0]!r}",
                "omit --normalize and --preprocess; for a model that takes pixels from 0 to 1 scale them "
                f"alone: --normalize {value.name}:mean=0:std=255",
            )


def _readers(graph: GraphProto, name: str) -> list[NodeProto]:
    return [node for part in graphs_of(graph) for node in part.node if name in node.input]


def _readers_past(graph: GraphProto, name: str, passed: tuple[str, ...]) -> list[NodeProto]:
    """The nodes that read a tensor, directly or past others."""
    found = []
    for node in _readers(graph, name):
        found += _readers_past(graph, node.output[0], passed) if node.op_type in passed else [node]
    return found


# ── the graph ───────────────────────────────────────────────────────────────────────────────────────────


def _names(graph: GraphProto) -> set[str]:
    return {
        name
        for part in graphs_of(graph)
        for name in (
            *(name for node in part.node for name in (*node.input, *node.output, node.name)),
            *(item.name for item in (*part.input, *part.output, *part.initializer, *part.value_info)),
        )
    }


class _Chain:
    """Nodes one after the other, with names that the graph does not have."""

    def __init__(self, graph: GraphProto, like: str) -> None:
        self._graph, self._like, self._taken = graph, like, _names(graph)
        self.nodes: list[NodeProto] = []

    def name(self, what: str) -> str:
        """A new name of the tensor's."""
        found = unused_name(f"{self._like}/{what}", self._taken)
        self._taken.add(found)
        return found

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


def _rename(graph: GraphProto, old: str, new: str, *, outputs: bool) -> None:
    """All that reads a tensor, and with `outputs` what makes it, calls it otherwise."""
    for part in graphs_of(graph):
        for node in part.node:
            node.input[:] = [new if name == old else name for name in node.input]
            if outputs:
                node.output[:] = [new if name == old else name for name in node.output]


def _retype(value: ValueInfoProto, dtype: int, axes: tuple[int, ...] | None) -> None:
    kind = value.type.tensor_type
    kind.elem_type = dtype
    if axes is not None:
        before = onnx.TensorShapeProto()
        before.CopyFrom(kind.shape)
        del kind.shape.dim[:]
        kind.shape.dim.extend(before.dim[axis] for axis in axes)


def _keep_value(graph: GraphProto, value: ValueInfoProto, name: str) -> None:
    """What was known of the tensor stays known under its new name."""
    for index in reversed(range(len(graph.value_info))):
        if graph.value_info[index].name == value.name:
            del graph.value_info[index]
    kept = graph.value_info.add()
    kept.CopyFrom(value)
    kept.name = name


def _type_input(model: onnx.ModelProto, edit: _Edit) -> None:
    graph, tensor, value = model.graph, edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc and not tensor.mean:
        return
    chain = _Chain(graph, tensor.name)
    last, pads = tensor.name, tuple[int, ...]()
    current = given
    computed = TensorProto.FLOAT if tensor.mean or tensor.scale is not None else held
    if current != computed:
        last, current = chain.add("Cast", last, to=computed), computed
    if tensor.scale is not None:
        last = chain.add("Mul", last, chain.constant(np.float32(tensor.scale), "scale"))
    if nhwc:
        last = chain.add("Transpose", last, perm=_TO_NCHW)
    if tensor.mean:
        pads = _take_padding(model, tensor) if computed == held and any(tensor.mean) else ()
        if pads:
            ends, value_of = np.array(pads, np.int64), np.float32(tensor.mean[0])
            last = chain.add("Pad", last, chain.constant(ends, "pads"), chain.constant(value_of, "padding"))
        axes = (-1, *[1] * (len(_shape(value) or ()) - 2)) if len(tensor.mean) > 1 else ()
        mean, factor = (
            np.asarray(numbers, np.float64).astype(np.float32).reshape(axes)
            for numbers in (tensor.mean, [1.0 / one for one in tensor.std])
        )
        if any(tensor.mean):
            last = chain.add("Sub", last, chain.constant(mean, "mean"))
        last = chain.add("Mul", last, chain.constant(factor, "factor"))
    if current != held:
        last = chain.add("Cast", last, to=held)
    _rename(graph, tensor.name, last, outputs=False)
    if not pads:
        _keep_value(graph, value, last)
    for place, node in enumerate(chain.nodes):
        graph.node.insert(place, node)
    _retype(value, given, _TO_NHWC if nhwc else None)


def _take_padding(model: onnx.ModelProto, tensor: TypedTensor) -> tuple[int, ...]:
    """The zero padding of the convolution that alone reads a tensor, as Pad's `pads`; it has none afterwards.

    A mean that all channels share is then padded before it is subtracted, so that the subtraction can be
    folded: a shift commutes with an unpadded convolution only. Empty where that cannot be.
    """
    graph, readers = model.graph, _readers(model.graph, tensor.name)
    own = {node.output[0]: node for node in graph.node}
    if len(readers) != 1 or readers[0].op_type != "Conv" or tensor.name in {one.name for one in graph.output}:
        return ()
    conv = own.get(readers[0].output[0])
    opset = max(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if conv is None or list(conv.input).index(tensor.name) or len({*tensor.mean}) > 1 or opset < _PAD_OPSET:
        return ()
    given = {item.name: helper.get_attribute_value(item) for item in conv.attribute}
    pads = given.get("pads", ())
    if given.get("auto_pad", b"NOTSET") != b"NOTSET" or not any(pads) or min(pads) < 0:
        return ()
    kept = [item for item in conv.attribute if item.name != "pads"]
    del conv.attribute[:]
    conv.attribute.extend(kept)
    half = len(pads) // 2
    return (0, 0, *pads[:half], 0, 0, *pads[half:])


def _type_output(model: onnx.ModelProto, edit: _Edit) -> None:
    graph, tensor, value = model.graph, edit.tensor, edit.value
    held, given = value.type.tensor_type.elem_type, edit.graph_dtype
    nhwc = tensor.layout == "nhwc"
    if given == held and not nhwc:
        return
    chain = _Chain(graph, tensor.name)
    own = chain.name("computed")
    _rename(graph, tensor.name, own, outputs=True)
    _keep_value(graph, value, own)
    last = chain.add("Transpose", own, perm=_TO_NHWC) if nhwc else own
    if tensor.scale is not None:
        scale, zero = chain.constant(np.float32(tensor.scale), "scale"), chain.constant(np.int8(0), "zero")
        chain.add("QuantizeLinear", last, scale, zero)
    elif given != held:
        chain.add("Cast", last, to=given)
    chain.nodes[-1].output[0] = tensor.name
    graph.node.extend(chain.nodes)
    _retype(value, given, _TO_NHWC if nhwc else None)


# ── INT8 ────────────────────────────────────────────────────────────────────────────────────────────────


def move_quantisation(
    model: ModelFile, tensors: Sequence[TypedTensor], *, data: str | Path | None = None, check: bool = True
) -> TypedGraph:
    """A quantised model whose INT8 inputs and outputs are quantised by the caller: with their scales.

    Raises:
        UsageError: an INT8 tensor is not quantised first, or is used as numbers elsewhere.
        ModelError: the outputs differ.
    """
    floats = {
        item.name
        for item in (*model.proto.graph.input, *model.proto.graph.output)
        if item.type.tensor_type.elem_type in _FLOATS
    }
    wanted = [one for one in tensors if one.dtype == "int8" and one.name in floats]
    if not wanted:
        return TypedGraph(model, tuple(tensors))
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    scales = {
        one.name: (_without_q if one.role == "input" else _without_dq)(made, one.name) for one in wanted
    }
    after = tuple(msgspec.structs.replace(one, scale=scales.get(one.name, one.scale)) for one in tensors)
    moved = tuple(one for one in after if one.name in scales)
    checked = _verified(model, made, moved, None, only_type=True) if check else ()
    _record(made.proto, after)
    return TypedGraph(made, after, checked)


def quantise_ends(model: ModelFile, tensors: Sequence[TypedTensor]) -> ModelFile:
    """A model with Q/DQ of the given scales at its INT8 inputs and outputs, whatever it does with them then.

    `move_quantisation` then makes any precision of a model take the same INT8 values.
    """
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    graph = made.proto.graph
    values = {item.name: item for item in (*graph.input, *graph.output)}
    for tensor in tensors:
        if tensor.scale is None or tensor.dtype != "int8" or _scale_at(made, tensor) == tensor.scale:
            continue
        held = values[tensor.name].type.tensor_type.elem_type
        chain = _Chain(graph, tensor.name)
        inner, is_input = chain.name("float"), tensor.role == "input"
        _rename(graph, tensor.name, inner, outputs=not is_input)
        last = tensor.name if is_input else inner
        last = last if held == TensorProto.FLOAT else chain.add("Cast", last, to=TensorProto.FLOAT)
        scale, zero = chain.constant(np.float32(tensor.scale), "scale"), chain.constant(np.int8(0), "zero")
        last = chain.add("DequantizeLinear", chain.add("QuantizeLinear", last, scale, zero), scale, zero)
        if held != TensorProto.FLOAT:
            chain.add("Cast", last, to=held)
        chain.nodes[-1].output[0] = inner if is_input else tensor.name
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend([*chain.nodes, *nodes] if is_input else [*nodes, *chain.nodes])
    return made


def _constant(model: ModelFile, name: str) -> Array | None:
    graph = model.proto.graph
    for item in graph.initializer:
        if item.name == name:
            return array_of(item, model.folder)
    for node in graph.node:
        if node.op_type == "Constant" and name in node.output:
            value: Array = numpy_helper.to_array(node.attribute[0].t)
            return value
    return None


def _scale_of(model: ModelFile, node: NodeProto) -> float | None:
    """The scale of a Q or DQ of one symmetric INT8 scale; None for any other."""
    scale = _constant(model, node.input[1])
    zero = _constant(model, node.input[2]) if len(node.input) > 2 else None
    if zero is None or zero.dtype != np.int8 or zero.any() or scale is None or scale.size != 1:
        return None
    return float(scale.reshape(()))


def _behind(graph: GraphProto, name: str) -> tuple[list[NodeProto], str, list[NodeProto]]:
    """The casts and transposes of an input, what they make of it, and what reads that."""
    passed, last = list[NodeProto](), name
    while True:
        readers = _readers(graph, last)
        if len(readers) != 1 or readers[0].op_type not in ("Cast", "Transpose", "Identity"):
            return passed, last, readers
        passed.append(readers[0])
        last = readers[0].output[0]


def _scale_read(model: ModelFile, name: str, readers: Sequence[NodeProto]) -> float | None:
    """The one scale of all that reads a tensor, if it is but quantised."""
    scales = {_scale_of(model, node) if node.op_type == "QuantizeLinear" else None for node in readers}
    is_output = name in {item.name for item in model.proto.graph.output}
    return scales.pop() if len(scales) == 1 and not is_output else None


def _scale_at(model: ModelFile, tensor: TypedTensor) -> float | None:
    """The scale that a model itself quantises an input or output with, first or last of all."""
    graph = model.proto.graph
    if tensor.role == "input":
        _, last, readers = _behind(graph, tensor.name)
        return _scale_read(model, last, readers)
    maker = next((node for node in graph.node if tensor.name in node.output), None)
    return _scale_of(model, maker) if maker is not None and maker.op_type == "DequantizeLinear" else None


def _without_q(model: ModelFile, name: str) -> float:
    """Make the input INT8, its Q taken out; casts and transposes in front of it stay, in INT8."""
    graph = model.proto.graph
    passed, last, readers = _behind(graph, name)
    found = _scale_read(model, last, readers)
    if found is None:
        other = next((node for node in readers if node.op_type != "QuantizeLinear"), None)
        if other is None:
            reason = "its QuantizeLinear nodes do not have one symmetric INT8 scale"
            remedy = "quantise with --precision int8, or request fp16"
        else:
            reason = f"node {other.name or other.output[0]!r} ({other.op_type}) uses it as numbers"
            is_quantised = any(node.op_type == "QuantizeLinear" for node in readers)
            remedy = (
                "request fp16"
                if is_quantised
                else "quantise that node, with --precision int8, or request fp16"
            )
        raise UsageError(f"--io {name}=int8: {reason}, so its quantisation cannot move to the caller", remedy)
    for node in readers:
        graph.node.remove(node)
    for node in [node for node in passed if node.op_type == "Cast"]:
        graph.node.remove(node)
        _rename(graph, node.output[0], node.input[0], outputs=False)
        last = node.input[0] if last == node.output[0] else last
    for node in readers:
        _rename(graph, node.output[0], last, outputs=False)
    (value,) = (item for item in graph.input if item.name == name)
    value.type.tensor_type.elem_type = TensorProto.INT8
    stale = {name, *(node.output[0] for node in passed)}
    kept = [item for item in graph.value_info if item.name not in stale]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    return found


def _without_dq(model: ModelFile, name: str) -> float:
    """Make the output INT8: what its DQ reads."""
    graph = model.proto.graph
    maker = next((node for node in graph.node if name in node.output), None)
    scale = _scale_of(model, maker) if maker is not None and maker.op_type == "DequantizeLinear" else None
    if maker is None or scale is None or _readers(graph, name):
        raise UsageError(
            f"--io {name}=int8: the output is not made by a DequantizeLinear of one symmetric INT8 scale "
            "that it alone has",
            "request fp16, or quantise the output in the model",
        )
    held = maker.input[0]
    if held in {item.name for item in (*graph.input, *graph.output, *graph.initializer)}:
        raise UsageError(f"--io {name}=int8: {held!r} is an input, output or weight itself", "request fp16")
    graph.node.remove(maker)
    _rename(graph, held, name, outputs=True)
    (value,) = (item for item in graph.output if item.name == name)
    value.type.tensor_type.elem_type = TensorProto.INT8
    return scale


# ── verification ────────────────────────────────────────────────────────────────────────────────────────


def to_model(array: Array, tensor: TypedTensor, *, only_type: bool = False) -> Array:
    """What the graph makes of a new input before the model's own input, by NumPy."""
    if tensor.scale is not None:
        array = array.astype(np.float32) * np.float32(tensor.scale)
    if tensor.layout == "nhwc" and not only_type:
        array = array.transpose(_TO_NCHW)
    if tensor.mean and not only_type:
        axes = (-1, *[1] * (array.ndim - 2)) if len(tensor.mean) > 1 else ()
        mean, std = (np.asarray(numbers).reshape(axes) for numbers in (tensor.mean, tensor.std))
        array = (array.astype(np.float64) - mean) / std
    return np.ascontiguousarray(array.astype(numpy_dtype(tensor.model_dtype)))


def _from_model(array: Array, tensor: TypedTensor | None, *, only_type: bool) -> Array:
    """What the new output must be, given the model's own."""
    if tensor is None:
        return array
    if tensor.scale is not None:
        levels = np.rint(array.astype(np.float32) / np.float32(tensor.scale))
        quantised: Array = np.clip(levels, -128, 127).astype(np.int8)
        return quantised
    moved = array.transpose(_TO_NHWC) if tensor.layout == "nhwc" and not only_type else array
    dtype = tensor.model_dtype if tensor.dtype == "int8" else tensor.dtype
    return np.ascontiguousarray(moved.astype(numpy_dtype(dtype)))


def _verified(
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

    Raises:
        ModelError: an output differs by more than the arithmetic's rounding.
    """
    old, new = (in_fp32(replace(model, spool=None)) for model in (before, after))
    by_name = {one.name: one for one in tensors}
    real = () if data is None else (feeds.from_data(data, after.proto),)

    def run(seeded: Sequence[feeds.Feed]) -> tuple[Deviation, ...]:
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
        reference = [
            {
                name: _from_model(array, by_name.get(name), only_type=only_type)
                for name, array in outputs.items()
            }
            for outputs in equivalence.run(old, converted)
        ]
        return equivalence.compare(reference, new, given, "B" if only_type else "N", emulated=True)

    checked = feeds.on_seeded(after.proto, run)
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
        inputs = len({item.feed for item in checked})
        lines.append(f"inputs and outputs verified on {inputs} inputs: largest error {worst:.3g}")
    return lines
