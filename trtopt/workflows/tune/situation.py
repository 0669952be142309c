"""Candidates: the situation that they depend on, what is known of the incumbent, and what one changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trtopt.builder.shapes import shapes_at
from trtopt.builder_settings import SETTINGS
from trtopt.errors import ArtifactError
from trtopt.inspect.graph import Graph, read_graph
from trtopt.onnxio.model_file import load
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo, DevicePeaks, ProfiledLayer, TensorSpec
from trtopt.records.precision import forms_in
from trtopt.records.tune import CandidateKind
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.tune.prediction import Prediction, Prior
from trtopt.workflows.tune.tuned_folder import Built


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

    @property
    def float_graph(self) -> tuple[Path, str]:
        """What a precision is written into, and its hash."""
        return self.float_model or self.model, self.float_sha256 or self.model_sha256

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


_OF_THE_PLAN = {"batch", *(one.name for one in SETTINGS)}
"""The fields of a recipe that leave the graph unchanged."""


@dataclass(frozen=True)
class Change:
    """One step away from the incumbent; what is empty or None stays what it is.

    `recipe` are fields of the incumbent's `Recipe`; `rule` is a rewrite rule to apply to its graph; `fresh`
    builds again without a timing cache. `prior`, and how many builds of the incumbent it takes, are the
    kind's own where they are None; `evidence` says what they were drawn from. It takes the baseline's
    measurement so many times as `measurements` says.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    rule: str | None = None
    streams: int | None = None
    fresh: bool = False
    prior: Prior | None = None
    builds: float | None = None
    measurements: float = 1.0
    evidence: str = ""

    @property
    def builds_engine(self) -> bool:
        """Whether an engine has to be built for it."""
        return self.streams is None

    @property
    def makes_graph(self) -> bool:
        """Whether the graph is made again from the user's model; else it is the incumbent's."""
        return not self.recipe.keys() <= _OF_THE_PLAN


@dataclass(frozen=True)
class Situation:
    """What candidates depend on: the backend, the incumbent, and what the user allows."""

    backend: Backend
    device: DeviceInfo
    cores: int
    batch: int
    batches: tuple[int, ...]
    streams: int
    is_rate: bool
    """Whether the objective is a rate: other batch sizes and several streams may serve it."""
    is_loaded: bool
    """Whether requests arrive while others are served: several streams may serve them."""
    recipe: Recipe
    """The incumbent's."""
    selected: str | None
    """The candidate that was selected for the incumbent among precisions; None if none was."""
    left: tuple[str, ...]
    """The nodes that its selection left in float, beside those that the recipe excludes."""
    data: str | None
    threshold: float
    """The smallest gain that is accepted."""
    inputs: tuple[TensorSpec, ...]
    """The engine's, as its outputs."""
    outputs: tuple[TensorSpec, ...]
    copied: Mapping[str, float]
    """The share of a query that copying an input or output takes, by its name; empty without transfers."""
    tried: frozenset[str]
    """The names of candidates that were tried."""
    build_options: tuple[str, ...]
    """Internal options of the builder with values other than their defaults, each as a build route."""
    build_spread: float
    """Standard deviation of the gains of further builds."""
    evidence: Evidence

    @property
    def forms(self) -> str:
        """The forms of its INT8 graph: those that were selected, or the recipe's."""
        return forms_in(self.selected or "") or self.recipe.forms or ""


@dataclass(frozen=True)
class Kind:
    """A kind of candidates: its prior, and how many builds of the baseline one takes.

    `changes` yields those of a situation, also ones that have been tried: names tell them apart.
    """

    name: CandidateKind
    prior: Prior
    builds: float
    changes: Callable[[Situation], Iterator[Change]]


@dataclass(frozen=True)
class Queued:
    """A change of a kind with its predicted gain and cost."""

    kind: CandidateKind
    change: Change
    prediction: Prediction
    cost_s: float

    @property
    def gain_per_s(self) -> float:
        """What the queue is ordered by."""
        return self.prediction.expected / max(self.cost_s, 1e-3)
