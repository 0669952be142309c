"""Records of bisections: which nodes have to stay in higher precision, and what that costs."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record
from trtopt.records.checking import CheckedSubject

BISECT_SCHEMA = "trtopt.bisect/1"

Verdict = Literal["nothing to keep", "found", "not met"]


class Sensitivity(Record, frozen=True, kw_only=True):
    """Nodes that were alone in low precision, and the error that they made."""

    nodes: tuple[str, ...]
    error: float


class KeptSet(Record, frozen=True, kw_only=True):
    """Nodes kept in higher precision, the error with them, and their share of the cost.

    `error` is the share of what the bounds allow, of the worst output and bound: at 1 they are just met.
    `cost` is the share of the floating-point operations of all candidates that is kept, 0 to 1.
    """

    error: float
    cost: float
    nodes: tuple[str, ...]


class BisectReport(Record, frozen=True, kw_only=True):
    """The result of `trtopt bisect`."""

    schema: str = BISECT_SCHEMA
    created: str
    argv: tuple[str, ...] = ()
    model: str
    model_sha256: str
    out: str | None
    """The written model, with `best` kept; None if none was asked for or no set meets the bounds."""
    table: str | None
    precision: str
    target: str
    backend: str
    """What the sets were judged with: `onnxruntime`, which emulates, or what built and ran their engines."""
    data: str
    bounds: dict[str, float]
    candidates: tuple[str, ...]
    """Nodes that are low where nothing is kept, in the order of the graph."""
    verdict: Verdict
    best: KeptSet
    """The fewest nodes found that meet the bounds; where nothing meets them, all."""
    patterns: tuple[str, ...]
    """The nodes of `best` as `--exclude` of `trtopt quantize`, or `--keep` of `trtopt cast`, takes them."""
    minimal: bool
    """Whether it was shown that no single node of `best` can be left out."""
    subjects: tuple[CheckedSubject, ...]
    """What was measured with `best`: the emulated model, or one engine a batch size."""
    sensitivities: tuple[Sensitivity, ...]
    """The largest error first."""
    front: tuple[KeptSet, ...]
    """Of all sets evaluated those that no other beats in both error and cost, the cheapest first."""
    evaluations: int
    most_evaluations: int
    notes: tuple[str, ...] = ()
    seconds: float
