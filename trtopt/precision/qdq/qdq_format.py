"""How each TensorRT wants its Q/DQ written.

Sources: the release notes and operator pages of TensorRT 8.6, 10 and 11, and ONNX's QuantizeLinear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import UsageError
from trtopt.precision.placement.placement_plan import Precision
from trtopt.precision.qdq.quantised_values import SMALLEST_HALF, held_by_half, scale_of
from trtopt.targets import target_named, targets_where


@dataclass(frozen=True)
class QdqFormat:
    """One way to write Q/DQ.

    `strongly_typed`: what is not quantised becomes FP16 in the graph itself, scales too. `opset` is the
    least that the operators need, `most` the highest that the target reads. `stored`: weights are kept in
    their narrow type with a DQ alone; otherwise they stay FP32 with a Q and a DQ.
    """

    precision: Precision
    strongly_typed: bool
    opset: int
    most: int
    stored: bool

    def scale(self, amax: NDArray[Any] | float) -> NDArray[np.float32]:
        """The scale of a range, as this form writes it."""
        return self.fit(scale_of(amax, self.precision))

    def fit(self, scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """A scale that stays what it is when the graph becomes FP16, if it does."""
        return held_by_half(scale) if self.strongly_typed else scale

    def is_beneath(self, amax: float) -> bool:
        """Whether FP16's smallest number must stand for the scale of a range."""
        return self.strongly_typed and bool(scale_of(amax, self.precision) < SMALLEST_HALF)


def qdq_format_for(precision: Precision, target: str, *, stored: bool = False) -> QdqFormat:
    """The form for a target, named as `trtopt rewrite` names them."""
    row = target_named(target)
    if precision not in row.qdq_opsets:
        able = targets_where(lambda other: precision in other.qdq_opsets)
        raise UsageError(
            f"TensorRT {target} has no {precision.upper()}",
            f"use --precision {' or '.join(row.qdq_opsets)}, or --target {' or '.join(able)}",
        )
    if stored and not row.stored_weights:
        raise UsageError(
            f"TensorRT {target} reads weights as FP32 with a Q and a DQ only", "omit --store-weights"
        )
    return QdqFormat(
        precision,
        strongly_typed=not row.weakly_typed,
        opset=row.qdq_opsets[precision],
        most=row.documented_opset,
        stored=stored or precision == "int4",
    )
