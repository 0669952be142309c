"""The graph that an exporter leaves: named and lowered to opset 17."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from trtopt.errors import UnsupportedOpError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, REDUCTIONS, graphs_of, rename_tensors

# Predictable names: a node is called after the module that it comes from, a tensor after its node.
#
# `layer1.0.conv1/Conv` is the Conv of module `layer1.0.conv1`; a second one is `layer1.0.conv1/Conv_1`. The
# same model gives the same names with either exporter as far as they emit the same operators, and
# names of engine layers lead back to modules.


_SCOPES = "pkg.torch.onnx.name_scopes"


def rename(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name everything in place and drop the exporter's notes, which hold local file paths.

    Inputs and outputs get the given names, in order; initializers named after parameters keep theirs.
    """
    graph = model.graph
    fixed = {value.name for value in (*graph.input, *graph.output)}
    fixed |= {tensor.name for tensor in graph.initializer if not _is_anonymous(tensor.name)}
    seen: Counter[str] = Counter()
    renamed = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    renamed |= {value.name: name for value, name in zip(graph.output, outputs, strict=True)}
    for node in graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        path = _owner_of_weights(node, fixed) or _module_path(notes, node.name)
        node.name = _unique(f"{path}/{node.op_type}".lstrip("/"), seen)
        for index, output in enumerate(node.output):
            if output and output not in fixed:
                renamed[output] = f"{node.name}.{index}" if index else f"{node.name}"
    _name_constants(graph, fixed, renamed)
    for part in graphs_of(graph):
        rename_tensors(part, renamed)
    _strip(model)


def _is_anonymous(name: str) -> bool:
    """Whether an exporter made the name up."""
    return bool(re.match(r"(val_\d+|onnx::.*|/.*|\d+|_.*|.*::.*)$", name))


def _owner_of_weights(node: onnx.NodeProto, named: set[str]) -> str:
    """The module whose parameter the node reads: a Conv into which BatchNorm was folded stays a Conv."""
    weights = [name for name in node.input if name in named and name.endswith(".weight")]
    return weights[0].removesuffix(".weight") if weights else ""


def _module_path(notes: dict[str, str], name: str) -> str:
    if _SCOPES in notes:
        scopes = ast.literal_eval(notes[_SCOPES])
        path = str(scopes[-2]) if len(scopes) > 1 else ""
        return "" if path.startswith("_empty_nn_module_stack") else path
    parts = [part for part in name.split("/")[:-1] if part]  # torchscript: /layer1/layer1.0/Conv
    return re.sub(r"_\d+$", "", parts[-1]) if parts else ""


def _unique(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}_{seen[name] - 1}"


def _name_constants(graph: onnx.GraphProto, fixed: set[str], renamed: dict[str, str]) -> None:
    """Name each anonymous initializer after the first node that reads it: `NODE:INPUT_NUMBER`."""
    anonymous = {tensor.name for tensor in graph.initializer} - fixed
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in anonymous and name not in renamed:
                renamed[name] = f"{node.name}:{index}"


def _strip(model: onnx.ModelProto) -> None:
    graph = model.graph
    for entry in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        del entry.metadata_props[:]
    for entry in (graph, *graph.node):
        entry.doc_string = ""


def name_axes(model: onnx.ModelProto, shapes: dict[str, tuple[int | str, ...]]) -> None:
    """Give the exporter's axis symbols (`s77`) the names that the inputs' shapes give them, everywhere."""
    symbols: dict[str, str] = {}
    for value in model.graph.input:
        for dim, axis in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            if dim.dim_param and isinstance(axis, str):
                symbols.setdefault(dim.dim_param, axis)
                dim.dim_param = axis
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda word: symbols.get(word[0], word[0]), dim.dim_param)


# From opset 18, which PyTorch's exporter writes, to 17, the newest that TensorRT 8.6 reads.
#
# Opset 18 moved the `axes` of reductions from an attribute to an input, and gave operators options. Each is
# put back where it means the same; what has no form in 17 is refused by name. Shape's `start` and `end`,
# which 8.6's parser passes over, become a Slice.


_REDUCTIONS = {*REDUCTIONS} - {"ReduceSum"}
"""ReduceSum takes its axes as an input at 17 too."""


