"""What is requested of inputs and outputs, held against the graph, and what a file records of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trtopt.errors import UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.extraction import constant_tensors
from trtopt.onnxio.graph_walk import graphs_of, real_inputs, refill
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.shape_inference import FLOATS
from trtopt.records import TensorSpec
from trtopt.records.tensors import (
    IMAGE_RANK,
    LINEAR,
    PREPROCESSING,
    TYPES,
    VECTORS,
    IoRequest,
    Normalisation,
    TensorFormat,
    TypedTensor,
)
from trtopt.targets import Target

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class Edit:
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


def shape_of(value: ValueInfoProto) -> tuple[int | str, ...] | None:
    """The lengths or names of its axes; None if the model does not say how many there are."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in kind.shape.dim)


def constant_in(model: ModelFile, name: str) -> np.ndarray[Any, Any] | None:
    """The values of a weight or a Constant; None for any other tensor."""
    for part in graphs_of(model.proto.graph):
        for item in part.initializer:
            if item.name == name:
                return array_of(item, model.folder)
        for node in part.node:
            if node.op_type == "Constant" and name in node.output and node.attribute[0].name == "value":
                value: np.ndarray[Any, Any] = numpy_helper.to_array(node.attribute[0].t)
                return value
    return None


def readers_of(graph: GraphProto, name: str) -> list[NodeProto]:
    """The nodes that read a tensor, inside others too."""
    return [node for part in graphs_of(graph) for node in part.node if name in node.input]


