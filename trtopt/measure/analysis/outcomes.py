"""What a comparison comes to, whatever was compared, and whether two sides can be compared at all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trtopt.errors import ArtifactError, UsageError
from trtopt.measure.analysis.gap_ledger import Gap
from trtopt.measure.statistics.comparison import Comparison, Verdict
from trtopt.measure.statistics.control import Control
from trtopt.records import CompareReport, Shape
from trtopt.records.base import Result


@dataclass(frozen=True)
class Row:
    """One batch size: both medians in milliseconds, what became of B against A, and further findings."""

    batch: int
    a_ms: float
    b_ms: float
    comparison: Comparison
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ControlRow:
    """One batch size of A against itself: its median in milliseconds, and each pair's verdict."""

    batch: int
    a_ms: float
    control: Control


@dataclass(frozen=True)
class Comparisons:
    """B against A for all batch sizes that both have, and A against itself if requested.

    `a`, `b` and `device` name what was compared where; `notes` name what was forced. `limit` is the slowdown
    that must be ruled out; `again` is the command that measures more sharply where it is not.
    """

    a: str
    b: str
    device: str
    threshold: float
    limit: float
    rows: tuple[Row, ...]
    controls: tuple[ControlRow, ...] = ()
    notes: tuple[str, ...] = ()
    again: str = ""

    @property
    def has_regression(self) -> bool:
        """Whether B is slower at any batch size."""
        return any(row.comparison.verdict is Verdict.SLOWER for row in self.rows)

    @property
    def not_shown(self) -> tuple[Row, ...]:
        """The batch sizes at which B is not SLOWER, but not shown to be within the limit either."""
        return tuple(
            row
            for row in self.rows
            if row.comparison.verdict is not Verdict.SLOWER and not row.comparison.rules_out(self.limit)
        )


@dataclass(frozen=True)
class Gaps:
    """Where the difference between two contracts comes from."""

    start: str
    end: str
    subject: str
    device: str
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()

    has_regression, not_shown = False, ()


Outcome = Comparisons | Gaps


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """A comparison: the outcome to show, and the record that `--json` writes."""

    outcome: Outcome
    report: CompareReport

    def record(self) -> CompareReport:
        """What `--json` writes."""
        return self.report

    @property
    def failure(self) -> str | None:
        """What broke a run in turns off in the middle; the outcome rests on what had finished by then."""
        broken = (run for run in self.report.runs if run.failure is not None)
        return next((f"batch {run.batch}: {run.failure}" for run in broken), None)


# ── whether two sides do the same work ──────────────────────────────────────────────────────────────────
#
# The same work is one model at the same input shapes, with the same outputs. A model is known by the file
# that the user gave: what precision, rewriting or a backend makes of it is what comparisons are for.


@dataclass(frozen=True)
class Work:
    """What a side does, by batch size. `source` is its model's hash; empty if unknown.

    `outputs` are their names; batch sizes may be missing.
    """

    source: str
    shapes: Mapping[int, Mapping[str, Shape]]
    outputs: Mapping[int, Collection[str]] = field(default_factory=dict)


def paired_sizes(a: Collection[int], b: Collection[int], wanted: Collection[int] | None = None) -> list[int]:
    """The batch sizes to compare: `wanted`, by default all that a side has."""
    sizes = {*a, *b} if wanted is None else {*wanted}
    missing = {name: sorted(sizes - {*side}) for name, side in (("A", a), ("B", b))}
    lacking = [f"{name} lacks batch {', '.join(map(str, some))}" for name, some in missing.items() if some]
    if lacking:
        common = ",".join(map(str, sorted({*a} & {*b})))
        remedy = "measure the same batch sizes on both sides"
        raise ArtifactError(
            "; ".join(lacking), f"{remedy}, or compare --batch {common}" if common else remedy
        )
    return sorted(sizes)


def unlike_work(a: Work, b: Work) -> list[str]:
    """How two sides' work differs, as far as both are known; batch sizes that one lacks do not count."""
    found = []
    if a.source and b.source and a.source != b.source:
        found.append(f"the models, {a.source[:12]} and {b.source[:12]}")
    for batch in sorted(a.shapes.keys() & b.shapes.keys()):
        found += _unlike_shapes(batch, a.shapes[batch], b.shapes[batch])
    for batch in sorted(a.outputs.keys() & b.outputs.keys()):
        ours, theirs = (", ".join(sorted(side.outputs[batch])) for side in (a, b))
        if ours != theirs:
            found.append(f"batch {batch}: the outputs, {ours} and {theirs}")
    return found


def _unlike_shapes(batch: int, a: Mapping[str, Shape], b: Mapping[str, Shape]) -> list[str]:
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
    return [
        f"batch {batch}: input {name!r}, {_describe(a.get(name))} and {_describe(b.get(name))}"
        for name in names
    ]


def _describe(shape: Shape | None) -> str:
    if shape is None:
        return "not there"
    return "×".join(map(str, shape)) if shape else "a scalar"


def require_alike(unlike: Sequence[str], *, force: bool) -> list[str]:
    """What differs, in the words of notes."""
    if unlike and not force:
        raise UsageError(
            f"A and B differ in {'; '.join(unlike)}",
            "measure one model at the same shapes on both sides, or compare them anyway with --force",
        )
    return [f"A and B differ in {difference}" for difference in unlike]