def lower_to_17(model: onnx.ModelProto) -> None:
    """Rewrite an opset-18 model to opset 17 in place."""
    parts = list(graphs_of(model.graph))
    constants = {tensor.name: tensor for part in parts for tensor in part.initializer}
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for part in parts
        for value in (*part.input, *part.value_info, *part.output)
    }
    for node in [node for part in parts for node in part.node if node.domain in OWN_DOMAINS]:
        if not onnx.defs.has(node.op_type, 17, ""):
            raise _refused(node, "does not exist in opset 17")
        if node.op_type in _REDUCTIONS and len(node.input) > 1:
            axes = [int(axis) for axis in _constant(node, 1, constants)] if node.input[1] else []
            node.attribute.extend([onnx.helper.make_attribute("axes", axes)] if axes else [])
            del node.input[1:]
        elif node.op_type == "Pad" and len(node.input) > 3 and node.input[3]:
            _pad(node, constants, ranks, model)
        elif node.op_type in ("ScatterElements", "ScatterND") and any(
            entry.name == "reduction" and entry.s in (b"max", b"min") for entry in node.attribute
        ):
            raise _refused(node, "reduces with max or min, which opset 17 has not")
        _drop_options(node)
    for part in reversed(parts):  # inner ones first: nodes of the outer are copied with them
        _slice_whole_shapes(part)
    for entry in model.opset_import:
        if entry.domain in OWN_DOMAINS:
            entry.version = 17
    model.ir_version = 8


def _drop_options(node: onnx.NodeProto) -> None:
    """Take off attributes that opset 17 has not: it does what they say by default."""
    known, newer = (onnx.defs.get_schema(node.op_type, opset, "").attributes for opset in (17, 18))
    for entry in [entry for entry in node.attribute if entry.name not in known]:
        usual = newer[entry.name].default_value
        if entry.name != "num_outputs" and (entry.type, entry.i, entry.s) != (usual.type, usual.i, usual.s):
            raise _refused(node, f"uses {entry.name!r}, which opset 17 has not")
        node.attribute.remove(entry)


def _slice_whole_shapes(graph: onnx.GraphProto) -> None:
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        ends = {entry.name: entry.i for entry in node.attribute}
        if node.op_type == "Shape" and node.domain in OWN_DOMAINS and (ends.get("start") or "end" in ends):
            like = node.name or node.output[0]
            whole = f"{like}/Shape"
            graph.node.append(onnx.helper.make_node("Shape", node.input, [whole], whole))
            names = [f"{like}:1", f"{like}:2"]
            bounds = [ends.get("start", 0), ends.get("end", np.iinfo(np.int64).max)]
            graph.initializer.extend(
                onnx.numpy_helper.from_array(np.array([bound], np.int64), name)
                for bound, name in zip(bounds, names, strict=True)
            )
            node = onnx.helper.make_node("Slice", [whole, *names], node.output, node.name)
        graph.node.append(node)


def _pad(
    node: onnx.NodeProto,
    constants: dict[str, onnx.TensorProto],
    ranks: dict[str, int],
    model: onnx.ModelProto,
) -> None:
    """Pads of some axes become pads of all."""
    rank = ranks.get(node.input[0])
    if rank is None:
        raise _refused(node, "pads some axes of a tensor of unknown rank")
    pads, axes = _constant(node, 1, constants), _constant(node, 3, constants)
    everywhere = np.zeros((2, rank), np.int64)
    everywhere[:, axes] = pads.reshape(2, -1)
    name = f"{node.name or node.output[0]}:pads"
    model.graph.initializer.append(onnx.numpy_helper.from_array(everywhere.reshape(-1), name))
    kept = [node.input[0], name, node.input[2]]
    node.input[:] = kept if node.input[2] else kept[:2]


def _constant(node: onnx.NodeProto, index: int, constants: dict[str, onnx.TensorProto]) -> np.ndarray:
    if node.input[index] not in constants:
        raise _refused(node, f"computes its input {index} at run time, which opset 17 does not allow")
    return onnx.numpy_helper.to_array(constants[node.input[index]]).reshape(-1)


def _refused(node: onnx.NodeProto, reason: str) -> UnsupportedOpError:
    return UnsupportedOpError(f"{node.op_type} (node {node.name!r}) {reason}", "export with --opset 18")
