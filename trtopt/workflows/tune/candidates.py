"""Candidates: the situation that they depend on, what one changes, and the gain that it may have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtopt.builder.shapes import shapes_at
from trtopt.builder_settings import SETTINGS
from trtopt.errors import ArtifactError
from trtopt.inspect.graph import Graph, read_graph
from trtopt.onnxio.model_file import load
from trtopt.precision.placement.forms import forms_in
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo, ProfiledLayer, TensorSpec
from trtopt.records.tune import CandidateKind, LedgerEntry
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.tune.tuned_folder import Built


@dataclass(frozen=True)
class Evidence:
    """The incumbent's graph at its shapes, and its layers' times where a profile could be taken.

    `model` is what a precision is written into. Shares are of the layers' time, from 0 to 1.
    """

    model: Path
    model_sha256: str
    graph: Graph
    layers: tuple[ProfiledLayer, ...] = ()
    """The timed ones; none without a profile."""

    def share_of(self, layers: Collection[ProfiledLayer]) -> float:
        """The share of some layers."""
        total_ms = sum(layer.ms or 0.0 for layer in self.layers)
        return sum(layer.ms or 0.0 for layer in layers) / total_ms if total_ms else 0.0


def evidence_of(built: Built) -> Evidence:
    """What its folder shows: the graph, and a profile if that is of its engine."""
    engine, manifest = built.engine, built.manifest
    graph = manifest.graph_of(engine)
    model = next(iter(manifest.intermediates), graph)
    found = Evidence(
        built.folder / model.path,
        model.sha256,
        read_graph(
            load(built.folder / graph.path).proto,
            shapes_at(manifest.onnx.inputs, engine.plan, built.batch),
        ),
    )
    try:
        report = read_profile(built.folder)
    except ArtifactError:
        return found
    one = next((one for one in report.engines if one.engine.sha256 == engine.sha256), None)
    return found if one is None else replace(found, layers=tuple(layer for layer in one.layers if layer.ms))


_OF_THE_PLAN = {"batch", *(one.name for one in SETTINGS)}
"""The fields of a recipe that leave the graph unchanged."""


@dataclass(frozen=True)
class Prediction:
    """What one that works saves, and how likely it is to work."""

    gain: float
    probability: float

    @property
    def expected(self) -> float:
        """What trying it is worth on average: a candidate that loses is not taken, and costs time alone."""
        return self.gain * self.probability


@dataclass(frozen=True)
class Change:
    """One step away from the incumbent; what is empty or None does not change.

    `recipe` are fields of the incumbent's `Recipe`; `streams` run its engine unchanged; `fresh` builds again
    without a timing cache. The first guess, and how many builds of the incumbent it takes, are the kind's own
    where they are None; `evidence` says why it is tried. It takes the baseline's measurement so many times as
    `measurements` says.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    streams: int | None = None
    fresh: bool = False
    guess: Prediction | None = None
    builds: float | None = None
    measurements: float = 1.0
    evidence: str = ""

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
    recipe: Recipe
    """The incumbent's."""
    selected: str | None
    """The candidate that was selected for the incumbent among precisions; None if none was."""
    data: str | None
    inputs: tuple[TensorSpec, ...]
    """The engine's, as its outputs."""
    outputs: tuple[TensorSpec, ...]
    copied: Mapping[str, float]
    """The share of a query that copying an input or output takes, by its name; empty without transfers."""
    evidence: Evidence

    @property
    def forms(self) -> str:
        """The forms of its INT8 graph: those that were selected, or the recipe's."""
        return forms_in(self.selected or "") or self.recipe.forms or ""


@dataclass(frozen=True)
class Kind:
    """A kind of candidates: what is believed of one at first, and how many builds of the baseline it takes.

    `changes` yields those of a situation, also ones that have been tried: names tell them apart.
    """

    name: CandidateKind
    guess: Prediction
    builds: float
    changes: Callable[[Situation], Iterator[Change]]


@dataclass(frozen=True)
class Queued:
    """A change, and its line in the ledger with what is predicted: it has failed until it is tried."""

    change: Change
    entry: LedgerEntry

    @property
    def gain_per_s(self) -> float:
        """What the queue is ordered by."""
        return self.entry.expected_gain / max(self.entry.predicted_cost_s, 1e-3)


GUESS_WEIGHT = 4.0
"""So many outcomes weigh as much as a first guess."""


def predict(candidate: str, guess: Prediction, history: Iterable[LedgerEntry]) -> Prediction:
    """The first guess, averaged with what became of candidates of the same setting."""
    setting = _setting_of(candidate)
    past = [one for one in history if one.verdict != "unchanged" and _setting_of(one.candidate) == setting]
    gains = [one.measured_gain or 0.0 for one in past if one.verdict == "accepted"]
    return Prediction(
        gain=(GUESS_WEIGHT * guess.gain + sum(gains)) / (GUESS_WEIGHT + len(gains)),
        probability=(GUESS_WEIGHT * guess.probability + len(gains)) / (GUESS_WEIGHT + len(past)),
    )


def _setting_of(candidate: str) -> str:
    """Such as `opt_level` of `opt_level=5`, `io` of `io image=fp16`, `build` of `build 2`."""
    return re.split("[ =]", candidate, maxsplit=1)[0]


def predicted_cost_s(guess_s: float, history: Iterable[LedgerEntry]) -> float:
    """Seconds of building and measuring, corrected by how far off such figures were."""
    past = [entry for entry in history if entry.predicted_cost_s > 0 and entry.verdict != "unchanged"]
    ratios = [entry.cost_s / entry.predicted_cost_s for entry in past]
    return guess_s * (GUESS_WEIGHT + sum(ratios)) / (GUESS_WEIGHT + len(ratios))
