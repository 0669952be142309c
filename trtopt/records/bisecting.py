"""Records of bisections: the nodes that must stay in higher precision, and their cost."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record
from trtopt.records.checking import CheckedSubject

BISECT_SCHEMA = "trtopt.bisect/1"

Verdict = Literal["nothing to keep", "found", "not met"]


class Sensitivity(Record, frozen=True, kw_only=True):
    """Nodes evaluated as the only ones in low precision, and their error."""

    nodes: tuple[str, ...]
    error: float


class KeptSet(Record, frozen=True, kw_only=True):
    """Nodes kept in higher precision, the error with them, and their share of the cost.

    `error` is the used share of the bound, for the worst output and bound: at 1 the bounds are just met.
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
    """The written model, with `best` kept; None if none was requested or no set meets the bounds."""
    table: str | None
    precision: str
    target: str
    backend: str
    """What evaluated the sets: `onnxruntime`, which emulates, or the backend of their engines."""
    data: str
    bounds: dict[str, float]
    candidates: tuple[str, ...]
    """Nodes in low precision if none is kept, in the order of the graph."""
    verdict: Verdict
    best: KeptSet
    """The smallest set found that meets the bounds; all nodes if none does."""
    patterns: tuple[str, ...]
    """The nodes of `best` as `--exclude` of `trtopt quantize` and `trtopt cast` takes them."""
    minimal: bool
    """Whether it was shown that no single node of `best` can be left out."""
    subjects: tuple[CheckedSubject, ...]
    """What was measured with `best`: the emulated model, or one engine per batch size."""
    sensitivities: tuple[Sensitivity, ...]
    """The largest error first."""
    front: tuple[KeptSet, ...]
    """The evaluated sets that no other beats in both error and cost, the cheapest first."""
    evaluations: int
    most_evaluations: int
    notes: tuple[str, ...] = ()
    seconds: float
