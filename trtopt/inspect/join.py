"""Layer times, the inspector's layers and the ONNX graph, brought together by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from trtopt.inspect.costs import cost_of
from trtopt.inspect.graph import Graph, Node
from trtopt.inspect.mapping import Mapped, map_layers
from trtopt.records import Coverage, EngineDescription, EngineLayer, LayerPass, LayerTime, ProfiledLayer

UNKNOWN = "unknown"
_WIDTH = {
    "int4": 4,
    "float4_e2m1fn": 4,
    "int8": 8,
    "uint8": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
}
"""Types that layers compute in, with their bits."""
_TACTIC_TYPES = (
    (re.compile(r"(?:^|_)(?:i8i8|imma|int8|i8)(?:_|\d|$)"), "int8"),
    (re.compile(r"(?:^|_)e4m3"), "float8_e4m3fn"),
    (re.compile(r"(?:^|_)bf16"), "bfloat16"),
    (re.compile(r"(?:^|_)(?:f16f16|h884|h1688|h16816|hmma|f16)(?:_|\d|$)"), "float16"),
    (re.compile(r"(?:^|_)(?:f32f32|tf32tf32|tf32f32|s1688|sgemm|scudnn)(?:_|\d|$)"), "float32"),
)


def bits(dtype: str) -> int:
    """Bits of a type that layers compute in; 0 for any other."""
    return _WIDTH.get(dtype, 0)


def join(
    description: EngineDescription | None, times: LayerPass | None, graph: Graph, *, by_tensors: bool = False
) -> tuple[tuple[ProfiledLayer, ...], Coverage]:
    """Layers in the engine's order, then what the profiler reports and the inspector does not know.

    Without a description the profiler's names are all there is, and are mapped as such. A time that several
    layers of one name share is shown at the first of them.
    """
    by_name = {row.name: row for row in times.layers} if times is not None else {}
    known = description or EngineDescription(
        layers=tuple(EngineLayer(name=name, kind="") for name in by_name)
    )
    described = {layer.name for layer in known.layers}
    extra = tuple(EngineLayer(name=name, kind="") for name in by_name if name not in described)
    every = msgspec.structs.replace(known, layers=known.layers + extra)
    mapped = map_layers(every, graph, by_tensors=by_tensors)
    owned = _weights_of_layers(every.layers, mapped, graph)
    first = {layer.name: layer for layer in reversed(every.layers)}
    layers = tuple(
        _profiled(
            layer,
            by_name.get(layer.name) if layer is first[layer.name] else None,
            mapped[layer.name],
            owned.get(layer.name, ()) if layer is first[layer.name] else (),
            graph,
        )
        for layer in every.layers
    )
    silent = tuple(layer.name for layer in known.layers if layer.name not in by_name) if by_name else ()
    return layers, _coverage(layers, graph, mapped, tuple(layer.name for layer in extra), silent)


def _profiled(
    layer: EngineLayer, time: LayerTime | None, mapped: Mapped, owned: Sequence[Node], graph: Graph
) -> ProfiledLayer:
    """One layer; `owned` are the nodes whose weights it holds."""
    median = low = high = None
    if time is not None and time.ms:
        low, median, high = (float(value) for value in np.percentile(time.ms, (10, 50, 90)))
    return ProfiledLayer(
        name=layer.name,
        kind=layer.kind,
        ms=median,
        low_ms=low,
        high_ms=high,
        dtype=ran_dtype(layer, is_opaque=mapped.is_opaque, is_reformat=mapped.is_reformat),
        requested_dtype="" if mapped.is_reformat else requested_dtype(owned or mapped.nodes, graph),
        is_reformat=mapped.is_reformat,
        is_opaque=mapped.is_opaque,
        tactic=layer.tactic,
        inputs=layer.inputs,
        outputs=layer.outputs,
        weights_count=layer.weights_count or _weights_in(owned, graph),
        onnx_nodes=tuple(node.name for node in mapped.nodes),
        onnx_ops=tuple(node.op for node in mapped.nodes),
        mapped_by=mapped.by,
        cost=cost_of(graph, mapped.nodes) if mapped.nodes and not mapped.is_reformat else None,
    )


def ran_dtype(layer: EngineLayer, *, is_opaque: bool = False, is_reformat: bool = False) -> str:
    """The type that a layer computed in: of its weights, else its tactic's, else its inputs'.

    A reformat's is the type that it writes. What happens inside an opaque layer is unknown.
    """
    if is_reformat:
        return next((tensor.dtype for tensor in layer.outputs if tensor.dtype), "")
    if is_opaque:
        return ""
    if layer.weights_dtype:
        return layer.weights_dtype
    by_tactic = next((dtype for sign, dtype in _TACTIC_TYPES if sign.search(layer.tactic)), "")
    if by_tactic:
        return by_tactic
    tensors = (*layer.inputs, *layer.outputs)
    types = [tensor.dtype for tensor in tensors if bits(tensor.dtype)] or [
        t.dtype for t in tensors if t.dtype
    ]
    return types[0] if types else ""


def requested_dtype(nodes: Sequence[Node], graph: Graph) -> str:
    """The narrowest type that the graph requests for nodes with weights; without such, for any."""
    weighted = [node for node in nodes if graph.weight_of(node)]
    requested = [dtype for node in weighted or nodes if bits(dtype := graph.requested_dtype(node))]
    return min(requested, key=bits, default="")


def _weights_of_layers(
    layers: Sequence[EngineLayer], mapped: Mapping[str, Mapped], graph: Graph
) -> dict[str, list[Node]]:
    """Layer → nodes whose weights it holds.

    Newer versions name one node in several layers, such as the product and a cast that prepares its weights:
    the layer that ran in the narrowest type holds them, of equals the one that covers least.
    """
    best: dict[int, tuple[tuple[bool, int, int], EngineLayer, Node]] = {}
    for layer in layers:
        one = mapped[layer.name]
        if one.is_reformat:
            continue
        width = bits(ran_dtype(layer, is_opaque=one.is_opaque))
        rank = (width == 0, width, len(one.nodes))
        for node in one.nodes:
            if graph.weight_of(node) and (node.index not in best or rank < best[node.index][0]):
                best[node.index] = (rank, layer, node)
    owned: dict[str, list[Node]] = {}
    for _, layer, node in best.values():
        owned.setdefault(layer.name, []).append(node)
    return owned


def _weights_in(nodes: Sequence[Node], graph: Graph) -> int:
    """Elements of the weights that nodes hold; those that two share count once."""
    names = {name for node in nodes if (name := graph.weight_of(node))}
    return sum(int(np.prod(graph.shapes.get(name, (0,)), dtype=np.int64)) for name in names)


def _coverage(
    layers: Sequence[ProfiledLayer],
    graph: Graph,
    mapped: Mapping[str, Mapped],
    unmatched_times: tuple[str, ...],
    unmatched_layers: tuple[str, ...],
) -> Coverage:
    total = sum(layer.ms or 0.0 for layer in layers)

    def share(chosen: Sequence[ProfiledLayer]) -> float:
        return sum(layer.ms or 0.0 for layer in chosen) / total if total else 0.0

    covered = {node.index for one in mapped.values() if not one.is_reformat for node in one.nodes}
    working = [node for node in graph.nodes if node.op != "Constant"]
    return Coverage(
        time_mapped=share([layer for layer in layers if layer.onnx_nodes]),
        nodes_mapped=sum(node.index in covered for node in working) / len(working) if working else 0.0,
        time_opaque=share([layer for layer in layers if layer.is_opaque]),
        unmatched_times=unmatched_times,
        unmatched_layers=unmatched_layers,
    )
