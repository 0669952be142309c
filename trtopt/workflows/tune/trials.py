"""Candidates under trial: one after the other on this host, at the same time on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from trtopt.errors import OutputError, TrtoptError
from trtopt.executors.api import Executor
from trtopt.executors.threads import run_in_threads
from trtopt.measure.statistics.comparison import Comparison
from trtopt.records import LedgerEntry
from trtopt.records.tuning import TuneVerdict
from trtopt.workflows.listener import Listener
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.queue import Queued


class Outcome(msgspec.Struct, frozen=True):
    """What became of a candidate."""

    verdict: TuneVerdict
    reason: str
    comparison: Comparison | None = None
    accuracy: float | None = None

    def entry(self, queued: Queued, cost_s: float) -> LedgerEntry:
        """Its line in the ledger."""
        prediction = queued.prediction
        ratio = None if self.comparison is None else self.comparison.ratio
        return LedgerEntry(
            candidate=queued.change.name,
            kind=queued.change.kind,
            prior_gain=prediction.prior.gain,
            prior_probability=prediction.prior.probability,
            prior_loss=prediction.prior.loss,
            prior_risk=prediction.prior.risk,
            predicted_gain=prediction.gain,
            probability=prediction.probability,
            predicted_loss=prediction.loss,
            risk=prediction.risk,
            evidence=queued.change.evidence,
            predicted_low=prediction.low,
            predicted_high=prediction.high,
            predicted_cost_s=queued.cost_s,
            cost_s=cost_s,
            measured_gain=None if ratio is None else 1 - ratio.value,
            measured_low=None if ratio is None else 1 - ratio.high,
            measured_high=None if ratio is None else 1 - ratio.low,
            accuracy=self.accuracy,
            verdict=self.verdict,
            reason=self.reason,
        )


@dataclass
class Trial:
    """A candidate that is being tried in a folder of its own; it has failed until it is evaluated."""

    change: Change
    folder: Path
    built: Built | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome("failed", ""))
    cost_s: float = 0.0


def at_a_time(
    trials: Sequence[Trial],
    step: Callable[[Trial, Listener], None],
    executor: Executor,
    listener: Listener,
) -> None:
    """Take a step with all trials, as many at a time as the executor runs; a failure is a trial's outcome.

    Raises:
        OutputError: the tuned folder's disk cannot be written to.
    """

    def guarded(trial: Trial, own: Listener) -> None:
        try:
            step(trial, own)
        except OutputError:
            raise
        except TrtoptError as error:
            trial.outcome = Outcome("failed", error.problem.splitlines()[0])

    if len(trials) == 1:
        guarded(trials[0], listener)
        return
    listener.plans([trial.change.name for trial in trials])
    together = listener.for_threads()
    run_in_threads(
        executor, [partial(guarded, one, together.of_job(place)) for place, one in enumerate(trials)]
    )
