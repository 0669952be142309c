"""Keeping FP32 what the graph has as FP32, on a builder that chooses types itself.

A weakly typed builder (8.6) with its FP16 flag set may run any layer in FP16, also those whose tensors the
graph has as FP32 because FP16 would overflow there. Their precision and output types are therefore set layer
by layer, and PREFER_PRECISION_CONSTRAINTS makes the builder keep to them wherever it can build at all.

What the graph has as FP32 is read in the ONNX file, by tensor name: a weakly typed network calls almost every
tensor FLOAT until it is built, also those that came as FLOAT16 (seen on 8.6). A layer whose tensors have no
name in the file is left to the builder. So are graphs with Q/DQ: there a layer's precision follows from the
pairs around it. So are graphs that have no 16-bit tensor and only allow 16-bit types (`trtopt.weak_types`):
theirs is the choice of `trtexec --fp16`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from trtopt.errors import InvalidModelError
from trtopt.onnxio.graph_walk import RANGES
from trtopt.onnxio.model_info import load_graph, written_types

if TYPE_CHECKING:
    import onnx

_HALF_TYPES = {"float16", "bfloat16"}
_QUANTIZED_TYPES = {"int8", "float8_e4m3fn", "int4"}
_ONNX_FLOAT = 1
_PREFER = "PREFER_PRECISION_CONSTRAINTS"
_NO_ARITHMETIC = {
    "ASSERTION",
    "CAST",
    "CONDITION",
    "CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT",
    "CONSTANT",
    "IDENTITY",
    "ITERATOR",
    "LOOP_OUTPUT",
    "PLUGIN",
    "PLUGIN_V2",
    "RECURRENCE",
    "SHAPE",
    "TRIP_LIMIT",
}


def constrain(trt: Any, network: Any, config: Any, types: Sequence[str], file: Path) -> dict[str, str]:
    """Set what the ONNX file says of ranges, or of FP32; returns how many tensors or layers that concerns.

    `types` are the element types that the graph contains or allows: ranges go with INT8, and FP32 is held
    next to 16-bit types without Q/DQ.
    """
    ranges = held = 0
    if not _QUANTIZED_TYPES.isdisjoint(types):
        ranges = _set_ranges(trt, network, file)
    elif not _HALF_TYPES.isdisjoint(types):
        held = _hold_fp32(trt, network, config, declared_fp32(load_graph(file)))
    return ({"ranges": str(ranges)} if ranges else {}) | {"layers_held_in_fp32": str(held)}


def _hold_fp32(trt: Any, network: Any, config: Any, fp32: Collection[str]) -> int:
    """Hold the layers that make these tensors; returns how many there are."""
    held = 0
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.type.name in _NO_ARITHMETIC:
            continue
        made = list(_tensors(layer.get_output, layer.num_outputs))
        floats = [
            index for index, tensor in made if tensor.dtype == trt.DataType.FLOAT and tensor.name in fp32
        ]
        met = [tensor.dtype for _, tensor in (*made, *_tensors(layer.get_input, layer.num_inputs))]
        if not floats or trt.DataType.HALF in met:
            continue
        layer.precision = trt.DataType.FLOAT
        for index in floats:
            layer.set_output_type(index, trt.DataType.FLOAT)
        held += 1
    if held:
        config.set_flag(getattr(trt.BuilderFlag, _PREFER))
    return held


def declared_fp32(model: onnx.ModelProto) -> set[str]:
    """The tensors of the main graph that the file declares as FP32, while others in it have 16 bits."""
    if _HALF_TYPES.isdisjoint(written_types(model)):
        return set()
    values = (*model.graph.value_info, *model.graph.output)
    return {value.name for value in values if value.type.tensor_type.elem_type == _ONNX_FLOAT}


class _TensorSettings(msgspec.Struct):
    """What the metadata `trtopt.ranges` holds, by tensor name."""

    ranges: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = {}
    types: dict[str, Literal["FLOAT", "INT8"]] = {}


def _set_ranges(trt: Any, network: Any, file: Path) -> int:
    """Set the ranges, and the types of layers' results, that the file's metadata has.

    Returns how many ranges there are; 0 for a file that says nothing of them.
    """
    metadata = load_graph(file).metadata_props
    text = next((entry.value for entry in metadata if entry.key == RANGES), "{}")
    try:
        settings = msgspec.json.decode(text, type=_TensorSettings)
    except msgspec.DecodeError as error:
        raise InvalidModelError(
            f"{file}: its metadata {RANGES!r} cannot be read: {error}",
            "write the file again, or remove that entry",
        ) from None
    ranges, types, found = settings.ranges, settings.types, 0
    for _, tensor in _tensors(network.get_input, network.num_inputs):
        if tensor.name in ranges:
            tensor.set_dynamic_range(-ranges[tensor.name], ranges[tensor.name])
            found += 1
    for layer in map(network.get_layer, range(network.num_layers)):
        for index, tensor in _tensors(layer.get_output, layer.num_outputs):
            if tensor.name in ranges:
                tensor.set_dynamic_range(-ranges[tensor.name], ranges[tensor.name])
                found += 1
            if tensor.name in types:
                layer.set_output_type(index, getattr(trt.DataType, types[tensor.name]))
    return found


def _tensors(get: Any, count: int) -> Iterator[tuple[int, Any]]:
    """A layer's inputs or outputs by index; optional ones may be missing."""
    for index in range(count):
        tensor = get(index)
        if tensor is not None:
            yield index, tensor
