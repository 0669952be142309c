"""The gain that a candidate may have: a prior for each kind, corrected by what ledgers show. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from trtopt.records.tuning import LedgerEntry, PredictionScore

PRIOR_WEIGHT = 4.0
"""So many outcomes weigh as much as the prior."""
INTERVAL = 0.8
"""The share of measured gains that a predicted interval is meant to hold."""
_WORST = -1.0
"""A loss counts as so much at most: how far behind a candidate was is of no interest."""
_MOST_LIKELY = 0.95
_NO_GAIN_SPREAD = 0.015
"""Standard deviation of the gain of a candidate that does not work: a little worse or better."""
_GAIN_SPREAD = 0.5
"""Standard deviation of the gain of one that works, as a share of the gain."""


@dataclass(frozen=True)
class Prior:
    """What is believed of a kind before any was tried: the gain of one that works, and how likely that is."""

    gain: float
    probability: float


@dataclass(frozen=True)
class Prediction:
    """A prior, corrected; `low` and `high` are meant to hold `INTERVAL` of the measured gains."""

    prior: Prior
    gain: float
    probability: float
    low: float
    high: float

    @property
    def expected(self) -> float:
        """The mean gain."""
        return self.gain * self.probability


def predict(prior: Prior, history: Iterable[LedgerEntry]) -> Prediction:
    """The prior, corrected by the outcomes of candidates of its kind.

    Successes are counted against the number that was believed in, and gains of those that worked against the
    gains that were believed in. Both ratios begin at 1 and shrink towards it by `PRIOR_WEIGHT` outcomes'
    worth of prior, so that few outcomes correct a little and many correct all the way.
    """
    past = [entry for entry in history if entry.verdict != "unchanged"]
    worked = [entry for entry in past if entry.verdict == "accepted"]
    believed = PRIOR_WEIGHT * prior.probability
    probability = prior.probability * _ratio(
        believed, len(worked), sum(entry.prior_probability for entry in past)
    )
    gain = prior.gain * _ratio(
        PRIOR_WEIGHT * prior.gain,
        sum(entry.measured_gain or 0.0 for entry in worked),
        sum(entry.prior_gain for entry in worked),
    )
    probability = min(probability, _MOST_LIKELY)
    tail = (1 - INTERVAL) / 2
    low, high = (_quantile(share, gain, probability) for share in (tail, 1 - tail))
    return Prediction(prior, gain, probability, low, high)


def predicted_cost_s(prior_s: float, history: Iterable[LedgerEntry]) -> float:
    """Seconds of building and measuring, corrected by how far off such figures were, as gains are."""
    past = [entry for entry in history if entry.predicted_cost_s > 0 and entry.verdict != "unchanged"]
    ratios = [entry.cost_s / entry.predicted_cost_s for entry in past]
    return prior_s * (PRIOR_WEIGHT + sum(ratios)) / (PRIOR_WEIGHT + len(ratios))


def _ratio(weight: float, found: float, believed: float) -> float:
    return (weight + found) / (weight + believed)


def _quantile(share: float, gain: float, probability: float) -> float:
    """Of a mixture: no gain to speak of, or the gain, each with its spread; by bisection."""

    def below(value: float) -> float:
        fails = _normal(value / _NO_GAIN_SPREAD)
        works = _normal((value - gain) / max(_GAIN_SPREAD * gain, _NO_GAIN_SPREAD))
        return (1 - probability) * fails + probability * works

    low, high = -1.0, 2.0
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
    gains = [max(entry.measured_gain or 0.0, _WORST) for entry in measured]
    expected = [entry.expected_gain for entry in measured]
    held = [
        entry.predicted_low <= gain <= entry.predicted_high
        for entry, gain in zip(measured, gains, strict=True)
    ]
    return PredictionScore(
        kind=kind,
        count=len(measured),
        accepted=sum(entry.verdict == "accepted" for entry in measured),
        mean_absolute_error=fmean(abs(a - b) for a, b in zip(expected, gains, strict=True)),
        rank_correlation=rank_correlation(expected, gains),
        intervals_held=fmean(held),
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
