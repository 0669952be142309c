"""One engine at one batch size, looked at from every side."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from trtopt.inspect.costs import furthest_above, total, with_floors
from trtopt.inspect.fusion import fused, unfused
from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph
from trtopt.inspect.inspector import EngineLayer
from trtopt.inspect.kernels.report import report_kernels
from trtopt.inspect.layers import UNKNOWN, join
from trtopt.inspect.receipt import receipt
from trtopt.records import (
    MORE_CONTEXTS,
    AllocationEvent,
    BenchPoint,
    DevicePeaks,
    EngineProfile,
    LayerGroup,
    MemoryPass,
    MemoryTimeline,
    ProfiledLayer,
)

_MODULE_DEPTH = 4
_STEP = re.compile(r"[^/.]+(?:\.\d+(?![^/.]))*")
"""One of a path, which `/` or `.` part; a number belongs to what it counts: `layer.0`, `layer4.2`."""


def kind_of(layer: ProfiledLayer) -> str:
    """The backend's own word for it; all reformats have one."""
    return "reformat" if layer.is_reformat else layer.kind or UNKNOWN


def module_of(names: Sequence[str]) -> str:
    """The path common to all names, at most `_MODULE_DEPTH` steps, without the nodes' own last step.

    `/encoder/layer.0/attention/MatMul` and `/encoder/layer.0/attention/Add` → `/encoder/layer.0/attention`;
    `layer4.2.conv2/Conv` and `layer4.2.relu/Relu` → `/layer4.2`.
    """
    if not names:
        return ""
    paths = [[*_STEP.finditer(name)][:-1] for name in names]
    end = 0
    for steps in zip(*(path[:_MODULE_DEPTH] for path in paths), strict=False):
        if len({step.string[: step.end()] for step in steps}) > 1:
            break
        end = steps[0].end()
    return "/" + names[0][:end].lstrip("/")


def grouped(layers: Sequence[ProfiledLayer], key: Callable[[ProfiledLayer], str]) -> tuple[LayerGroup, ...]:
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
    described: Sequence[EngineLayer],
    graph: Graph,
    peaks: DevicePeaks | None,
    *,
    by_tensors: bool = False,
    weakly_typed: bool = False,
) -> EngineProfile:
    """Bring a point's layer pass, the inspector's description and the graph at the point's shapes together.

    Without described layers the profiler's names are all there is. `by_tensors` is for ONNX Runtime, see
    `join`; `weakly_typed` for `receipt`.
    """
    stages = point.latency.staged
    latency_ms = _median(stages.gpu_compute_ms)
    joined, coverage = join(described, point.layers, graph, by_tensors=by_tensors)
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
        by_kind=grouped(layers, kind_of),
        by_dtype=grouped(layers, lambda layer: layer.dtype or UNKNOWN),
        by_module=grouped(layers, lambda layer: module_of(layer.working_nodes) or UNKNOWN),
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


# ── gates of squeeze-and-excitation that stay in float in a graph with Q/DQ ─────────────────────────────

_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"})
_BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Clip"})
_MOST = 24
"""Nodes between a pool and the product that it gates."""


def float_gates(graph: Graph) -> tuple[str, ...]:
    """Names of the nodes from each pool to the Mul that it gates; none of gates with Q/DQ inside."""
    if not any(node.op == QUANTIZE for node in graph.nodes):
        return ()
    found: dict[str, None] = {}
    for product in graph.nodes:
        for signal in product.inputs if product.op == "Mul" else ():
            maps = {graph.before_pairs(name) for name in product.inputs if name != signal}
            if own := _from_pool(graph, signal, maps):
                found |= dict.fromkeys((*own, product.name))
    return tuple(found)


def _from_pool(graph: Graph, signal: str, maps: set[str]) -> tuple[str, ...]:
    """The nodes that make a bounded signal of a pool over the maps, and of nothing else; else none."""
    passed, waiting, ops = dict[str, None](), [signal], set[str]()
    while waiting:
        node = graph.producer.get(waiting.pop())
        if node is None or node.op in (QUANTIZE, DEQUANTIZE) or len(passed) > _MOST:
            return ()
        is_pool = node.op in _POOLS and graph.before_pairs(node.inputs[0]) in maps
        if node.name not in passed and not is_pool:
            waiting += [name for name in node.inputs if name and not graph.is_constant(name)]
        passed[node.name] = None
        ops.add(node.op)
    return tuple(passed) if ops & _POOLS and ops & _BOUNDED else ()


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────

_AFTERWARDS = (MORE_CONTEXTS, "unload")
"""Phases after the driver's memory was queried."""

BUFFERS = "inputs and outputs"


def timeline(memory: MemoryPass) -> MemoryTimeline:
    """Follow every event in its order. An allocation that failed changes nothing and is counted apart.

    Contexts that are made only to be measured count in their own phase, not in the peak. The tracking
    allocator sees what TensorRT requests; inputs and outputs are trtopt's own. What the driver reports
    beyond both (CUDA's context, lazily loaded kernels, rounding) is the remainder.
    """
    live: dict[int, AllocationEvent] = {}
    curve = memory.live_bytes
    before = peak = 0
    held: tuple[AllocationEvent, ...] = ()
    at_peak: tuple[AllocationEvent, ...] = ()
    peak_phase = ""
    phases: dict[str, int] = {}
    failed: list[int] = []
    for event, now in zip(memory.events, curve, strict=True):
        if event.kind == "allocate" and event.address:
            live[event.address] = event
        elif event.kind == "allocate":
            failed.append(event.size_bytes)
        elif event.kind == "deallocate":
            live.pop(event.address, None)
        phases[event.phase] = max(phases.get(event.phase, before), now)
        if now > peak and event.phase != MORE_CONTEXTS:
            peak, peak_phase, at_peak = now, event.phase, tuple(live.values())
        before = now
        if event.phase not in _AFTERWARDS:
            held = tuple(live.values())
    held_bytes = _by_label(held, memory)
    if memory.buffers_bytes:
        held_bytes[BUFFERS] = memory.buffers_bytes
    driver = memory.driver_used_bytes
    return MemoryTimeline(
        peak_bytes=peak,
        peak_phase=peak_phase,
        peak_by_phase=phases,
        at_peak_bytes=_by_label(sorted(at_peak, key=lambda one: -one.size_bytes), memory),
        leaked_bytes=tuple(event.size_bytes for event in live.values()),
        failed_bytes=tuple(failed),
        buffers_bytes=memory.buffers_bytes,
        driver_bytes=driver,
        remainder_bytes=None if driver is None else driver - sum(held_bytes.values()),
        at_ms=[event.at_ms for event in memory.events],
        live_bytes=curve,
        held_bytes=held_bytes,
        context_bytes=memory.context_bytes,
        engine_file_bytes=memory.engine_file_bytes,
        host_bytes=memory.host_bytes,
        failure=memory.failure,
    )


def _by_label(live: Sequence[AllocationEvent], memory: MemoryPass) -> dict[str, int]:
    """What allocations are for, by their phase and size.

    While running: `activations` are of exactly the size that the engine states for a context; anything else
    is `scratch`, because TensorRT does not separate plugins' memory from its own.
    """
    sums: dict[str, int] = {}
    for event in live:
        is_context = event.size_bytes and event.size_bytes == memory.engine_device_bytes
        label = "weights" if event.phase == "load" else "activations" if is_context else "scratch"
        sums[label] = sums.get(label, 0) + event.size_bytes
    return sums