_MOVES_VALUES = (
    *("Cast", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"),
    *("Slice", "Split", "Gather", "Pad", "Resize", "Upsample", "Clip"),
)
"""Pixels are still pixels behind these."""

_LARGEST_PIXEL = 255.0


def check_formats(request: IoRequest, target: Target, *, in_engine: bool) -> None:
    """Refuse types and formats that a target does not have.

    `in_engine`: vectorised formats can be set, which takes an engine of TensorRT.
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


def type_specs(
    specs: Sequence[TensorSpec], request: IoRequest, recorded: Sequence[TypedTensor]
) -> tuple[TensorSpec, ...]:
    """Inputs or outputs in their new types and layouts; INT8 keeps its type until it is quantised.

    `recorded` is what the file says of those that are typed already.
    """
    known = {one.name: one for one in recorded}
    return tuple(_type_spec(spec, request.format_of(spec.name), known.get(spec.name)) for spec in specs)


def _type_spec(spec: TensorSpec, wanted: TensorFormat | None, known: TypedTensor | None) -> TensorSpec:
    if wanted is None or (known is not None and _is_met(wanted, known)):
        return spec
    _check_layout(wanted, spec.shape)
    nhwc = wanted.layout == "nhwc"
    shape = tuple(spec.shape[axis] for axis in TO_NHWC) if nhwc else spec.shape
    return msgspec.structs.replace(
        spec, dtype=spec.dtype if wanted.dtype == "int8" else wanted.dtype, shape=shape
    )


def preset_for(name: str, preprocess: str, dtype: str) -> Normalisation:
    """A preprocessing in the units of the input's type: integers are pixels from 0 to 255."""
    mean, std = PREPROCESSING[preprocess]
    unit = _LARGEST_PIXEL if dtype == "uint8" else 1.0
    return Normalisation(name=name, mean=tuple(x * unit for x in mean), std=tuple(x * unit for x in std))


def edits_for(model: ModelFile, request: IoRequest, recorded: Mapping[str, TypedTensor]) -> Iterator[Edit]:
    """Each tensor that the request names and that is not so yet, checked against the graph."""
    graph = model.proto.graph
    inputs = {item.name: item for item in real_inputs(graph)}
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
        if name in inputs and name in outputs:
            raise UsageError(
                f"{flag}: is both an input and an output",
                "export the model without that output, which only returns the input",
            )
        if name not in inputs and name not in outputs:
            raise UsageError(
                f"{flag}: no such tensor",
                f"the inputs are {', '.join(inputs)}, the outputs {', '.join(outputs)}",
            )
        if name in normalised and name not in inputs:
            raise UsageError(f"--normalize {name}: is an output", f"the inputs are {', '.join(inputs)}")
        if known is not None and name in normalised:
            raise _refuse_retyping(normalise_flag.format(name), known)
        if known is not None and wanted is not None and _is_met(wanted, known):
            continue
        value = inputs.get(name) or outputs[name]
        if not value.type.HasField("tensor_type"):
            kind = str(value.type.WhichOneof("value")).removesuffix("_type")
            raise UsageError(f"{flag}: is no tensor but a {kind}", "omit it")
        if name in normalised:
            _check_normalisation(model, value, normalised[name], normalise_flag.format(name))
        yield _edit_of(value, name in inputs, wanted, normalised.get(name))


def _is_met(wanted: TensorFormat, known: TypedTensor) -> bool:
    """Whether a file that is typed already has a tensor so."""
    if (wanted.dtype, wanted.layout) == (known.dtype, known.layout):
        return True
    if wanted.dtype != known.dtype or known.layout == "nhwc":
        raise _refuse_retyping(f"--io {wanted.name}", known)
    return False


def _refuse_retyping(flag: str, known: TypedTensor) -> UsageError:
    return UsageError(
        f"{flag}: the file was typed before: {known}",
        "give --io and --normalize together, with the model that it was made from",
    )


def _image_among(inputs: dict[str, ValueInfoProto], request: IoRequest) -> str:
    images = [name for name, value in inputs.items() if len(shape_of(value) or ()) == IMAGE_RANK]
    if len(images) != 1:
        raise UsageError(
            f"--preprocess {request.preprocess}: the model has {len(images)} inputs of rank {IMAGE_RANK}",
            "name the input with --normalize NAME:mean=…:std=…",
        )
    return images[0]


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
) -> Edit:
    name, held = value.name, value.type.tensor_type.elem_type
    model_dtype = str(helper.tensor_dtype_to_np_dtype(held))
    dtype, layout = (wanted.dtype, wanted.layout) if wanted is not None else (model_dtype, "nchw")
    if wanted is not None:
        _check_layout(wanted, shape_of(value))
    if dtype != model_dtype and held == TensorProto.DOUBLE:
        raise UsageError(f"--io {name}: {name!r} is float64", "export the model in FP32")
    if dtype != model_dtype and held not in FLOATS:
        raise UsageError(
            f"--io {name}: {name!r} is {model_dtype}, whose values are used as numbers or indices",
            "only floating-point inputs and outputs can be given another type",
        )
    if not is_input and dtype == "uint8" != model_dtype:
        raise UsageError(
            f"--io {name}: UINT8 would cut off the fractions of the {model_dtype} output", "choose fp16"
        )
    return Edit(
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


def _check_normalisation(model: ModelFile, value: ValueInfoProto, wanted: Normalisation, flag: str) -> None:
    shape, count = shape_of(value) or (), len(wanted.mean)
    if value.type.tensor_type.elem_type not in FLOATS:
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
    graph = model.proto.graph
    constants = constant_tensors(graph, fixed_shapes=False)
    for node in _readers_past(graph, value.name, _MOVES_VALUES):
        is_affine = node.op_type in ("Sub", "Div", "Add", "Mul") and not constants.isdisjoint(node.input)
        if is_affine or _subtracts_a_mean(model, node):
            raise UsageError(
                f"{flag}: the model normalises it already, at node {node.name or node.output[0]!r}",
                "omit --normalize and --preprocess; for a model that takes pixels from 0 to 1 scale them "
                f"alone: --normalize {value.name}:mean=0:std=255",
            )


def _subtracts_a_mean(model: ModelFile, node: NodeProto) -> bool:
    """Whether it is a BatchNormalization whose training data was not normalised: its mean was not near 0."""
    if node.op_type != "BatchNormalization":
        return False
    mean, variance = (constant_in(model, name) for name in node.input[3:5])
    if mean is None or variance is None:
        return False
    return bool((np.abs(mean) >= np.sqrt(np.maximum(variance, 0))).any())


def _readers_past(graph: GraphProto, name: str, passed: tuple[str, ...]) -> list[NodeProto]:
    """The nodes that read a tensor, directly or past others."""
    found = []
    for node in readers_of(graph, name):
        if node.op_type in passed and node.input[0] == name:
            found += [past for made in node.output for past in _readers_past(graph, made, passed)]
        else:
            found.append(node)
    return found


# ── what a file records of its inputs and outputs ─────────────────────────────────────────────────────────


_KEY = "trtopt.io"
"""Metadata of this key holds the typed tensors of a file, as JSON."""


def recorded_in(model: onnx.ModelProto) -> tuple[TypedTensor, ...]:
    """What a file says of its typed inputs and outputs, as far as its graph still has them so.

    A vectorised format is one of an engine that was built of the file: its graph is linear.
    """
    text = next((item.value for item in model.metadata_props if item.key == _KEY), "[]")
    try:
        found = msgspec.json.decode(text, type=tuple[TypedTensor, ...])
    except msgspec.DecodeError:
        return ()  # anyone may write metadata
    known = helper.get_all_tensor_dtypes()
    dtypes = {
        (role, item.name): str(helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for role, items in (("input", model.graph.input), ("output", model.graph.output))
        for item in items
        if item.type.tensor_type.elem_type in known
    }
    linear = (msgspec.structs.replace(one, layout="nchw") if one.layout in VECTORS else one for one in found)
    return tuple(one for one in linear if dtypes.get((one.role, one.name)) == one.dtype and _is_sound(one))


def _is_sound(tensor: TypedTensor) -> bool:
    numbers = (1.0 if tensor.scale is None else tensor.scale, *tensor.std)
    return (
        tensor.layout in LINEAR
        and all(0 < number < math.inf for number in numbers)
        and len(tensor.mean) == len(tensor.std)
    )


def record(model: onnx.ModelProto, tensors: Iterable[TypedTensor]) -> None:
    """Replace what the file says of them, in place."""
    refill(model.metadata_props, [item for item in model.metadata_props if item.key != _KEY])
    model.metadata_props.add(key=_KEY, value=msgspec.json.encode(tuple(tensors)).decode())
