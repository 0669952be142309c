"""What a comparison comes to, whatever was compared, and whether two sides can be compared at all. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trtopt.errors import ArtifactError, UsageError
from trtopt.measure.analysis.findings import MIN_CLOCK_SHARE, doubts_of, sm_clock
from trtopt.measure.analysis.gap_ledger import Gap
from trtopt.measure.analysis.interference import POWER_CAP
from trtopt.measure.statistics.builds import Control
from trtopt.measure.statistics.comparison import Comparison, ReasonCode, Verdict, blocks_of, compare_runs
from trtopt.measure.statistics.summaries import summarise
from trtopt.records import (
    BenchPoint,
    BenchReport,
    CompareReport,
    DeviceInfo,
    EngineArtifact,
    Environment,
    InterleavedRun,
    MeasuredRunSpread,
    Shape,
    Upgrade,
    UpgradeVerdict,
)
from trtopt.records.base import Result


@dataclass(frozen=True)
class Row:
    """One batch size: both medians in milliseconds, what became of B against A, and further findings.

    `is_trusted` is whether neither side's device was slowed down or failed.
    """

    batch: int
    a_ms: float
    b_ms: float
    comparison: Comparison
    remarks: tuple[str, ...] = ()
    is_trusted: bool = True

    @property
    def is_disturbed(self) -> bool:
        """Whether the verdict rests on latencies that are not steady, or not trustworthy."""
        return any(reason.code is ReasonCode.DISTURBED for reason in self.comparison.reasons)


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
    that must be ruled out; `again` is the command that measures more sharply where it is not. `runs` are in
    turns, between files there are none; `built` are engines that were built for them.
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
    upgrade: Upgrade | None = None
    runs: tuple[InterleavedRun, ...] = ()
    built: tuple[EngineArtifact, ...] = ()

    @property
    def upgrade_verdict(self) -> UpgradeVerdict | None:
        """The worst of what the gate has rows of: wrong results come before speed."""
        if self.upgrade is None:
            return None
        found = {*map(self.speed, self.rows), *(one.verdict for one in self.upgrade.outputs)}
        if "wrong" in found:
            return "WRONG"
        if "slower" in found:
            return "SLOWER"
        return "PASSED" if found == {"ok"} and self.upgrade.outputs else "UNDECIDED"

    def speed(self, row: Row) -> Literal["ok", "slower", "undecided", "untrustworthy"]:
        """What the gate says of a row: only a slowdown that is ruled out is no obstacle."""
        if row.comparison.verdict is Verdict.SLOWER:
            return "slower"
        if row.is_trusted and row.comparison.rules_out(self.limit):
            return "ok"
        return "untrustworthy" if row.is_disturbed else "undecided"

    @property
    def not_shown(self) -> tuple[Row, ...]:
        """The batch sizes at which B is not SLOWER, but not shown to be within the limit either."""
        return tuple(row for row in self.rows if self.speed(row) in ("undecided", "untrustworthy"))


@dataclass(frozen=True)
class Gaps:
    """Where the difference between two contracts comes from."""

    start: str
    end: str
    subject: str
    device: str
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...] = ()
    runs: tuple[InterleavedRun, ...] = ()


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


# ── whether two sides do the same work ────────────────────────────────────────────────────────────────
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


# ── result files against each other, batch by batch ───────────────────────────────────────────────────


FILES_LIMIT = 0.05
"""The slowdown that result files must rule out, unless --fail-on is given: they cannot rule out much less."""


def compare_reports(
    a: BenchReport,
    b: BenchReport,
    *,
    threshold: float,
    force: bool,
    batch: Sequence[int] | None = None,
    limit: float = FILES_LIMIT,
    run_spread: MeasuredRunSpread | None = None,
    again: str = "",
) -> Comparisons:
    """Compare the latency passes of two reports, paired by batch size; `a` is the baseline.

    `batch` are the sizes to compare, by default all. `run_spread` is how much separate runs differ on their
    device, if that was measured; for the rest see `Comparisons`.
    """
    notes = _machine_notes(a, b, force)
    works = (
        Work(report.source_sha256, {point.batch: point.latency.shapes for point in report.points})
        for report in (a, b)
    )
    notes += require_alike(unlike_work(*works), force=force)
    if a.model_sha256 != b.model_sha256 and not (a.source_sha256 and b.source_sha256):
        notes.append("the graphs differ, and not both files name the model that theirs is made of")
    ours, theirs = ({point.batch: point for point in report.points} for report in (a, b))
    rows = tuple(
        _row(ours[size], theirs[size], threshold, a.environment.device, run_spread)
        for size in paired_sizes(ours, theirs, batch)
    )
    return Comparisons(
        a=str(a.environment.backend),
        b=str(b.environment.backend),
        device=b.environment.device.name,
        threshold=threshold,
        limit=limit,
        rows=rows,
        notes=tuple(notes),
        again=again,
    )


def _machine_notes(a: BenchReport, b: BenchReport, force: bool) -> list[str]:
    """What differs between the machines. The TensorRT version may differ."""
    there, here = a.environment, b.environment
    pairs = (
        ("device", there.device.name, here.device.name),
        ("driver", there.device.driver, here.device.driver),
        ("CPU", there.cpu, here.cpu),
        ("backend", there.backend.name, here.backend.name),
        ("cores", *_cores(there, here)),
    )
    unlike = [f"{name}: {first} against {second}" for name, first, second in pairs if first != second]
    if unlike and not force:
        raise UsageError(
            f"the two files come from different machines ({'; '.join(unlike)})",
            "measure both on one machine, or compare them anyway with --force",
        )
    return unlike


def _cores(there: Environment, here: Environment) -> tuple[int | None, int | None]:
    """How many cores each side had where they did the work, as far as both tell."""
    if here.device.kind != "cpu" or not (there.cpus and here.cpus):
        return None, None
    return len(there.cpus), len(here.cpus)


def _row(
    a: BenchPoint, b: BenchPoint, threshold: float, device: DeviceInfo, run_spread: MeasuredRunSpread | None
) -> Row:
    ours, theirs = a.latency, b.latency
    if ours.contract != theirs.contract:
        raise UsageError(
            f"batch {a.batch}: different contracts, {ours.contract.name} and {theirs.contract.name}",
            "a number means nothing without its terms: measure both under one --contract; "
            "--across-contracts shows where the difference comes from",
        )
    against = [
        f"{name} is marked as not to be trusted: {text}"
        for name, point in (("A", a), ("B", b))
        for text in (*filter(None, [point.failure]), *(doubt.text for doubt in doubts_of(point, device)))
    ]
    mhz = [one for one in (sm_clock(ours.clocks), sm_clock(theirs.clocks)) if one is not None]
    is_capped = any(POWER_CAP in reading.throttle for reading in ours.clocks)  # its load sets the clock
    was_slow = len(mhz) == 2 and mhz[0] < MIN_CLOCK_SHARE * mhz[1] and not is_capped
    if was_slow:
        against.append(f"A ran at {mhz[0]:.0f} MHz and B at {mhz[1]:.0f} MHz: measure both at one clock")
    first, second = ours.samples.latency_ms, theirs.samples.latency_ms
    return Row(
        batch=a.batch,
        a_ms=summarise(first).median,
        b_ms=summarise(second).median,
        comparison=compare_runs(
            blocks_of(first),
            blocks_of(second),
            threshold=threshold,
            interfered=against,
            run_spread=run_spread,
        ),
        is_trusted=not any((a.failure, b.failure, ours.untrustworthy, theirs.untrustworthy, was_slow)),
    )
