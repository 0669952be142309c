"""Which candidate is next: the highest expected gain per second among those that the budget allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.prediction import Prediction

LEAST_EXPECTED = 0.0005
"""An expected gain below it does not pay for a build."""


@dataclass(frozen=True)
class Queued:
    """A change with its predicted gain and cost."""

    change: Change
    prediction: Prediction
    cost_s: float

    @property
    def gain_per_s(self) -> float:
        """What the queue is ordered by."""
        return self.prediction.expected / max(self.cost_s, 1e-3)


@dataclass(frozen=True)
class Next:
    """The next candidate; or none, and why."""

    candidate: Queued | None
    stopped: str = ""


def next_of(waiting: Sequence[Queued], left_s: float) -> Next:
    """The candidate with the highest expected gain per second that fits into the seconds left.

    Equal ones in the order in which they wait.
    """
    if not waiting:
        return Next(None, "no candidate is left to try")
    paying = [one for one in waiting if one.prediction.expected >= LEAST_EXPECTED]
    if not paying:
        return Next(None, f"no candidate is expected to gain {LEAST_EXPECTED:.2%}")
    fitting = [one for one in paying if one.cost_s <= left_s]
    if not fitting:
        least = min(one.cost_s for one in paying)
        return Next(
            None,
            f"the budget has {max(left_s, 0.0):.0f} s left, and {_counted(len(paying))} from "
            f"{least:.0f} s each: continue with --resume and a larger --budget",
        )
    return Next(max(fitting, key=lambda one: one.gain_per_s))


def first_of(waiting: Sequence[Queued], left_s: float, count: int) -> list[Queued]:
    """The candidates that would be next one after the other, at most `count`."""
    found: list[Queued] = []
    while len(found) < count:
        rest = [one for one in waiting if one not in found]
        following = next_of(rest, left_s).candidate
        if following is None:
            break
        found.append(following)
    return found


def _counted(waiting: int) -> str:
    return "1 candidate waits that takes" if waiting == 1 else f"{waiting} candidates wait that take"
