"""What became of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.measure.statistics.comparison import Comparison
from trtopt.records import LedgerEntry
from trtopt.records.tune import TuneVerdict
from trtopt.workflows.tune.queue import Queued


@dataclass(frozen=True)
class Outcome:
    """The verdict on a candidate; without a comparison it was not raced."""

    verdict: TuneVerdict
    reason: str
    comparison: Comparison | None = None
    accuracy: float | None = None

    def entry(self, queued: Queued, cost_s: float) -> LedgerEntry:
        """Its line in the ledger."""
        prediction = queued.prediction
        ratio = None if self.comparison is None else self.comparison.ratio
        gain, low, high = (None, None, None) if ratio is None else ratio.saved
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
            measured_gain=gain,
            measured_low=low,
            measured_high=high,
            accuracy=self.accuracy,
            verdict=self.verdict,
            reason=self.reason,
        )
