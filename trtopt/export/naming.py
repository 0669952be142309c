"""Predictable names: a node is called after the module that it comes from, a tensor after its node.

`layer1.0.conv1/Conv` is the Conv of module `layer1.0.conv1`; a second one is `layer1.0.conv1/Conv_1`. The
same model gives the same names with either exporter as far as they emit the same operators, and
names of engine layers lead back to modules.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"
_TRACE = "pkg.torch.onnx.stack_trace"


def rename(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Name everything in place and drop the exporter's notes, which hold local file paths.

    Inputs and outputs get the given names, in order; initializers named after parameters keep theirs.

    Returns:
        {node name: "file:line"} of the source line that each node comes from, where the exporter knew it.
    """
    graph = model.graph
    fixed = {value.name for value in (*graph.input, *graph.output)}
    fixed |= {tensor.name for tensor in graph.initializer if not _is_anonymous(tensor.name)}
    seen: Counter[str] = Counter()
    renamed = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    renamed |= {value.name: name for value, name in zip(graph.output, outputs, strict=True)}
    origins: dict[str, str] = {}
    for node in graph.node:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        path = _owner_of_weights(node, fixed) or _module_path(notes, node.name)
        node.name = _unique(f"{path}/{node.op_type}".lstrip("/"), seen)
        if line := _source_line(notes.get(_TRACE, "")):
            origins[node.name] = line
        for index, output in enumerate(node.output):
            if output and output not in fixed:
                renamed[output] = f"{node.name}.{index}" if index else f"{node.name}"
    _name_constants(graph, fixed, renamed)
    _apply(graph, renamed)
    _strip(model)
    return origins


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


def _apply(graph: onnx.GraphProto, renamed: dict[str, str]) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _apply(attribute.g, renamed)
    for entry in (*graph.value_info, *graph.initializer, *graph.input, *graph.output):
        entry.name = renamed.get(entry.name, entry.name)


def _source_line(trace: str) -> str:
    """The innermost line of a stack trace that is not PyTorch's own, as `file:line`."""
    lines = re.findall(r'File "(.+?)", line (\d+)', trace)
    own = [(file, line) for file, line in lines if "/torch/" not in file and not file.startswith("torch/")]
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


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
