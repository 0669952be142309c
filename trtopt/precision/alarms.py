"""When a result is too inaccurate to be used without a look at it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.records import PrecisionVerdict
from trtopt.records.precision import OutputDifference

LEAST_SQNR_DB = 20.0
"""Below it the error's energy exceeds a hundredth of the signal's."""

LEAST_COSINE = 0.99


def accuracy_alarms(outputs: Sequence[OutputDifference]) -> tuple[str, ...]:
    """Outputs that hold NaN or infinity, or lie too far from their reference; of integers only the former."""
    return tuple(alarm for item in outputs for alarm in _alarms(item))


def verdict_alarms(verdict: PrecisionVerdict) -> tuple[str, ...]:
    """Those of the selected precisions."""
    chosen = {batch.chosen for batch in verdict.batches}
    return tuple(
        f"{candidate.name}: {alarm}"
        for candidate in verdict.candidates
        if candidate.name in chosen
        for alarm in accuracy_alarms(candidate.differences)
    )


def _alarms(item: OutputDifference) -> Iterator[str]:
    name = f"output {item.output!r}"
    if item.nonfinite:
        yield f"{name}: {item.nonfinite} of {item.values} values are NaN or infinite"
    if item.resized:
        yield f"{name}: not compared where its size, which depends on data, differs (batches: {item.resized})"
    if item.integer or not item.values:
        return
    if item.sqnr_db is not None and not item.sqnr_db >= LEAST_SQNR_DB:
        yield f"{name}: SQNR {item.sqnr_db:.1f} dB is below {LEAST_SQNR_DB:g} dB"
    if not item.cosine >= LEAST_COSINE:
        yield f"{name}: cosine {item.cosine:.4f} is below {LEAST_COSINE:g}"
