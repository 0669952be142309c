"""One engine at one batch size, looked at from every side."""

from __future__ import annotations

import numpy as np

from trtopt.inspect.fusion import fused, unfused
from trtopt.inspect.graph import Graph
from trtopt.inspect.groups import by_dtype, by_kind, by_module
from trtopt.inspect.join import join
from trtopt.inspect.receipt import receipt
from trtopt.inspect.roofline import furthest_above, total, with_floors
from trtopt.records import BenchPoint, DevicePeaks, EngineDescription, EngineProfile


def profile_point(
    point: BenchPoint,
    description: EngineDescription | None,
    graph: Graph,
    peaks: DevicePeaks | None,
    *,
    infer: bool = False,
) -> EngineProfile:
    """Bring a point's layer pass, the inspector's description and the graph at the point's shapes together.

    `infer` is for backends that name only part of what they fused; see `mapping.map_layers`.
    """
    joined, coverage = join(description, point.layers, graph, infer=infer)
    layers = with_floors(joined, peaks)
    return EngineProfile(
        batch=point.batch,
        engine=point.latency.engine,
        layers=layers,
        sum_ms=sum(layer.ms or 0.0 for layer in layers),
        latency_ms=_latency_ms(point),
        by_kind=by_kind(layers),
        by_dtype=by_dtype(layers),
        by_module=by_module(layers),
        coverage=coverage,
        fusions=fused(layers),
        unfused=unfused(layers, graph),
        receipt=receipt(layers),
        roofline=total(layers),
        furthest=furthest_above(layers),
    )


def _latency_ms(point: BenchPoint) -> float | None:
    samples = point.latency.samples.gpu_compute_ms
    return float(np.median(samples)) if samples else None
