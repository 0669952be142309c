"""One engine at one batch size, looked at from every side."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from trtopt.inspect.costs import furthest_above, total, with_floors
from trtopt.inspect.fusion import fused, unfused
from trtopt.inspect.gates import float_gates
from trtopt.inspect.graph import Graph
from trtopt.inspect.inspector import EngineDescription
from trtopt.inspect.kernels.report import report_kernels
from trtopt.inspect.layers import UNKNOWN, join
from trtopt.inspect.memory import timeline
from trtopt.inspect.receipt import receipt
from trtopt.records import (
    BenchPoint,
    DevicePeaks,
    EngineProfile,
    LayerGroup,
    ProfiledLayer,
)

_MODULE_DEPTH = 4
_STEP = re.compile(r"[^/.]+(?:\.\d+(?![^/.]))*")
"""One of a path, which `/` or `.` part; a number belongs to what it counts: `layer.0`, `layer4.2`."""
REFORMAT = "reformat"


def by_kind(layers: Sequence[ProfiledLayer]) -> tuple[LayerGroup, ...]:
    """By the backend's own word for the layer; all reformats together."""
    return _grouped(layers, lambda layer: REFORMAT if layer.is_reformat else layer.kind or UNKNOWN)


def by_dtype(layers: Sequence[ProfiledLayer]) -> tuple[LayerGroup, ...]:
    """By the type that the layer ran in."""
    return _grouped(layers, lambda layer: layer.dtype or UNKNOWN)


def by_module(layers: Sequence[ProfiledLayer]) -> tuple[LayerGroup, ...]:
    """By the path that a layer's nodes share, as exporters write module paths into names."""
    return _grouped(layers, lambda layer: module_of(layer.working_nodes) or UNKNOWN)


def module_of(names: Sequence[str], depth: int = _MODULE_DEPTH) -> str:
    """The path common to all names, at most `depth` steps, without the nodes' own last step.

    `/encoder/layer.0/attention/MatMul` and `/encoder/layer.0/attention/Add` → `/encoder/layer.0/attention`;
    `layer4.2.conv2/Conv` and `layer4.2.relu/Relu` → `/layer4.2`.
    """
    if not names:
        return ""
    paths = [[*_STEP.finditer(name)][:-1] for name in names]
    end = 0
    for steps in zip(*(path[:depth] for path in paths), strict=False):
        if len({step.string[: step.end()] for step in steps}) > 1:
            break
        end = steps[0].end()
    return "/" + names[0][:end].lstrip("/")


def _grouped(layers: Sequence[ProfiledLayer], key: Callable[[ProfiledLayer], str]) -> tuple[LayerGroup, ...]:
    """Groups with their time, the longest first; layers that were not timed are counted all the same."""
    found: dict[str, list[ProfiledLayer]] = {}
    for layer in layers:
        found.setdefault(key(layer), []).append(layer)
    total = sum(layer.ms or 0.0 for layer in layers)
    groups = []
    for name, members in found.items():
        ms = sum(layer.ms or 0.0 for layer in members)
        groups.append(LayerGroup(key=name, layers=len(members), ms=ms, share=ms / total if total else 0.0))
    return tuple(sorted(groups, key=lambda group: (-group.ms, group.key)))


def profile_point(
    point: BenchPoint,
    description: EngineDescription | None,
    graph: Graph,
    peaks: DevicePeaks | None,
    *,
    by_tensors: bool = False,
    weakly_typed: bool = False,
) -> EngineProfile:
    """Bring a point's layer pass, the inspector's description and the graph at the point's shapes together.

    Without a description the profiler's names are all there is. `by_tensors` is for ONNX Runtime; see
    `mapping.map_layers`. `weakly_typed` is for `receipt.receipt`.
    """
    stages = point.latency.staged
    latency_ms = _median(stages.gpu_compute_ms)
    joined, coverage = join(description, point.layers, graph, by_tensors=by_tensors)
    layers = with_floors(joined, peaks)
    kernels = None
    if point.kernels is not None:
        kernels = report_kernels(point.kernels, layers, graph, peaks, latency_ms)
    return EngineProfile(
        batch=point.batch,
        engine=point.latency.engine,
        layers=layers,
        sum_ms=sum(layer.ms or 0.0 for layer in layers),
        latency_ms=latency_ms,
        h2d_ms=_median(stages.h2d_ms),
        d2h_ms=_median(stages.d2h_ms),
        by_kind=by_kind(layers),
        by_dtype=by_dtype(layers),
        by_module=by_module(layers),
        coverage=coverage,
        float_gates=float_gates(graph),
        fusions=fused(layers),
        unfused=unfused(layers, graph),
        receipt=receipt(layers, weakly_typed=weakly_typed),
        roofline=total(layers),
        furthest=furthest_above(layers),
        kernels=kernels,
        memory=None if point.memory is None else timeline(point.memory),
        layers_graph=point.layers is not None and point.layers.graph,
    )


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
