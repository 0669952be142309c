"""The largest |x| of every tensor over the samples, by which casts are decided; and outputs on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx.helper import make_node, make_tensor_value_info

from trtopt.data import SampleSource
from trtopt.data.feeds import inputs_of
from trtopt.data.readers import Arrays
from trtopt.onnxio.graph_walk import OWN_DOMAINS, opset_of, refill, subgraphs_of
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile, array_of, spooled
from trtopt.onnxio.shape_inference import FLOAT, types_of
from trtopt.precision.observe import float_tensors, observe
from trtopt.precision.running import passing, with_weights_dequantized


class Reference:
    """Picks a model's inputs and outputs out of what is observed of it; the files go into `folder`."""

    def __init__(self, model: onnx.ModelProto, folder: Path, samples: int) -> None:
        self._folder, self._samples = folder, samples
        self._inputs = frozenset[str](item.name for item in inputs_of(model))
        self._outputs = [item.name for item in model.graph.output if item.type.HasField("tensor_type")]
        self.names = self._inputs.union(self._outputs)
        """The tensors that must be observed."""
        self._batches: dict[int, dict[str, onnx.TensorProto]] = {}
        self._texts: dict[int, Arrays] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Keep what belongs to a batch that begins among the first samples; see `observe.Visitor`."""
        if name not in self.names or first >= self._samples:
            return
        if values.dtype.kind not in "OSU":
            self._batches.setdefault(first, {})[name] = spooled(values, name, self._folder)
        elif name in self._inputs:
            self._texts.setdefault(first, {})[name] = values

    def pairs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and outputs by name, a batch at a time, mapped from the files."""
        for first, kept in self._batches.items():
            arrays = {name: array_of(tensor, self._folder) for name, tensor in kept.items()}
            yield (
                {name: array for name, array in arrays.items() if name in self._inputs}
                | self._texts.get(first, {}),
                {name: arrays[name] for name in self._outputs if name in arrays},
            )


_AT_ONCE = 8


def measured(
    model: ModelFile, samples: SampleSource, reference: Reference | None = None
) -> tuple[dict[str, float], int]:
    """The largest finite |x| of every FP32 tensor, and over how many samples; `reference` keeps its share.

    Tensors of subgraphs are in it if a sample ran them.
    """
    with passing(model) as spooling:
        return _measured(model, with_weights_dequantized(spooling), samples, reference)


def _measured(
    model: ModelFile, folded: ModelFile, samples: SampleSource, reference: Reference | None
) -> tuple[dict[str, float], int]:
    """As `measured`; `folded` is the model with constants in place of its weights' Q/DQ."""
    peaks = dict.fromkeys(float_tensors(folded), 0.0)
    inner: dict[str, float] = {}
    watched = with_subgraph_peaks(folded)

    def visit(name: str, values: NDArray[Any], first: int) -> None:
        if reference is not None:
            reference.visit(name, values, first)
        if name in peaks:
            peaks[name] = max(peaks[name], _peak(values))
        if name in watched.tensors:
            for tensor, peak in zip(watched.tensors[name], values, strict=True):
                if peak != NOT_RUN:
                    inner[tensor] = max(inner.get(tensor, 0.0), float(peak))

    names = {*peaks, *watched.tensors, *(reference.names if reference is not None else ())}
    seen = observe(in_fp32(watched.model), samples, names, visit, at_once=_AT_ONCE)
    weights = set(float_tensors(model)) - peaks.keys()
    constants = {item.name: item for item in folded.proto.graph.initializer}
    of_weights = {name: _peak(array_of(constants[name], folded.folder)) for name in weights}
    return peaks | inner | of_weights, seen.samples


def _peak(values: NDArray[np.float32]) -> float:
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    if not np.isfinite(high - low):  # masks may be infinite on purpose
        finite = values[np.isfinite(values)]
        high, low = float(finite.max(initial=0.0)), float(finite.min(initial=0.0))
    return max(high, -low)


# Inside the subgraphs of Ifs, Loops and Scans it is brought out as one more output of each.


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
