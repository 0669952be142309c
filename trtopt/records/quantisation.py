"""Records of quantisation: the decision on each node, and the ranges of tensors."""

from __future__ import annotations

import msgspec

from trtopt.records.base import Record
from trtopt.records.casting import KeptNode
from trtopt.records.result import Result

CALIBRATION_SCHEMA = "trtopt.calibration/1"
QUANTISATION_SCHEMA = "trtopt.quantization/1"


class Decision(Record, frozen=True, kw_only=True):
    """The decision on one node, and its rule. `reason` follows "quantised: " or "kept in float because "."""

    node: str
    op: str
    quantised: bool
    rule: str
    reason: str


class TensorRange(Record, frozen=True, kw_only=True):
    """The range of |x| in a tensor: `amax` by method, and the one `chosen` (which users may edit)."""

    chosen: float
    amax: dict[str, float]


class MethodScore(Record, frozen=True, kw_only=True):
    """A method on held-out samples: signal-to-noise ratio over the outputs in dB, more is better."""

    method: str
    sqnr_db: float


class CalibrationTable(Record, frozen=True, kw_only=True):
    """The ranges of all tensors to quantise. `random_data`: made without the user's data.

    Of `samples`, `held` were held out to choose the method and did not enter the ranges.
    """

    schema: str = CALIBRATION_SCHEMA
    model_sha256: str
    data_sha256: str
    random_data: bool
    samples: int
    held: int = 0
    method: str
    scores: tuple[MethodScore, ...] = ()
    tensors: dict[str, TensorRange]
    smoothed: dict[str, dict[int, float]] = msgspec.field(default_factory=dict)
    """Divisors of activation channels, applied before ranges are measured; weights are multiplied by them."""
    sha256: str = ""
    """Of the file without it, as trtopt wrote that."""


class QuantizeReport(Result, Record, frozen=True, kw_only=True):
    """All of a quantisation. `sqnr_db` compares the written graph with the original, by output.

    `samples` and `held` are the table's; `compared` is the number of samples for comparing outputs.
    """

    schema: str = QUANTISATION_SCHEMA
    source: str
    out: str
    calibration_table: str | None = msgspec.field(name="table")
    precision: str
    target: str
    method: str | None
    samples: int
    held: int = 0
    compared: int
    random_data: bool
    pairs: int
    weights: int
    decisions: tuple[Decision, ...]
    scores: tuple[MethodScore, ...] = ()
    sqnr_db: dict[str, float]
    fp32: tuple[KeptNode, ...] = ()
    """Where the rest becomes FP16: the nodes that still stay FP32, and why."""
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the result should not be used without a look at it."""
    seconds: float
