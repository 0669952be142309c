"""Reading an ONNX file: is it one, what are its inputs, what may be asked of it.

TensorRT's parser accepts empty files and plain text without complaint, so a file is judged here first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trtopt.errors import InvalidModelError, UnsupportedOpError
from trtopt.records import OnnxArtifact, TensorSpec

if TYPE_CHECKING:
    import onnx

_CHUNK_BYTES = 1 << 20


def read_onnx(path: Path) -> OnnxArtifact:
    """Check an ONNX file and describe it. Weights kept in external files are hashed, not loaded.

    Raises:
        InvalidModelError: no such file, not ONNX, truncated, empty graph, duplicate names, weights missing
            or kept outside the model's folder, or anything else that ONNX's own checker objects to.
        UnsupportedOpError: an operator of ONNX's own domain that the model's opset does not have.
    """
    model = load_graph(path)
    externals = external_files(model, path)
    _check_opset(model, path)
    _check_names(model, path)
    _check_with_onnx(model, path)
    return OnnxArtifact(
        path=str(path),
        sha256=sha256_of([path, *externals]),
        opset=opset_of(model),
        inputs=tuple(_spec(value) for value in _real_inputs(model)),
        outputs=tuple(_spec(value) for value in model.graph.output),
        types=tuple(sorted(_element_types(model))),
    )


def load_graph(path: Path) -> onnx.ModelProto:
    """The model without its external weights.

    Raises:
        InvalidModelError: no such file, not ONNX, truncated, or a graph with no nodes and no outputs.
    """
    import onnx
    from google.protobuf.message import DecodeError

    if not path.is_file():
        raise InvalidModelError(f"{path}: no such file", "give the path of an .onnx file")
    if path.stat().st_size == 0:
        raise InvalidModelError(f"{path}: the file is empty", "export the model again")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise InvalidModelError(
            f"{path}: not an ONNX file, or cut short ({error})",
            "export the model again, or copy it again if it was copied",
        ) from None
    if not model.graph.node or not model.graph.output:
        raise InvalidModelError(
            f"{path}: the graph has no nodes or no outputs", "is this the ONNX file that the exporter wrote?"
        )
    return model


def external_files(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files that hold the model's external weights, sorted.

    Raises:
        InvalidModelError: one is missing, too short, or lies outside the model's own folder.
    """
    needed: dict[str, int] = {}
    for tensor in _tensors(model.graph):
        if not tensor.external_data:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        end = int(entry.get("offset") or 0) + int(entry.get("length") or 0)
        needed[location] = max(needed.get(location, 0), end)
    for location, end in needed.items():
        _check_external(path, location, end)
    return [path.parent / location for location in sorted(needed)]


def _check_external(path: Path, location: str, end: int) -> None:
    parts = PurePosixPath(location)
    if not location or parts.is_absolute() or ".." in parts.parts:
        raise InvalidModelError(
            f"{path}: its weights are said to be in {location!r}, outside the model's own folder",
            "save the model again with its weights beside it",
        )
    file = path.parent / location
    if not file.is_file():
        raise InvalidModelError(
            f"{path}: its weights file {location!r} is missing", f"put {parts.name} beside {path.name}"
        )
    if file.stat().st_size < end:
        raise InvalidModelError(
            f"{path}: its weights file {location!r} has {file.stat().st_size} bytes, {end} are needed",
            "copy the weights file again: it was cut short",
        )


def sha256_of(paths: Iterable[Path]) -> str:
    """One hash over the contents of several files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that the model asks for; 0 if it asks for none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and, depth first, every subgraph of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
            for child in attribute.graphs:
                yield from graphs_of(child)


def unknown_ops(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(operator, node name) of each node of ONNX's own domain that no opset up to the model's has."""
    import onnx

    opset = opset_of(model)
    local = {(function.domain, function.name) for function in model.functions}
    return [
        (node.op_type, node.name or "an unnamed node")
        for graph in graphs_of(model.graph)
        for node in graph.node
        if node.domain in ("", "ai.onnx")
        and (node.domain, node.op_type) not in local
        and not onnx.defs.has(node.op_type, opset, "")
    ]


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for part in graphs_of(graph):
        yield from part.initializer
        for sparse in part.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in part.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def _real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Inputs that a caller must give: old files list initializers among the inputs."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initializers]


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape: list[int | str] = []
    for axis in tensor.shape.dim:
        shape.append(axis.dim_value if axis.HasField("dim_value") else (axis.dim_param or "?"))
    return TensorSpec(name=value.name, dtype=dtype_name(tensor.elem_type), shape=tuple(shape))


def dtype_name(elem_type: int) -> str:
    """The NumPy name of an ONNX element type, or `unknown`."""
    import onnx

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        return "unknown"


def _element_types(model: onnx.ModelProto) -> set[str]:
    """Types that appear in the graph: of inputs and outputs, initializers, constants and casts."""
    import onnx

    found = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    found |= {tensor.data_type for tensor in _tensors(model.graph)}
    for graph in graphs_of(model.graph):
        for node in graph.node:
            found |= {
                attribute.i
                for attribute in node.attribute
                if attribute.name in ("to", "dtype", "output_dtype")
            }
            if node.op_type == "QuantizeLinear" and len(node.input) < 3:
                found.add(onnx.TensorProto.UINT8)  # the operator's default zero point
    return {dtype_name(elem_type) for elem_type in found} - {"unknown"}


def _check_opset(model: onnx.ModelProto, path: Path) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise InvalidModelError(
            f"{path}: opset {opset_of(model)} is newer than onnx {onnx.__version__} knows ({newest})",
            "export with an older opset, or upgrade onnx if that opset exists",
        )


def _check_names(model: onnx.ModelProto, path: Path) -> None:
    outputs = Counter(name for node in model.graph.node for name in node.output if name)
    outputs.update({value.name for value in model.graph.input})
    twice = sorted(name for name, count in outputs.items() if count > 1)
    inputs = Counter(value.name for value in model.graph.input)
    twice += sorted(name for name, count in inputs.items() if count > 1)
    if twice:
        raise InvalidModelError(
            f"{path}: tensor name {twice[0]!r} is given to more than one tensor",
            "tensor names must be unique: export the model again, or rename in the tool that merged graphs",
        )


def _check_with_onnx(model: onnx.ModelProto, path: Path) -> None:
    """ONNX's own checker, with its message; operators it does not know are named with their nodes."""
    import onnx

    foreign = unknown_ops(model)
    if foreign and not _may_be_plugins(foreign):
        operator, node = foreign[0]
        raise UnsupportedOpError(
            f"{path}: operator {operator!r} (node {node!r}) is not in opset {opset_of(model)}",
            "export with a newer opset, replace the operator, or, if it is a TensorRT plugin, "
            "give it a domain of its own and load its library with --plugin",
        )
    if foreign:  # the checker stops at the first operator that it does not know
        return
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        message = str(error).strip().splitlines()[0]
        raise InvalidModelError(f"{path}: {message}", "export the model again") from None


def _may_be_plugins(operators: list[tuple[str, str]]) -> bool:
    """Plugins of TensorRT's own are written into ONNX's domain by custom; they end in `_TRT`."""
    return all(operator.endswith("_TRT") for operator, _ in operators)
