"""Candidates: the situation that they depend on, what one changes, and the gain that it may have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any, get_args

from trtopt.builder.shapes import shapes_at
from trtopt.builder_settings import SETTINGS
from trtopt.errors import ArtifactError
from trtopt.inspect.graph import Graph, read_graph
from trtopt.measure.statistics.comparison import RUN_LUCK, RunSpread
from trtopt.onnxio.model_file import load
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo, DevicePeaks, Ledger, ProfiledLayer, TensorSpec, TuneScore
from trtopt.records.precision import forms_in
from trtopt.records.tune import CandidateKind, LedgerEntry, PredictionScore
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.tune.tuned_folder import Built


@dataclass(frozen=True)
class Evidence:
    """The incumbent's graph at its shapes, and its layers' times where a profile could be taken.

    `model` is what a precision is written into. `latency_ms` is that of a query outside of the profiler,
    `floor_ms` the least that the roofline allows all layers; None where they are not known. Shares are of the
    layers' time, from 0 to 1.
    """

    model: Path
    model_sha256: str
    graph: Graph
    layers: tuple[ProfiledLayer, ...] = ()
    """The timed ones; none without a profile."""
    latency_ms: float | None = None
    floor_ms: float | None = None
    peaks: DevicePeaks | None = None

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

    `recipe` are fields of the incumbent's `Recipe`; `fresh` builds again without a timing cache. `prior`, and
    how many builds of the incumbent it takes, are the kind's own where they are None; `evidence` says what
    they were drawn from. It takes the baseline's measurement so many times as `measurements` says.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
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
    recipe: Recipe
    """The incumbent's."""
    selected: str | None
    """The candidate that was selected for the incumbent among precisions; None if none was."""
    data: str | None
    threshold: float
    """The smallest gain that is accepted."""
    inputs: tuple[TensorSpec, ...]
    """The engine's, as its outputs."""
    outputs: tuple[TensorSpec, ...]
    copied: Mapping[str, float]
    """The share of a query that copying an input or output takes, by its name; empty without transfers."""
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


PRIOR_WEIGHT = 4.0
"""So many outcomes weigh as much as what is believed of gains, noise and costs."""
LOSS_WEIGHT = 1.0
"""So many weigh as much as what is believed of losses: what harms one model mostly harms others too."""
INTERVAL = 0.8
"""The share of measured gains that a predicted interval is meant to hold."""
_WORST = -1.0
"""A loss counts as so much at most: how far behind a candidate was is of no interest."""
_MOST_LIKELY = 0.95
BUILD_SPREAD = 0.01
"""Standard deviation between builds of one graph, before any was seen."""
_GAIN_SPREAD = 0.5
"""Standard deviation of the gain of one that works, as a share of the gain."""
_DEVIATIONS_PER_MEDIAN = 1.4826
"""Of a normal distribution's distances from its middle."""
_NEUTRAL = ("same", "undecided")


@dataclass(frozen=True)
class Prior:
    """What is believed of a candidate before any was tried.

    `gain` is what one that works saves, `loss` what one that harms costs; `probability` and `risk` are how
    likely these are. What is left changes nothing to speak of.
    """

    gain: float
    probability: float
    loss: float = 0.05
    risk: float = 0.2


@dataclass(frozen=True)
class Prediction:
    """A prior, corrected; `low` and `high` are meant to hold `INTERVAL` of the measured gains."""

    prior: Prior
    gain: float
    probability: float
    loss: float
    risk: float
    low: float
    high: float

    @property
    def expected(self) -> float:
        """What trying it is worth on average: a candidate that loses is not taken, and costs time alone."""
        return self.gain * self.probability


