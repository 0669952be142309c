"""What is known of the incumbent, and what candidates are predicted from: its graph and its layers' times."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trtopt.builder.shapes import shapes_at
from trtopt.errors import ArtifactError
from trtopt.inspect.graph import Graph, read_graph
from trtopt.onnxio.model_file import load
from trtopt.records import DevicePeaks, ProfiledLayer
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.tune.built import Built


@dataclass(frozen=True)
class Evidence:
    """The incumbent's graph at its shapes, and its layers' times where a profile could be taken.

    `latency_ms` is that of a query outside of the profiler, `floor_ms` the least that the roofline allows all
    layers; None where they are not known. Shares are of the layers' time, from 0 to 1.
    """

    model: Path
    model_sha256: str
    graph: Graph
    layers: tuple[ProfiledLayer, ...] = ()
    """The timed ones; none without a profile."""
    latency_ms: float | None = None
    floor_ms: float | None = None
    peaks: DevicePeaks | None = None
    float_model: Path | None = None
    """The graph before a precision was written into it; None: `model` itself."""
    float_sha256: str | None = None

    @cached_property
    def total_ms(self) -> float:
        """Milliseconds of all layers."""
        return sum(layer.ms or 0.0 for layer in self.layers)

    def share_of(self, layers: Collection[ProfiledLayer]) -> float:
        """The share of some layers."""
        return sum(layer.ms or 0.0 for layer in layers) / self.total_ms if self.total_ms else 0.0

    def covering(self, nodes: Collection[str]) -> tuple[ProfiledLayer, ...]:
        """The layers that cover any of these ONNX nodes."""
        wanted = set(nodes)
        return tuple(layer for layer in self.layers if not wanted.isdisjoint(layer.onnx_nodes))


def evidence_of(built: Built) -> Evidence:
    """What its folder shows: the graph, and a profile if that is of its engine."""
    engine, manifest = built.engine, built.manifest
    onnx, first = manifest.graph_of(engine), next(iter(manifest.intermediates), None)
    model = built.folder / onnx.path
    found = Evidence(
        model,
        onnx.sha256,
        read_graph(load(model).proto, shapes_at(manifest.onnx.inputs, engine.plan, built.batch)),
        float_model=None if first is None else built.folder / first.path,
        float_sha256=None if first is None else first.sha256,
    )
    try:
        report = read_profile(built.folder)
    except ArtifactError:
        return found
    one = next((one for one in report.engines if one.engine.sha256 == engine.sha256), None)
    if one is None:
        return found
    return replace(
        found,
        layers=tuple(layer for layer in one.layers if layer.ms),
        latency_ms=one.latency_ms,
        floor_ms=one.roofline.floor_ms,
        peaks=report.peaks,
    )
