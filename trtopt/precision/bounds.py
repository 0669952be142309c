"""Whether a result is accurate enough: a user's bounds, and alarms that always hold. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import msgspec

from trtopt.errors import UsageError
from trtopt.records import PrecisionVerdict
from trtopt.records.base import Record
from trtopt.records.precision import OutputDifference, Violation

HOPELESS = 1e9
"""What is used of an allowance at most: NaN or infinite values, or any error where none is allowed."""


class Bounds(Record, frozen=True, kw_only=True):
    """The least or most that is accepted; None is no bound."""

    min_cosine: float | None = None
    min_sqnr: float | None = None
    max_error: float | None = None
    min_top1: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is any bound."""
        return bool(self.given)

    @property
    def given(self) -> dict[str, float]:
        """The bounds that are set, by name."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


TUNING_BOUNDS = Bounds(min_cosine=0.99)
"""What `trtopt tune` keeps of the accuracy unless another `min_cosine` is given."""
_RANGES = {"min_cosine": (-1, 1), "min_sqnr": (-inf, inf), "max_error": (0, inf), "min_top1": (0, 1)}


def bounds_in(values: Bounds | Mapping[str, object]) -> Bounds:
    """Bounds by name; None is no bound."""
    if isinstance(values, Bounds):
        return values
    try:
        bounds = msgspec.convert(dict(values), Bounds)
    except msgspec.ValidationError as error:
        known = ", ".join(Bounds.__struct_fields__)
        raise UsageError(f"bounds: {error}", f"known bounds: {known}") from None
    for name, value in bounds.given.items():
        low, high = _RANGES[name]
        if not low <= value <= high:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {value:g}: out of range", f"give a number from {low:g} to {high:g}")
    return bounds


def violations(outputs: Sequence[OutputDifference], bounds: Bounds) -> tuple[Violation, ...]:
    """Every bound that an output does not meet; an output without any error meets every SQNR.

    Values that are NaN or infinite in one only violate whatever bound there is, and so do other sizes, and an
    output that has no other values.
    """
    if bounds.min_top1 is not None and all(item.top1 is None for item in outputs):
        raise UsageError(
            "--min-top1: no output looks like scores of classes", "use --min-cosine or --min-sqnr"
        )
    return tuple(
        Violation(output=item.output, measure=name, found=value, bound=bound)
        for item in outputs
        for name, value, bound, sign, _ in _measures(item, bounds)
        if not sign * value >= sign * bound  # NaN meets none
    )


def allowance_used(outputs: Sequence[OutputDifference], bounds: Bounds) -> float:
    """How much of the error that the bounds allow the outputs have: 1 is just met, more is not met.

    The largest, over outputs and bounds, of (1 - cosine) / (1 - bound), 10^((bound - SQNR) / 20),
    max error / bound and (1 - agreement) / (1 - bound); `HOPELESS` at most, and for NaN.
    It is above 1 exactly where `violations` finds something.
    """
    used = max((used for item in outputs for *_, used in _measures(item, bounds)), default=0.0)
    if violations(outputs, bounds):
        return max(used, math.nextafter(1.0, 2.0))
    return min(used, 1.0)


def _measures(item: OutputDifference, bounds: Bounds) -> Iterator[tuple[str, float, float, int, float]]:
    """What is bounded of an output: its name, its value, the least (1) or most (-1) of it, what is used."""
    if (least := bounds.min_cosine) is not None and item.values:
        name = "share of equal values" if item.integer else "cosine"
        yield name, item.cosine, least, 1, _share(1 - item.cosine, 1 - least)
    if (least := bounds.min_sqnr) is not None and item.sqnr_db is not None:
        used = _share(10 ** min((least - item.sqnr_db) / 20, math.log10(HOPELESS)), 1.0)
        yield "SQNR in dB", item.sqnr_db, least, 1, used
    if (most := bounds.max_error) is not None:
        yield "max error", item.max_abs, most, -1, _share(item.max_abs, most)
    if (least := bounds.min_top1) is not None and item.top1 is not None:
        yield "top-1 agreement", item.top1, least, 1, _share(1 - item.top1, 1 - least)
    if bounds.any:
        yield "NaN or infinite values", item.mismatched, 0, -1, HOPELESS if item.mismatched else 0.0
        yield "batches of another size", item.resized, 0, -1, HOPELESS if item.resized else 0.0
        if item.values:
            yield "finite values", item.values - item.nonfinite, 1, 1, 0.0


def _share(error: float, allowed: float) -> float:
    used = error / allowed if allowed > 0 else 0.0 if error <= allowed else HOPELESS
    return used if used < HOPELESS else HOPELESS  # NaN meets none


LEAST_SQNR_DB = 20.0
"""Below it the error's energy exceeds a hundredth of the signal's."""

LEAST_COSINE = 0.99
ACCURATE = Bounds(min_cosine=LEAST_COSINE, min_sqnr=LEAST_SQNR_DB)
"""What raises no alarm."""


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
