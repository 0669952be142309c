"""Results over time: which belong together, where they changed, and what changed with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from statistics import median

import msgspec

from trtopt.errors import ArtifactError
from trtopt.inspect.inspector import read_inspector
from trtopt.measure.analysis.findings import is_on_host, trust_of, under_load
from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.change_points import (
    LEAST_REFERENCE,
    REFERENCE_RUNS,
    ChangePoint,
    change_points,
)
from trtopt.measure.statistics.summaries import percentile, throughput
from trtopt.records import (
    BenchPoint,
    BenchReport,
    ChangedFact,
    ClockReading,
    HistoryChange,
    HistoryRun,
    HistorySeries,
    Measurement,
    Trust,
    to_json,
)

NamedResult = tuple[str, BenchReport]
_SHOWN = 12
"""Digits of a hash."""


@dataclass(frozen=True)
class _Run:
    """One pass of one result; `terms` is what two runs must share to be compared."""

    file: str
    report: BenchReport
    point: BenchPoint
    taken: Measurement

    @property
    def terms(self) -> HistorySeries:
        environment, taken = self.report.environment, self.taken
        return HistorySeries(
            device=environment.device.name,
            backend=environment.backend.name,
            engine=taken.engine.label,
            batch=taken.batch,
            shapes=taken.shapes,
            mode=taken.mode,
            contract=taken.contract,
            runs=(),
            changes=(),
            verdict="UNDECIDED",
            reason="",
        )

    @property
    def figures(self) -> dict[str, float]:
        """Of a pass with one query at a time its median and its fast tenth, which other load leaves alone."""
        samples = self.taken.samples
        if self.taken.mode == "throughput":
            return {"ms a query": 1e3 / throughput(samples, self.taken.batch).queries_per_s}
        return {f"p{p}": percentile(samples.latency_ms, p) or 0.0 for p in (50, 10)}

    @cached_property
    def facts(self) -> dict[str, str]:
        """What may change the speed, the likeliest first; what is further down often follows from it."""
        report, readings = self.report, self.taken.clocks
        environment = report.environment
        others = [one.other_processes for one in readings if one.other_processes is not None]
        return {
            "throttling": ", ".join(sorted({reason for reading in readings for reason in reading.throttle})),
            "SM clock": _clock(readings),
            "other processes on the GPU": str(max(others, default="")),
            "backend": str(environment.backend),
            "driver": environment.device.driver or "",
            "model": (report.source_sha256 or report.model_sha256)[:_SHOWN],
            **dict(_tactics(self.point)),
            "trtopt": environment.trtopt,
            "cores of the host": ", ".join(map(str, environment.cpus)),
            "code": (environment.git_revision or "")[:_SHOWN],
            "engine": self.taken.engine.sha256[:_SHOWN],
        }


def _clock(readings: Sequence[ClockReading]) -> str:
    known = [reading.sm_mhz for reading in under_load(readings) if reading.sm_mhz is not None]
    return f"{round(median(known), -1):.0f} MHz" if known else ""


def _tactics(point: BenchPoint) -> Iterator[tuple[str, str]]:
    """Of each layer, where the result has layers."""
    text = point.layers.inspector if point.layers is not None else None
    with suppress(ArtifactError):
        for layer in read_inspector(text).layers if text else ():
            yield f"tactic of {layer.name}", layer.tactic


def series_of(results: Iterable[NamedResult]) -> tuple[tuple[HistorySeries, ...], tuple[str, ...]]:
    """The series of all results, and notes on what is in none of them.

    Points that failed, or whose figures are not trustworthy, are left out.
    """
    results = sorted(results, key=lambda named: named[1].created)
    newest = {report.environment.device.name: file for file, report in results}
    runs: dict[bytes, list[_Run]] = {}
    notes = []
    for file, report in results:
        for point in report.points:
            doubt = _why_left_out(report, point)
            if doubt:
                notes.append(f"{file}: batch {point.batch} is left out: {doubt}")
                continue
            for taken in filter(None, (point.latency, point.throughput)):
                run = _Run(file, report, point, taken)
                runs.setdefault(to_json(run.terms), []).append(run)
    return tuple(_series(own, newest[own[0].terms.device]) for own in runs.values()), tuple(notes)


def _why_left_out(report: BenchReport, point: BenchPoint) -> str | None:
    if point.failure is not None:
        return point.failure
    is_doubtful = trust_of(point, on_host=is_on_host(report)) is Trust.NONE
    return "its figures are not trustworthy" if is_doubtful else None


def _series(runs: Sequence[_Run], newest: str) -> HistorySeries:
    names = list(runs[0].figures)
    columns = [[run.figures[name] for run in runs] for name in names]
    points = change_points(columns)
    changes = tuple(
        HistoryChange(
            file=runs[found.index].file,
            created=runs[found.index].report.created,
            figure=names[found.column],
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            causes=_causes(runs, start, found.index),
        )
        for start, found in zip((0, *(one.index for one in points)), points, strict=False)
    )
    verdict, reason = _judge(columns, points, is_newest=runs[-1].file == newest)
    return msgspec.structs.replace(
        runs[0].terms,
        runs=tuple(
            HistoryRun(file=run.file, created=run.report.created, figures=run.figures) for run in runs
        ),
        changes=changes,
        verdict=verdict,
        reason=reason,
    )


def _judge(
    columns: Sequence[Sequence[float]], points: Sequence[ChangePoint], *, is_newest: bool
) -> tuple[str, str]:
    """The verdict on the newest run, and its reason; what is not decided is not the same."""
    starts = [0, *(one.index for one in points)]
    length = len(columns[0]) - starts[-1]
    if not is_newest:
        return "UNDECIDED", "the newest result on this device has no trustworthy figures of it"
    if not points and length <= LEAST_REFERENCE:
        return "UNDECIDED", f"{length} of {LEAST_REFERENCE + 1} runs: measure and add more"
    for column in columns:
        before, last = column[starts[-1] : -1], column[-1]
        if last > max(before) * (1 + THRESHOLD):
            slower = f"the newest run is {last / median(before) - 1:.1%} slower, above all before"
            return "UNDECIDED", f"{slower}: measure once more and add that"
    change = prod(one.ratio for one in _since_the_level(points, len(columns[0])))
    if abs(change - 1) < THRESHOLD:
        return "SAME", f"no change in {length} runs"
    return ("SLOWER" if change > 1 else "FASTER"), f"{change - 1:+.1%} since {length} runs"


def _since_the_level(points: Sequence[ChangePoint], count: int) -> Sequence[ChangePoint]:
    """The changes since the newest level that twenty runs were at, or since the first one."""
    ends = [*(one.index for one in points[1:]), count]
    held = [place for place, one in enumerate(points) if ends[place] - one.index >= REFERENCE_RUNS]
    return points[held[-1] + 1 :] if held else points


def _causes(runs: Sequence[_Run], start: int, at: int) -> tuple[ChangedFact, ...]:
    """What differs between the runs next to a change; first what had been the same since the last change."""
    before, after = runs[at - 1].facts, runs[at].facts
    changed = [
        ChangedFact(what=what, before=before[what], after=after[what])
        for what in after
        if what in before and before[what] != after[what]
    ]
    varied = {one.what for one in changed if len({run.facts.get(one.what) for run in runs[start:at]}) > 1}
    return tuple(sorted(changed, key=lambda one: one.what in varied))
