"""Other batch sizes, where a rate is the objective."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_GROWING = 0.8
"""The share of a query's time that grows with the batch, where no roofline is known."""
_LEAST_GAIN = 0.01
"""Of a batch size that is not expected to gain: what is left out of the model may."""


def _changes(situation: Situation) -> Iterator[Change]:
    if not situation.is_rate:
        return
    share = growing_share(situation)
    for size in situation.batches:
        if size == situation.batch:
            continue
        gain = per_sample_gain(share, situation.batch, size)
        prior = Prior(gain, 0.6, 0.05, 0.2) if gain > 0 else Prior(_LEAST_GAIN, 0.1, -gain or 0.05, 0.7)
        yield Change(
            "batch",
            f"batch={size}",
            recipe={"batch": (size,)},
            prior=prior,
            evidence=f"{share:.0%} of a query's time grows with the batch",
        )


def growing_share(situation: Situation) -> float:
    """Of a query's time: that of the roofline's floor; the rest is overhead of launches and small kernels."""
    floor, latency = situation.evidence.floor_ms, situation.evidence.latency_ms
    if floor is None or not latency:
        return _GROWING
    return min(1.0, max(floor / latency, _GROWING / 2))


def per_sample_gain(share: float, before: int, after: int) -> float:
    """The share of a sample's time that another batch size saves, by a latency a + b · batch."""
    return (1 - share) * (1 - before / after)


KIND = Kind("batch", Prior(0.2, 0.4), 1, _changes)
