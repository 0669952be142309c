"""A history: a folder with the results of one model over time; where they changed, and what with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import ArtifactError, TrtoptError, UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.inspect.inspector import read_inspector
from trtopt.measure.analysis.findings import sm_clock, trust_of
from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.change_points import (
    LEAST_REFERENCE,
    NEWEST_RUNS,
    REFERENCE_RUNS,
    change_points,
    ratio_of,
)
from trtopt.measure.statistics.summaries import percentile, throughput
from trtopt.printable import counted
from trtopt.records import (
    BenchPoint,
    BenchReport,
    ChangedFact,
    ClockReading,
    EngineRef,
    HistoryChange,
    HistoryReport,
    HistoryRun,
    HistorySeries,
    Measurement,
    Trust,
    to_json,
)
from trtopt.requests.measure import HistoryAddRequest, HistoryRequest
from trtopt.workflows.compare.result_files import read_result

_DIGITS = 16
_AHEAD = timedelta(minutes=1)
"""By how much clocks of hosts may differ."""
_REMEDY = "add what `trtopt bench --json` wrote"


def add_to_history(request: HistoryAddRequest) -> tuple[Path, ...]:
    """Add results to a folder of one model's results over time, made where there is none.

    Returns:
        Their files in the folder; one that was in it already stays there once.

    Example:
        >>> [path.parent.name for path in trtopt.add_to_history("history", ["bench.json"])]
        ['history']
    """
    added = []
    for path in request.results:
        kept, content = _kept_at(Path(request.folder), _read(Path(path)))
        if not _has(kept, content):  # a damaged one is replaced
            write_atomically(kept, content)
        added.append(kept)
    return tuple(added)


def _kept_at(folder: Path, report: BenchReport) -> tuple[Path, bytes]:
    """A result's file in a history, and what that holds."""
    content = to_json(report, indent=None)
    digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
    return folder / f"{report.created.replace(':', '-')}-{digest}.json", content


def _has(kept: Path, content: bytes) -> bool:
    return kept.is_file() and read_bounded(kept) == content


def history(request: HistoryRequest) -> HistoryReport:
    """Judge a folder of one model's results over time.

    Returns:
        The series, each with its runs (in milliseconds), the changes in them and what else changed there, and
        a verdict on the newest run: SLOWER, FASTER, SAME, UNDECIDED; UNTRUSTWORTHY without figures.
        Changes are found by the rank sum of Wilcoxon, Mann and Whitney: see
        `trtopt.measure.statistics.change_points`.

    Example:
        >>> found = trtopt.history("history")
        >>> found.series[0].verdict
        'UNDECIDED'
    """
    folder, name, last = Path(request.folder), "", None
    if request.result is not None:
        last = _read(Path(request.result))
        kept, content = _kept_at(folder, last)
        if not _has(kept, content):  # one that was edited there is another
            add_it = f"trtopt history add {folder} {request.result}"
            raise UsageError(f"{folder}: does not hold {request.result}", f"{add_it} adds it")
        name = kept.name
    series, notes = series_of(_results(folder, name, last))
    if not (series or notes):
        raise UsageError(f"{folder}: holds no results", f"trtopt history add {folder} bench.json adds one")
    return HistoryReport(folder=str(folder), series=series, notes=notes)


def _results(folder: Path, name: str, last: BenchReport | None) -> Iterator[NamedResult]:
    """What is of the device of `last`, and no newer, or all; a result that was also copied there, once."""
    seen = set()
    for path in sorted(folder.glob("*.json")):
        try:
            if not path.is_file():  # a pipe would be waited for
                raise ArtifactError(f"{path}: is no file", "move it out of the folder")
            report = _read(path)
        except TrtoptError as error:
            yield path.name, error
            continue
        kept, _ = _kept_at(folder, report)
        if kept in seen:
            continue
        seen.add(kept)
        if last is None or (
            report.environment.device.name == last.environment.device.name
            and (report.created, path.name) <= (last.created, name)
        ):
            yield path.name, report


def _read(path: Path) -> BenchReport:
    """A result with its time in UTC; one yet to come is refused."""
    report = read_result(path, _REMEDY)
    with reading_as("a result with a time", path, _REMEDY):
        created = datetime.fromisoformat(report.created).astimezone(timezone.utc)
    if created - datetime.now(timezone.utc) > _AHEAD:
        raise ArtifactError(
            f"{path}: it is of {report.created}, which is yet to come",
            "set the clocks of this host and of the one that measured it, and measure again",
        )
    return msgspec.structs.replace(report, created=created.isoformat(timespec="seconds"))


