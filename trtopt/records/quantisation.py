"""Records of quantisation: what was decided where, and how large tensors get."""

from __future__ import annotations

import msgspec

from trtopt.records.base import Record
from trtopt.records.casting import KeptNode

CALIBRATION_SCHEMA = "trtopt.calibration/1"
QUANTISATION_SCHEMA = "trtopt.quantization/1"


class Decision(Record, frozen=True, kw_only=True):
    """What becomes of one node, by which rule. `reason` follows "quantised: " or "kept in float because "."""

    node: str
    op: str
    quantised: bool
    rule: str
    reason: str


class TensorRange(Record, frozen=True, kw_only=True):
    """How large |x| gets in a tensor: `amax` by method, and the one `chosen` (edit this one by hand)."""

    chosen: float
    amax: dict[str, float]


class MethodScore(Record, frozen=True, kw_only=True):
    """A method on held-back samples: signal-to-noise ratio over the outputs in dB, more is better."""

    method: str
    sqnr_db: float


class CalibrationTable(Record, frozen=True, kw_only=True):
    """The ranges of all tensors that are to be quantised. `random_data`: made without the user's data.

    Of `samples`, `held` were held back to choose the method and took no part in the ranges.
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
    """What channels of activations are divided by before these ranges are taken, their weights multiplied."""


class QuantizeReport(Record, frozen=True, kw_only=True):
    """All of a quantisation. `sqnr_db` compares the written graph with the original, by output.

    `samples` and `held` are the table's; `compared` is over how many samples outputs were compared.
    """

    schema: str = QUANTISATION_SCHEMA
    source: str
    out: str
    table: str | None
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
    """Where the rest becomes FP16: the nodes that stay FP32 all the same, and why."""
    notes: tuple[str, ...] = ()
    seconds: float
