"""What running the front of a graph on parts of the batch saves: its layers' traffic stays in the cache.

A layer gains where what it reads and writes exceeds the cache at the whole batch and fits into it at a part.
The share of its time that is spent on that traffic then shrinks by how much faster the cache is; every
further run of a layer costs a launch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from trtopt.inspect.graph import Graph
from trtopt.records import DevicePeaks, ProfiledLayer

_BITS = {
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "int32": 32,
    "int64": 64,
}
_USABLE = 0.75
"""The share of the cache that a layer's tensors may fill; weights and scratch memory take the rest."""
_FASTER = 1.5
"""The cache's bandwidth over the memory's."""
_LAUNCH_MS = 0.002
"""One more kernel in a CUDA graph, its ramp and its tail."""
_UNKNOWN_SHARE = 0.5
"""Of a layer's time, where no peaks tell how much of it its traffic takes."""


@dataclass(frozen=True)
class PredictedSplit:
    """A cut, the parts that the nodes before it run on, and the milliseconds that this may save."""

    tensors: tuple[str, ...]
    parts: int
    saved_ms: float


def predicted_splits(
    layers: Sequence[ProfiledLayer],
    graph: Graph,
    fronts: Sequence[tuple[tuple[str, ...], Collection[int]]],
    parts: Sequence[int],
    cache_bytes: int,
    peaks: DevicePeaks | None,
) -> list[PredictedSplit]:
    """Those that save time, the best first; `fronts` are the tensors of cuts with the nodes before them."""
    found = []
    for tensors, nodes in fronts:
        before = [layer for layer in layers if _lies_in(layer, graph, nodes)]
        for count in parts:
            saved = sum(_saved_ms(layer, graph, count, cache_bytes, peaks) for layer in before)
            if saved > 0:
                found.append(PredictedSplit(tensors, count, saved))
    return sorted(found, key=lambda one: -one.saved_ms)


def _lies_in(layer: ProfiledLayer, graph: Graph, nodes: Collection[int]) -> bool:
    own = [graph.by_name[name].index for name in layer.onnx_nodes if name in graph.by_name]
    return bool(own) and all(index in nodes for index in own)


def _saved_ms(
    layer: ProfiledLayer, graph: Graph, parts: int, cache_bytes: int, peaks: DevicePeaks | None
) -> float:
    ms, traffic = layer.ms or 0.0, sum(_traffic(layer, graph))
    launches = (parts - 1) * _LAUNCH_MS
    room = _USABLE * cache_bytes
    if traffic <= room or traffic / parts > room:
        return -launches
    moving = _UNKNOWN_SHARE * ms if peaks is None else min(ms, traffic / peaks.bandwidth.value * 1e3)
    return moving * (1 - 1 / _FASTER) - launches


def _traffic(layer: ProfiledLayer, graph: Graph) -> Iterator[float]:
    """Bytes of each tensor that a layer exchanges with others; weights are not of the batch."""
    nodes = [graph.by_name[name] for name in layer.onnx_nodes if name in graph.by_name]
    own = {node.index for node in nodes}
    made = {name for node in nodes for name in node.outputs}
    read = {name for node in nodes for name in node.inputs if name and not graph.is_constant(name)}
    kept = {
        name
        for name in made
        if name in graph.outputs or any(one.index not in own for one in graph.consumers.get(name, ()))
    }
    for name in (read - made) | kept:
        if name in graph.shapes:
            yield math.prod(graph.shapes[name]) * _BITS.get(graph.stored_dtype(name), 32) / 8