def predict(
    candidate: str,
    prior: Prior,
    usual: Prior,
    history: Sequence[LedgerEntry],
    spread: float,
) -> Prediction:
    """The prior of a candidate, corrected by what became of others of its setting and then of itself.

    Of other values of the setting, successes and losses are counted against the numbers that were believed
    in, and their sizes against the sizes that were believed in. Each ratio begins at 1 and shrinks towards it
    by `PRIOR_WEIGHT` or `LOSS_WEIGHT` outcomes' worth of the kind's `usual` prior. The candidate's own
    outcomes on other models then weigh as much as they are.
    `spread` is the standard deviation of what changes nothing, as `spread_of` finds it.
    """
    setting = _setting_of(candidate)
    past = [one for one in history if one.verdict != "unchanged" and _setting_of(one.candidate) == setting]
    own = [entry for entry in past if entry.candidate == candidate]
    by_setting = _scale(prior, usual, [entry for entry in past if entry.candidate != candidate])
    made = _average(by_setting, own)
    tail = (1 - INTERVAL) / 2
    low, high = (_quantile(share, made, spread) for share in (tail, 1 - tail))
    return Prediction(prior, made.gain, made.probability, made.loss, made.risk, low, high)


def _setting_of(candidate: str) -> str:
    """Such as `opt_level` of `opt_level=5`, `io` of `io image=fp16`, `build` of `build 2`."""
    return re.split("[ =]", candidate, maxsplit=1)[0]


def spread_of(history: Iterable[LedgerEntry], run_spread: RunSpread | None) -> float:
    """Standard deviation of the measured gains of candidates without a verdict for or against them.

    By their median, for races that something else disturbed are among them. Before any was seen that of the
    difference of two runs of one engine, by this device's own `run_spread` if that was measured.
    """
    prior = math.sqrt(2) * (RUN_LUCK if run_spread is None else run_spread.deviation)
    neutral = [one for one in history if one.verdict in _NEUTRAL and one.measured_gain is not None]
    found = _DEVIATIONS_PER_MEDIAN * median(abs(_gain_of(one)) for one in neutral) if neutral else 0.0
    weights = PRIOR_WEIGHT + len(neutral)
    return math.sqrt((PRIOR_WEIGHT * prior**2 + len(neutral) * found**2) / weights)


def build_spread_of(history: Iterable[LedgerEntry]) -> float:
    """Standard deviation between builds of one graph: a further build differs from the incumbent by two."""
    kind = [one for one in history if one.kind == "build-lottery" and one.measured_gain is not None]
    found = sum(_gain_of(one) ** 2 / 2 for one in kind)
    return math.sqrt((PRIOR_WEIGHT * BUILD_SPREAD**2 + found) / (PRIOR_WEIGHT + len(kind)))


def predicted_cost_s(prior_s: float, history: Iterable[LedgerEntry]) -> float:
    """Seconds of building and measuring, corrected by how far off such figures were, as gains are."""
    past = [entry for entry in history if entry.predicted_cost_s > 0 and entry.verdict != "unchanged"]
    ratios = [entry.cost_s / entry.predicted_cost_s for entry in past]
    return prior_s * (PRIOR_WEIGHT + sum(ratios)) / (PRIOR_WEIGHT + len(ratios))


def _scale(prior: Prior, usual: Prior, past: Sequence[LedgerEntry]) -> Prior:
    """By ratios of what came out to what was believed."""
    won, lost = _won(past), _lost(past)

    def ratio(weight: float, usual: float, found: float, believed: float) -> float:
        weight = max(weight * usual, 1e-9)
        return (weight + found) / (weight + believed)

    return _likely(
        gain=prior.gain
        * ratio(PRIOR_WEIGHT, usual.gain, sum(map(_gain_of, won)), sum(one.prior_gain for one in won)),
        probability=prior.probability
        * ratio(PRIOR_WEIGHT, usual.probability, len(won), sum(one.prior_probability for one in past)),
        loss=prior.loss
        * ratio(LOSS_WEIGHT, usual.loss, -sum(map(_gain_of, lost)), sum(one.prior_loss for one in lost)),
        risk=prior.risk * ratio(LOSS_WEIGHT, usual.risk, len(lost), sum(one.prior_risk for one in past)),
    )


