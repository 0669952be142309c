"""What a kind of candidates is: what it may change, in which situation, and what is believed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtopt.builder_settings import SETTINGS
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo, TensorSpec
from trtopt.records.precision import forms_in
from trtopt.records.tune import CandidateKind
from trtopt.workflows.tune.evidence import Evidence
from trtopt.workflows.tune.prediction import Prior

_OF_THE_PLAN = {"batch", "split", *(one.name for one in SETTINGS)}
"""The fields of a recipe that leave the graph unchanged."""


@dataclass(frozen=True)
class Change:
    """One step away from the incumbent; what is empty or None stays what it is.

    `recipe` are fields of the incumbent's `Recipe`; `rule` is a rewrite rule to apply to its graph; `fresh`
    builds again without a timing cache. `prior`, and how many builds of the incumbent it takes, are the
    kind's own where they are None; `evidence` says what they were drawn from. It takes the baseline's
    measurement so many times as `measurements` says.
    """

    kind: CandidateKind
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
