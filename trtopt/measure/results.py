"""Two bench reports against each other, batch by batch: pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.errors import UsageError
from trtopt.measure.comparison import Comparison, Verdict, blocks_of, compare
from trtopt.measure.statistics import summarise
from trtopt.records import BenchPoint, BenchReport


@dataclass(frozen=True)
class Row:
    """One batch size: both medians of the latency passes in milliseconds, and what became of B against A."""

    batch: int
    a_ms: float
    b_ms: float
    comparison: Comparison


@dataclass(frozen=True)
class ReportComparison:
    """All batch sizes that both files hold; `notes` name what could not be paired or was forced."""

    a: BenchReport
    b: BenchReport
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def has_regression(self) -> bool:
        """Whether B is slower at any batch size."""
        return any(row.comparison.verdict is Verdict.SLOWER for row in self.rows)


def compare_reports(a: BenchReport, b: BenchReport, *, threshold: float, force: bool) -> ReportComparison:
    """Compare the latency passes of two reports, paired by batch size; `a` is the baseline.

    Raises:
        UsageError: a threshold that is none; other contracts; unlike machines, unless forced; no batch size
            in common.
    """
    if not 0 < threshold < 1:
        raise UsageError(
            f"--threshold {threshold:g}: not a share between 0 and 1", "write 0.01 for one percent"
        )
    notes = _machine_notes(a, b, force)
    ours, theirs = _by_batch(a), _by_batch(b)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise UsageError(
            f"A has batches {_listed(ours)}, B has {_listed(theirs)}: none in common",
            "measure the same batch sizes on both sides",
        )
    notes += [f"batch {batch} is only in one file" for batch in sorted(ours.keys() ^ theirs.keys())]
    rows = tuple(_row(ours[batch], theirs[batch], threshold) for batch in common)
    return ReportComparison(a=a, b=b, rows=rows, notes=tuple(notes))


def _machine_notes(a: BenchReport, b: BenchReport, force: bool) -> list[str]:
    """What differs between the machines; refused unless forced. The TensorRT version may differ."""
    there, here = a.environment, b.environment
    pairs = (
        ("device", there.device.name, here.device.name),
        ("driver", there.device.driver, here.device.driver),
        ("CPU", there.cpu, here.cpu),
        ("backend", there.backend.name, here.backend.name),
    )
    unlike = [f"{name}: {first} against {second}" for name, first, second in pairs if first != second]
    if unlike and not force:
        raise UsageError(
            f"the two files come from unlike machines ({'; '.join(unlike)})",
            "measure both on one machine, or compare them all the same with --force",
        )
    return unlike


def _by_batch(report: BenchReport) -> dict[int, BenchPoint]:
    return {point.batch: point for point in report.points}


def _listed(points: dict[int, BenchPoint]) -> str:
    return ", ".join(map(str, sorted(points)))


def _row(a: BenchPoint, b: BenchPoint, threshold: float) -> Row:
    ours, theirs = a.latency, b.latency
    if ours.contract != theirs.contract:
        raise UsageError(
            f"batch {a.batch}: unlike contracts, {ours.contract.name} and {theirs.contract.name}",
            "a number means nothing without its terms: measure both under one --contract",
        )
    first, second = ours.samples.latency_ms, theirs.samples.latency_ms
    return Row(
        batch=a.batch,
        a_ms=summarise(first).median,
        b_ms=summarise(second).median,
        comparison=compare(blocks_of(first), blocks_of(second), threshold=threshold, interleaved=False),
    )
