"""Whether a comparison meets what was asked of it; pure judgement."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.errors import UsageError
from trtopt.records.base import Record
from trtopt.records.checking import OutputDifference, Violation


class Bounds(Record, frozen=True, kw_only=True):
    """The least or most that is accepted; None asks for nothing."""

    min_cosine: float | None = None
    min_sqnr: float | None = None
    max_error: float | None = None
    min_top1: float | None = None

    @property
    def any(self) -> bool:
        """Whether anything is asked."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


def violations(outputs: Sequence[OutputDifference], bounds: Bounds) -> tuple[Violation, ...]:
    """Every bound that an output does not meet; an output without any error meets every SQNR.

    Values that are NaN or infinite in one only violate whatever bound there is.

    Raises:
        UsageError: top-1 agreement is asked for, and no output is a classifier's.
    """
    if bounds.min_top1 is not None and all(item.top1 is None for item in outputs):
        raise UsageError(
            "--min-top1: no output looks like scores of classes", "use --min-cosine or --min-sqnr"
        )
    found = []
    for item in outputs:
        measures = (
            ("cosine", item.cosine, bounds.min_cosine, 1),
            ("SQNR in dB", item.sqnr_db, bounds.min_sqnr, 1),
            ("max error", item.max_abs, bounds.max_error, -1),
            ("top-1 agreement", item.top1, bounds.min_top1, 1),
            ("NaN or infinite values", float(item.mismatched), 0.0 if bounds.any else None, -1),
        )
        for name, value, bound, sign in measures:
            if value is not None and bound is not None and sign * value < sign * bound:
                found.append(Violation(output=item.output, measure=name, found=value, bound=bound))
    return tuple(found)
