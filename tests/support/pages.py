"""What a folder may hold, for the tests of the page: real inspector files, times that the test sets."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tests.support import examples
from tests.support.inspected import graph, node, stored
from tests.support.scripted_runs import terms
from tests.unit.inspect.test_memory import LIFE, passed
from trtopt.inspect.costs import peaks_of, with_floors
from trtopt.inspect.graph import Graph
from trtopt.inspect.inspector import EngineLayer, read_inspector
from trtopt.inspect.profile import profile_point, timeline
from trtopt.records import (
    BenchPoint,
    Collected,
    EngineProfile,
    EngineRef,
    LayerCost,
    LayerPass,
    LayerTime,
    Measurement,
    ProfiledLayer,
    ProfileReport,
    Samples,
)

PEAKS = peaks_of("NVIDIA H200")
MODEL = "a" * 64


def engine_of(name: str, batch: int = 1) -> EngineProfile:
    """An engine of a stored inspector file: its n-th layer takes n µs, and costs what its weights suggest."""
    description = read_inspector(stored(name))
    times = (LayerTime(name=one.name, ms=[n * 1e-3]) for n, one in enumerate(description, 1))
    made = profile_point(point_of(times, batch=batch), description, _graph(description), PEAKS)
    return msgspec.structs.replace(made, layers=with_floors(tuple(map(_costed, made.layers)), PEAKS))


def _graph(description: Iterable[EngineLayer]) -> Graph:
    """A chain of the nodes that the layers are called after: their operators end their names."""
    working = [layer.name for layer in description if not layer.name.startswith("Reformatting")]
    names = [part for name in working for part in name.split(" + ") if part.startswith("/")]
    nodes = [node(_operator(name), f"t{n}", f"t{n + 1}", name) for n, name in enumerate(names)]
    return graph(*nodes, inputs={"t0": (1,)}, outputs=(f"t{len(names)}",))


def _operator(name: str) -> str:
    return re.sub(r"\W.*|_.*", "", name.rpartition("/")[2])


def point_of(times: Iterable[LayerTime], *, batch: int = 1, compute_ms: float = 1.0) -> BenchPoint:
    """One query at a batch size, and one run of the layers."""
    one = [compute_ms]
    samples = Samples(
        start_ms=one,
        end_ms=one,
        enqueue_ms=one,
        gpu_compute_ms=one,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0],
    )
    latency = Measurement(
        mode="latency",
        contract=terms("isolated"),
        engine=EngineRef(path="e", sha256="e" * 64, label=f"batch{batch}"),
        batch=batch,
        shapes={},
        samples=samples,
        staged=samples,
        warmups=samples,
        stop_reason="",
    )
    return BenchPoint(batch=batch, latency=latency, layers=LayerPass(runs=1, layers=tuple(times)))


def _costed(layer: ProfiledLayer) -> ProfiledLayer:
    count = layer.weights_count
    cost = LayerCost(flops=200 * count, bytes_moved=2 * count) if count else None
    return msgspec.structs.replace(layer, cost=cost)


def report_of(*engines: EngineProfile, **rest: object) -> ProfileReport:
    return ProfileReport(
        created="2026-01-01T00:00:00+00:00",
        argv=("/opt/bin/trtopt", "profile", "a folder", "-o", "x"),
        environment=examples.report().environment,
        model_sha256=MODEL,
        peaks=PEAKS,
        engines=engines,
        **rest,  # type: ignore[arg-type]
    )


def resnet() -> Collected:
    """Two batches in FP16, one with a memory timeline."""
    half = engine_of("r50_fp16")
    eight = msgspec.structs.replace(
        engine_of("r50_fp16", batch=8), memory=timeline(passed(*LIFE, driver=1000))
    )
    report = report_of(half, eight)
    return Collected(folder="a folder", name="d", profiles={"profile.json": report})


def renamed(found: Collected, names: dict[int, str]) -> Collected:
    """The same with other names for some layers of the first engine, by their place."""
    ((file, report),) = found.profiles.items()
    first, *rest = report.engines
    layers = [
        msgspec.structs.replace(layer, name=names[n], onnx_nodes=(names[n],), onnx_ops=("Conv",))
        if n in names
        else layer
        for n, layer in enumerate(first.layers)
    ]
    first = msgspec.structs.replace(first, layers=tuple(layers))
    changed = msgspec.structs.replace(report, engines=(first, *rest))
    return msgspec.structs.replace(found, profiles={file: changed})


def many_layers(count: int) -> Collected:
    """One engine of so many layers, each a copy of a real one under a name of its own."""
    real = engine_of("r50_fp16")
    layers = tuple(
        msgspec.structs.replace(
            layer,
            name=f"/block.{n}{layer.name}",
            onnx_nodes=tuple(f"/block.{n}{x}" for x in layer.onnx_nodes),
        )
        for n in range(count)
        for layer in [real.layers[n % len(real.layers)]]
    )
    engine = msgspec.structs.replace(real, layers=layers, sum_ms=sum(layer.ms or 0.0 for layer in layers))
    return Collected(folder="many", name="d", profiles={"profile.json": report_of(engine)})
