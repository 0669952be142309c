"""What is known of the incumbent, and what candidates are predicted from: its graph and its layers' times."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trtopt.builder.shapes import shapes_at
from trtopt.errors import ArtifactError
from trtopt.inspect.graph import Graph, read_graph
from trtopt.onnxio.model_file import load
from trtopt.records import DevicePeaks, EngineProfile, ProfiledLayer
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.tune.built import Built


@dataclass(frozen=True)
class Evidence:
    """The incumbent's graph at its shapes, and a profile of its engine where one could be taken.

    Shares are of the layers' time, from 0 to 1; without a profile nothing has a share.
    """

    model: Path
    graph: Graph
    profile: EngineProfile | None = None
    peaks: DevicePeaks | None = None

    @property
    def layers(self) -> tuple[ProfiledLayer, ...]:
        """The timed layers; none without a profile."""
        found = self.profile.layers if self.profile is not None else ()
        return tuple(layer for layer in found if layer.ms)

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
    """What its folder shows: the graph, and a profile if that is of its engine.

    Raises:
        ModelError: the graph cannot be read.
    """
    engine, manifest = built.engine, built.manifest
    model = built.folder / manifest.graph_of(engine).path
    graph = read_graph(load(model).proto, shapes_at(manifest.onnx.inputs, engine.plan, built.batch))
    try:
        report = read_profile(built.folder)
    except ArtifactError:
        return Evidence(model, graph)
    found = [one for one in report.engines if one.engine.sha256 == engine.sha256]
    return Evidence(model, graph, found[0] if found else None, report.peaks)