# ── runs that belong together, and where they changed ───────────────────────────────────────────────────

NamedResult = tuple[str, BenchReport | TrtoptError]
"""A file and what was read in it, or why that failed."""
_SHOWN = 12
"""Digits of a hash."""
_NO_FIGURES = (
    "{}, the newest of this device, has no trustworthy figures of it: measure it again, or begin another "
    "folder for what is measured now"
)


@dataclass(frozen=True)
class _Run:
    """One pass of one result; its samples, which are megabytes, are given up for their figures.

    `terms` is what two runs must share to be compared.
    """

    shown: HistoryRun
    report: BenchReport
    engine: EngineRef
    clocks: tuple[ClockReading, ...]
    inspector: str | None
    terms: HistorySeries

    @cached_property
    def facts(self) -> dict[str, str]:
        """What may change the speed, the likeliest first; what is further down often follows from it."""
        report, readings = self.report, self.clocks
        environment = report.environment
        others = [one.other_processes for one in readings if one.other_processes is not None]
        return {
            "throttling": ", ".join(sorted({reason for reading in readings for reason in reading.throttle})),
            "SM clock": _clock(readings),
            "other processes on the GPU": str(max(others, default="")),
            "device": environment.device.uuid or "",
            "backend": str(environment.backend),
            "driver": environment.device.driver or "",
            "model": (report.source_sha256 or report.model_sha256)[:_SHOWN],
            **dict(_tactics(self.inspector)),
            "trtopt": environment.trtopt,
            "cores of the host": ", ".join(map(str, environment.cpus)),
            "code": (environment.git_revision or "")[:_SHOWN],
            "engine": self.engine.sha256[:_SHOWN],
        }


