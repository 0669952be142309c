"""Reading an ONNX file: whether it is one, its inputs, and what can be requested of it.

TensorRT's parser accepts empty files and plain text without complaint, so a file is validated here first.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from trtopt.errors import InvalidModelError, UnsupportedOpError
from trtopt.files.bounded_reading import sha256_of
from trtopt.onnxio.external_data import tensors_of
from trtopt.onnxio.graph_walk import (
    TYPE_ATTRIBUTES,
    WEAK_TYPES,
    name_apart,
    names_length,
    opset_of,
    parts_of,
    real_inputs,
    unknown_ops,
)
from trtopt.onnxio.model_file import load, read_message
from trtopt.onnxio.prepare import sort_nodes
from trtopt.onnxio.shape_inference import check, skeleton
from trtopt.records import OnnxArtifact, TensorSpec


def read_onnx(path: Path) -> OnnxArtifact:
    """Check an ONNX file and describe it. Its weights are hashed, not loaded."""
    file = load(path)
    model = file.proto
    _check_graph(model, path)
    check_opset(model, path)
    check_soundness(model, path)
    allowed = {
        name for entry in model.metadata_props if entry.key == WEAK_TYPES for name in entry.value.split()
    }
    return OnnxArtifact(
        path=str(path),
        sha256=sha256_of(*file.files),
        opset=opset_of(model),
        inputs=tuple(_spec(value, path) for value in real_inputs(model.graph)),
        outputs=tuple(_spec(value, path) for value in model.graph.output),
        types=tuple(sorted((written_types(model) | allowed) - {"unknown"})),
    )


def load_graph(path: Path) -> onnx.ModelProto:
    """The model without its external weights."""
    model = read_message(path)
    _check_graph(model, path)
    return model


def _check_graph(model: onnx.ModelProto, path: Path) -> None:
    if not model.graph.node or not model.graph.output:
        raise InvalidModelError(
            f"{path}: the graph has no nodes or no outputs",
            "check that this is the ONNX file that the exporter wrote",
        )


def _spec(value: onnx.ValueInfoProto, path: Path) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise InvalidModelError(
            f"{path}: {value.name!r} is not a tensor but a sequence, map or optional",
            "export the model with plain tensors as its inputs and outputs",
        )
    return tensor_spec(value)


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """An input or output; one that is no tensor has the name of what it is for a type, as `sequence`."""
    kind = value.type.WhichOneof("value") or "unknown"
    if kind != "tensor_type":
        return TensorSpec(name=value.name, dtype=kind.removesuffix("_type"), shape=())
    tensor = value.type.tensor_type
    shape: list[int | str] = []
    for axis in tensor.shape.dim:
        is_fixed = axis.HasField("dim_value") and axis.dim_value > 0  # 0 and below: unknown
        shape.append(
            axis.dim_value if is_fixed else (axis.dim_param if names_length(axis.dim_param) else "?")
        )
    return TensorSpec(name=value.name, dtype=dtype_name(tensor.elem_type), shape=tuple(shape))


def dtype_name(elem_type: int) -> str:
    """The NumPy name of an ONNX element type, or `unknown`."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        return "unknown"


def written_types(model: onnx.ModelProto) -> set[str]:
    """Types that appear in the graph: inputs and outputs, constants, casts."""
    found = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    found |= {tensor.data_type for tensor in tensors_of(model)}
    for part in parts_of(model):
        for node in part.node:
            found |= {attribute.i for attribute in node.attribute if attribute.name in TYPE_ATTRIBUTES}
            if node.op_type == "QuantizeLinear" and len(node.input) < 3:
                found.add(onnx.TensorProto.UINT8)  # the operator's default zero point
    return {dtype_name(elem_type) for elem_type in found}


def check_opset(model: onnx.ModelProto, path: Path) -> None:
    """The installed onnx must know the model's opset."""
    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) < 0:
        raise InvalidModelError(f"{path}: imports opset {opset_of(model)}", "export the model again")
    if opset_of(model) > newest:
        raise InvalidModelError(
            f"{path}: opset {opset_of(model)} is newer than onnx {onnx.__version__} knows ({newest})",
            "export with an older opset, or upgrade onnx if that opset exists",
        )


def check_soundness(model: onnx.ModelProto, path: Path) -> None:
    """Names and order, then ONNX's own checker; operators it does not know are named with their nodes."""
    wiring = skeleton(model)
    name_apart(wiring.graph)
    foreign = unknown_ops(model)
    try:
        sort_nodes(wiring.graph)
        if not foreign:  # the checker stops at the first operator that it does not know
            check(model)
    except InvalidModelError as error:
        raise InvalidModelError(f"{path}: {error.problem}", error.remedy) from None
    # plugins of TensorRT's own are written into ONNX's domain by custom
    if not all(operator.endswith("_TRT") for operator, _ in foreign):
        operator, node = foreign[0]
        raise UnsupportedOpError(
            f"{path}: operator {operator!r} (node {node!r}) is not in opset {opset_of(model)}",
            "export with a newer opset, replace the operator, or, if it is a TensorRT plugin, "
            "give it its own domain and load its library with --plugin",
        )