def _average(prior: Prior, past: Sequence[LedgerEntry]) -> Prior:
    """By the candidate's own outcomes, of which each weighs as much as a share of what was believed."""
    won, lost = _won(past), _lost(past)

    def mean(weight: float, believed: float, found: float, count: int) -> float:
        return (weight * believed + found) / (weight + count)

    return _likely(
        gain=mean(PRIOR_WEIGHT, prior.gain, sum(map(_gain_of, won)), len(won)),
        probability=mean(PRIOR_WEIGHT, prior.probability, len(won), len(past)),
        loss=mean(LOSS_WEIGHT, prior.loss, -sum(map(_gain_of, lost)), len(lost)),
        risk=mean(LOSS_WEIGHT, prior.risk, len(lost), len(past)),
    )


def _likely(gain: float, probability: float, loss: float, risk: float) -> Prior:
    """Nothing is certain, and gaining and losing are no likelier together."""
    share = min(1.0, _MOST_LIKELY / max(probability + risk, 1e-9))
    return Prior(gain, probability * share, min(loss, -_WORST), risk * share)


def _won(past: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    return [entry for entry in past if entry.verdict == "accepted"]


def _lost(past: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    return [entry for entry in past if entry.verdict == "slower"]


def _gain_of(entry: LedgerEntry) -> float:
    return max(entry.measured_gain or 0.0, _WORST)


def _quantile(share: float, one: Prior, spread: float) -> float:
    """Of a mixture: nothing to speak of, the gain, or a loss, each with its spread; by bisection."""

    def below(value: float) -> float:
        same = _normal(value / spread)
        works = _normal((value - one.gain) / max(_GAIN_SPREAD * one.gain, spread))
        harms = math.exp(min(0.0, value / max(one.loss, spread)))  # exponential, mean `loss`
        return (1 - one.probability - one.risk) * same + one.probability * works + one.risk * harms

    low, high = _WORST, 2.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return low


def _normal(value: float) -> float:
    return (1 + math.erf(value / math.sqrt(2))) / 2


def score(entries: Sequence[LedgerEntry], kind: str) -> PredictionScore | None:
    """How good the predictions of measured candidates were; None if none was measured."""
    measured = [entry for entry in entries if entry.measured_gain is not None]
    if not measured:
        return None
    gains = [_gain_of(entry) for entry in measured]
    predicted = [entry.mean_gain for entry in measured]
    held = [
        entry.predicted_low <= gain <= entry.predicted_high
        for entry, gain in zip(measured, gains, strict=True)
    ]
    return PredictionScore(
        kind=kind,
        count=len(measured),
        accepted=sum(entry.verdict == "accepted" for entry in measured),
        mean_absolute_error=fmean(abs(a - b) for a, b in zip(predicted, gains, strict=True)),
        rank_correlation=rank_correlation(predicted, gains),
        intervals_held=fmean(held),
    )


def score_of(ledgers: Sequence[Ledger], device: str) -> TuneScore:
    """The predictor's score over ledgers, in all and per kind."""
    entries = [entry for ledger in ledgers for entry in ledger.entries]
    kinds = [
        score([entry for entry in entries if entry.kind == name], name) for name in get_args(CandidateKind)
    ]
    return TuneScore(
        device=device,
        ledgers=len(ledgers),
        all=score(entries, "all"),
        kinds=tuple(one for one in kinds if one is not None),
    )


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's, equal values sharing their mean rank; None of fewer than three, or where all are equal."""
    if len(a) < 3:
        return None
    first, second = _ranks(a), _ranks(b)
    mean = (len(a) - 1) / 2
    spread = [math.sqrt(sum((rank - mean) ** 2 for rank in ranks)) for ranks in (first, second)]
    if 0.0 in spread:
        return None
    together = sum((x - mean) * (y - mean) for x, y in zip(first, second, strict=True))
    return together / (spread[0] * spread[1])


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]
