"""Records of casts: nodes in 16 bits, nodes kept in FP32, and the error."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record
from trtopt.records.checking import OutputDifference
from trtopt.records.result import Result

CAST_SCHEMA = "trtopt.cast/1"

CastPrecision = Literal["fp16", "bf16"]
KeepRule = Literal[
    "operator", "opset", "pattern", "quantised", "weight", "range", "unmeasured", "island", "accuracy"
]


class KeptNode(Record, frozen=True, kw_only=True):
    """A node that stays FP32, with the rule and the reason."""

    node: str
    op: str
    rule: KeepRule
    reason: str


class VanishingWeight(Record, frozen=True, kw_only=True):
    """A weight of which some non-zero values become 0."""

    weight: str
    values: int
    of: int


class CastReport(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt cast`. `lowered` names the nodes that became 16-bit."""

    schema: str = CAST_SCHEMA
    source: str
    out: str
    precision: CastPrecision
    target: str
    opset: int
    lowered: tuple[str, ...]
    kept: tuple[KeptNode, ...]
    untouched: int
    """How many nodes have no floating-point tensors: shapes, indices, booleans."""
    casts: int
    """Cast nodes added, minus existing ones that became redundant."""
    vanishing: tuple[VanishingWeight, ...]
    data: str
    data_is_random: bool
    samples: int
    """Number of samples for measuring values and comparing outputs."""
    differences: tuple[OutputDifference, ...]
    """Of the cast model from the original, 16-bit arithmetic emulated: FP32, rounded after every node."""
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the result should not be used without a look at it."""
    seconds: float
