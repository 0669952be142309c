"""One engine at one batch size, looked at from every side."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from trtopt.inspect.fusion import fused, unfused
from trtopt.inspect.graph import Graph
from trtopt.inspect.groups import by_dtype, by_kind, by_module, by_node
from trtopt.inspect.join import join
from trtopt.inspect.memory import timeline
from trtopt.inspect.receipt import receipt
from trtopt.inspect.roofline import furthest_above, total, with_floors
from trtopt.records import (
    BenchPoint,
    DevicePeaks,
    EngineDescription,
    EngineLayer,
    EngineProfile,
    EngineRef,
    LayerPass,
)


def profile_point(
    point: BenchPoint,
    description: EngineDescription | None,
    graph: Graph,
    peaks: DevicePeaks | None,
    *,
    infer: bool = False,
    weakly_typed: bool = False,
) -> EngineProfile:
    """Bring a point's layer pass, the inspector's description and the graph at the point's shapes together.

    Without a description the profiler's names are all there is. `infer` is for backends that name only part
    of what they fused; see `mapping.map_layers`. `weakly_typed` is for `receipt.receipt`.
    """
    stages = point.latency.stages
    found = _profile(
        point.batch,
        point.latency.engine,
        description,
        point.layers,
        graph,
        peaks,
        latency_ms=_median(stages.gpu_compute_ms),
        infer=infer,
        weakly_typed=weakly_typed,
    )
    return msgspec.structs.replace(
        found,
        h2d_ms=_median(stages.h2d_ms),
        d2h_ms=_median(stages.d2h_ms),
        memory=None if point.memory is None else timeline(point.memory),
        layers_graph=point.layers is not None and point.layers.graph,
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def profile_graph(batch: int, engine: EngineRef, graph: Graph, peaks: DevicePeaks | None) -> EngineProfile:
    """The profile of an engine that cannot run here: one layer for each node of the ONNX file."""
    nodes = tuple(
        EngineLayer(name=node.name, kind=node.op, onnx_nodes=(node.name,))
        for node in graph.nodes
        if node.op != "Constant"
    )
    return _profile(batch, engine, EngineDescription(layers=nodes), None, graph, peaks, is_engine=False)


def _profile(
    batch: int,
    engine: EngineRef,
    description: EngineDescription | None,
    times: LayerPass | None,
    graph: Graph,
    peaks: DevicePeaks | None,
    *,
    latency_ms: float | None = None,
    infer: bool = False,
    weakly_typed: bool = False,
    is_engine: bool = True,
) -> EngineProfile:
    joined, coverage = join(description, times, graph, infer=infer)
    layers = with_floors(joined, peaks)
    return EngineProfile(
        batch=batch,
        engine=engine,
        layers=layers,
        sum_ms=sum(layer.ms or 0.0 for layer in layers),
        latency_ms=latency_ms,
        by_kind=by_kind(layers),
        by_dtype=by_dtype(layers),
        by_node=by_node(layers),
        by_module=by_module(layers),
        coverage=coverage,
        fusions=fused(layers),
        unfused=unfused(layers, graph) if is_engine else (),
        receipt=receipt(layers, weakly_typed=weakly_typed),
        roofline=total(layers),
        furthest=furthest_above(layers),
    )
