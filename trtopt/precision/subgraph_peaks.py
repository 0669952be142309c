"""The largest |x| inside the subgraphs of Ifs, Loops and Scans, brought out as one more output of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx.helper import make_node, make_tensor_value_info

from trtopt.onnxio.graph_walk import OWN_DOMAINS, opset_of, refill, subgraphs_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, types_of

_STEM = "trtopt.peaks."
_OPSET = 9
"""The first that has Where, and Scan in its present form."""
NOT_RUN = -1.0
"""Stands for the peak of a tensor that no run made."""


@dataclass(frozen=True)
class WithPeaks:
    """A model with outputs of peaks, FP32 vectors; `tensors` names what each one's elements are of."""

    model: ModelFile
    tensors: Mapping[str, tuple[str, ...]]


def gives_peaks(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node's subgraphs are watched: If, Loop and Scan, from opset 9 on."""
    return opset >= _OPSET and node.domain in OWN_DOMAINS and node.op_type in ("If", "Loop", "Scan")


def with_subgraph_peaks(model: ModelFile) -> WithPeaks:
    """A copy of a prepared model whose nodes of control flow also give peaks.

    A peak is the largest finite |x| of an FP32 tensor inside, over all steps of a loop; it is `NOT_RUN` in a
    branch that was not taken and in a loop without a step.
    """
    opset = opset_of(model.proto)
    if not any(gives_peaks(node, opset) for node in model.proto.graph.node):
        return WithPeaks(model, {})
    floats = {name for name, kind in types_of(model.proto).items() if kind == FLOAT}
    proto = deepcopy(model.proto)
    found = {_vector_of(node): _watch(node, proto.graph, floats) for node in proto.graph.node}
    return WithPeaks(replace(model, proto=proto), {vector: names for vector, names in found.items() if names})


def _vector_of(node: onnx.NodeProto) -> str:
    return f"{_STEM}{node.name}"


def _watch(node: onnx.NodeProto, graph: onnx.GraphProto, floats: Collection[str]) -> tuple[str, ...]:
    """Give a node of `graph` the output `_vector_of` it, if there is FP32 inside; what it is the peaks of."""
    if not gives_peaks(node, _OPSET):
        return ()
    return _watch_branches(node, floats) if node.op_type == "If" else _watch_body(node, graph, floats)


def _watch_branches(node: onnx.NodeProto, floats: Collection[str]) -> tuple[str, ...]:
    """Each branch gives the peaks of both, those of the other as not run."""
    branches = [item.g for item in node.attribute if item.type == item.GRAPH]
    stems = [f"{_vector_of(node)}.{number}" for number in range(len(branches))]
    inside = [_add_peaks(branch, stem, floats) for branch, stem in zip(branches, stems, strict=True)]
    names = tuple(name for found in inside for name in found)
    if not names:
        return ()
    for branch, stem in zip(branches, stems, strict=True):
        parts = [
            other if other == stem else _constant(branch, f"{stem}.not{number}", [NOT_RUN] * len(found))
            for number, (other, found) in enumerate(zip(stems, inside, strict=True))
        ]
        branch.node.append(make_node("Concat", parts, [f"{stem}.all"], axis=0))
        branch.output.append(make_tensor_value_info(f"{stem}.all", FLOAT, [len(names)]))
    node.output.append(_vector_of(node))
    return names


def _watch_body(node: onnx.NodeProto, graph: onnx.GraphProto, floats: Collection[str]) -> tuple[str, ...]:
    """Peaks go round with what the loop carries, behind it."""
    (body,) = subgraphs_of(node)
    stem = _vector_of(node)
    names = _add_peaks(body, f"{stem}.step", floats)
    if not names:
        return ()
    if node.op_type == "Loop":
        node.input.extend([""] * (2 - len(node.input)))
    scanned = next((item.i for item in node.attribute if item.name == "num_scan_inputs"), 0)
    behind = len(node.input) - scanned
    ahead = 1 if node.op_type == "Loop" else 0  # a condition comes before what a Loop's body carries
    entry = make_tensor_value_info(f"{stem}.before", FLOAT, [len(names)])
    body.node.append(make_node("Max", [entry.name, f"{stem}.step"], [f"{stem}.after"]))
    start = _constant(graph, f"{stem}.start", [NOT_RUN] * len(names))
    carried = behind - 2 * ahead  # neither its trip count nor its condition is carried
    _insert(node.input, behind, start)
    _insert(body.input, behind, entry)
    _insert(body.output, carried + ahead, make_tensor_value_info(f"{stem}.after", FLOAT, [len(names)]))
    _insert(node.output, carried, stem)
    return names


def _insert(field: Any, place: int, item: object) -> None:
    """Into a repeated field, which has no insert for messages."""
    items = [*field]
    refill(field, [*items[:place], item, *items[place:]])


def _add_peaks(graph: onnx.GraphProto, vector: str, floats: Collection[str]) -> tuple[str, ...]:
    """Compute the peaks in a subgraph, nodes' inner ones included, as `vector`; the tensors they are of."""
    names: list[str] = []
    parts: list[str] = []
    for node in graph.node:
        if inner := _watch(node, graph, floats):
            names += inner
            parts.append(_vector_of(node))
    own = [*(item.name for item in graph.input), *(name for node in graph.node for name in node.output)]
    own = [name for name in own if name in floats]
    zero = _constant(graph, f"{vector}.zero", [0.0])
    infinity = _constant(graph, f"{vector}.infinity", [np.inf])
    flat = _constant(graph, f"{vector}.flat", np.array([-1]))
    for number, name in enumerate(own):
        size, is_finite, finite, row, padded, peak = (f"{vector}.{number}.{step}" for step in range(6))
        graph.node.extend(
            [
                make_node("Abs", [name], [size]),
                make_node("Less", [size, infinity], [is_finite]),
                make_node("Where", [is_finite, size, zero], [finite]),
                make_node("Reshape", [finite, flat], [row]),
                make_node("Concat", [row, zero], [padded], axis=0),  # the tensor may be empty
                make_node("ReduceMax", [padded], [peak]),
            ]
        )
        parts.append(peak)
    if parts:
        graph.node.append(make_node("Concat", parts, [vector], axis=0))
    else:
        _constant(graph, vector, [])
    return (*names, *own)


def _constant(graph: onnx.GraphProto, name: str, values: ArrayLike) -> str:
    array = np.asarray(values)
    is_float = array.dtype == np.float64
    graph.initializer.append(
        onnx.numpy_helper.from_array(array.astype(np.float32) if is_float else array, name)
    )
    return name