def _terms_of(report: BenchReport, taken: Measurement) -> HistorySeries:
    return HistorySeries(
        device=report.environment.device.name,
        backend=report.environment.backend.name,
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


def _figures(taken: Measurement) -> dict[str, float]:
    """Of a pass with one query at a time its median and its fast tenth, which other load leaves alone."""
    if taken.mode == "throughput":
        return {"ms a query": 1e3 / throughput(taken.samples, taken.batch).queries_per_s}
    return {f"p{p}": percentile(taken.samples.latency_ms, p) or 0.0 for p in (50, 10)}


def _clock(readings: Sequence[ClockReading]) -> str:
    mhz = sm_clock(readings)
    return f"{round(mhz, -1):.0f} MHz" if mhz is not None else ""


def _tactics(text: str | None) -> Iterator[tuple[str, str]]:
    """Of each layer, where the result has layers."""
    with suppress(ArtifactError):
        for layer in read_inspector(text) if text else ():
            yield f"tactic of {layer.name}", layer.tactic


def series_of(results: Iterable[NamedResult]) -> tuple[tuple[HistorySeries, ...], tuple[str, ...]]:
    """The series of all results, and notes on what is in none of them.

    Points that failed, or whose figures are not trustworthy, are left out, as is what could not be read. What
    is left out and may be the newest leaves every series untrustworthy; a point of the newest result that
    nothing else has figures of is a series without runs.
    """
    runs: dict[bytes, list[_Run]] = {}
    left: list[tuple[str, HistorySeries]] = []
    notes, unread = [], []
    newest: dict[str, tuple[str, str]] = {}
    for file, report in results:
        if isinstance(report, TrtoptError):
            notes.append(f"{file} is left out: {report.problem}")
            unread.append(file)
            continue
        device = report.environment.device.name
        newest[device] = max((report.created, file), newest.get(device, ("", "")))
        for point in report.points:
            doubt = _why_left_out(report, point)
            if doubt:
                notes.append(f"{file}: batch {point.batch} is left out: {doubt}")
            for taken in filter(None, (point.latency, point.throughput)):
                if doubt:
                    left.append((file, _terms_of(report, taken)))
                    continue
                terms = _terms_of(report, taken)
                run = _Run(
                    HistoryRun(file=file, created=report.created, figures=_figures(taken)),
                    msgspec.structs.replace(report, points=()),
                    taken.engine,
                    taken.clocks,
                    point.layers.inspector if point.layers is not None else None,
                    terms,
                )
                runs.setdefault(to_json(terms), []).append(run)
    last = max(newest.values(), default=("", ""))[1]
    late = [file for file in unread if file > last]
    found = [_series(own, newest[own[0].terms.device][1], late) for own in runs.values()]
    unknown = [
        msgspec.structs.replace(terms, verdict="UNTRUSTWORTHY", reason=_NO_FIGURES.format(file))
        for file, terms in left
        if file == newest[terms.device][1] and to_json(terms) not in runs
    ]
    return (*found, *unknown), tuple(notes)


def _why_left_out(report: BenchReport, point: BenchPoint) -> str | None:
    if point.failure is not None:
        return point.failure
    is_doubtful = trust_of(point, report.environment.device) is Trust.NONE
    return "its figures are not trustworthy" if is_doubtful else None


def _series(runs: Sequence[_Run], newest: str, late: Sequence[str]) -> HistorySeries:
    """`newest` is the file of the newest result on the device; `late` could not be read and may be newer."""
    runs = sorted(runs, key=lambda run: (run.shown.created, run.shown.file))
    shown = tuple(run.shown for run in runs)
    names = list(shown[0].figures)
    columns = [[run.figures[name] for run in shown] for name in names]
    points = change_points(columns)
    changes = tuple(
        HistoryChange(
            file=shown[found.index].file,
            created=shown[found.index].created,
            figure=names[found.column],
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            causes=_causes(runs, start, found.index),
        )
        for start, found in zip((0, *(one.index for one in points)), points, strict=False)
    )
    if late:
        verdict = "UNTRUSTWORTHY"
        reason = f"{late[0]} may be newer: replace it, or move it out of the folder"
    elif shown[-1].file != newest:
        verdict = "UNTRUSTWORTHY"
        reason = _NO_FIGURES.format(newest)
    else:
        verdict, reason = verdict_on(columns, [0, *(one.index for one in points), len(runs)])
    return msgspec.structs.replace(
        runs[0].terms,
        runs=shown,
        changes=changes,
        verdict=verdict,
        reason=reason,
    )


def verdict_on(columns: Sequence[Sequence[float]], bounds: Sequence[int]) -> tuple[str, str]:
    """The verdict on the newest level, and its reason; what is not decided is not the same.

    Levels lie between `bounds`. The newest is held against the last that twenty runs were at, or the first,
    and against each since that eight were at; in each figure by itself: that one is faster does not make up
    for another that is slower. A ratio counts whose interval of 95 % excludes 1.
    """
    levels = list(pairwise(bounds))
    start, end = levels[-1]
    if len(levels) == 1 and end <= LEAST_REFERENCE:
        return "UNDECIDED", f"{end} of {LEAST_REFERENCE + 1} runs: measure and add more"
    counts = [b - a for a, b in levels]
    held = max((place for place, count in enumerate(counts) if count >= REFERENCE_RUNS), default=0)
    logs = [np.log(np.asarray(column)) for column in columns]
    changes = [
        [ratio_of(one[slice(*level)], one[start:][-NEWEST_RUNS:]) for one in logs]
        for place, level in enumerate(levels[:-1])
        if place == held or (place > held and counts[place] >= LEAST_REFERENCE)
    ] or [[(1.0, 1.0, 1.0)]]
    slower = max((ratio for ratio, low, _ in chain(*changes) if low > 1), default=1.0) - 1
    faster = min((ratio for ratio, _, high in changes[0] if high < 1), default=1.0) - 1
    if slower >= THRESHOLD:
        return "SLOWER", f"{slower:+.1%} since {counted(end - start, 'run')}"
    slow = max(_slow_runs(column[start:]) for column in columns)
    if slow:
        return "UNDECIDED", f"slower than before for {counted(slow, 'run')}: measure and add more"
    if faster <= -THRESHOLD:
        return "FASTER", f"{faster:+.1%} since {counted(end - start, 'run')}"
    return "SAME", f"no change in {counted(end - start, 'run')}"


def _slow_runs(figures: Sequence[float]) -> int:
    """How many of the newest runs, up to eight, are slower than nine in ten of up to twenty before them.

    They are too few for a change, and may be one.
    """
    for count in range(min(NEWEST_RUNS, len(figures) - 1), 0, -1):
        before = sorted(figures[:-count][-REFERENCE_RUNS:])
        if min(figures[-count:]) > before[int(0.9 * (len(before) - 1))] * (1 + THRESHOLD):
            return count
    return 0


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
