"""A sweep as text tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.measure.analysis.sweep_choices import Choices, choices_of, is_decided_busy
from trtopt.records import SweepPoint, SweepReport, Trust
from trtopt.report.notes import Note, Severity, plain
from trtopt.report.tables import UNKNOWN, plain_table, shown, titled

_MIB = 2**20


def sweep_table(report: SweepReport) -> RenderableType:
    """One row per point; `*` is on the Pareto front, `knee` its knee, `!` not trustworthy, `~` unsteady."""
    marks = marks_of(report)
    columns = ("point", "p50 ms", "p99 ms", "samples/s", "samples/J", "MiB", "Pareto")
    table = plain_table(*columns, left=("point", "Pareto"), no_wrap=False)
    for point in report.points:
        if point.failure is not None:
            table.add_row(Text(point.label), *[UNKNOWN] * 5, "failed")
            continue
        memory = point.memory
        table.add_row(
            Text(point.label),
            *_latency(point),
            shown(point.samples_per_s, ",.0f"),
            shown(point.samples_per_joule, ",.2f"),
            shown(None if memory is None else memory.peak_bytes / _MIB, ",.1f"),
            marks.get(point.key, ""),
        )
    return titled(f"{report.model}: {report.terms.backend} on {report.terms.device.name}", table)


def point_line(point: SweepPoint) -> str:
    """A point in one line, for logs."""
    if point.failure is not None:
        return f"{point.label}: failed: {point.failure.splitlines()[0]}"
    p50, p99 = _latency(point)
    return f"{point.label}: p50 {p50} ms, p99 {p99} ms, {shown(point.samples_per_s, ',.0f')} samples/s"


def sweep_summary(report: SweepReport) -> RenderableType:
    """The best point at each length of the axes, all points, and the best under each latency bound."""
    busy = is_decided_busy(report)
    parts: list[RenderableType] = [Text(line) for line in best_lines(report)]
    parts.append(sweep_table(report))
    parts += [_bests(choices, busy=busy) for choices in choices_of(report)]
    return Group(*parts)


def best_lines(report: SweepReport) -> Iterator[str]:
    """The point with the most samples a second at each set of lengths of axes, a line each."""
    for choices in choices_of(report):
        best = choices.front[-1]
        doubt = "" if best.trust is Trust.FULL else f", which is {best.trust.value}"
        yield f"best {best.samples_per_s:,.0f} samples/s at {best.label}{doubt}"


def sweep_notes(report: SweepReport) -> list[Note]:
    """Failures, points that are not trustworthy or unsteady, and remarks on the figures."""
    notes = [Note(Severity.FAILURE, f"{p.label} failed: {p.failure}") for p in report.points if p.failure]
    notes += [Note(Severity.DOUBT, line) for line in _doubts(report)]
    return [*notes, *plain(_of_figures(report))]


def _latency(point: SweepPoint) -> tuple[str, str]:
    """p50 and p99 of one query in flight."""
    latency = point.latency
    if latency is None:
        return UNKNOWN, UNKNOWN
    return shown(latency.p50_ms, ".3f"), shown(latency.p99_ms, ".3f")


def marks_of(report: SweepReport) -> dict[str, str]:
    """`*` and `* knee` by the keys of the points on a front, followed by the mark of their trust."""
    marks: dict[str, str] = {}
    for choices in choices_of(report):
        marks |= {point.key: "*" for point in choices.front}
        if choices.knee is not None:
            marks[choices.knee.key] = "* knee"
    for point in report.measured:
        if point.trust is not Trust.FULL:
            marks[point.key] = marks.get(point.key, "") + point.trust.mark
    return marks


def at_lengths(axes: dict[str, int]) -> str:
    """` at seq=128`, or nothing where no axis is swept."""
    return " at " + ", ".join(f"{name}={length}" for name, length in axes.items()) if axes else ""


def _bests(choices: Choices, *, busy: bool) -> RenderableType:
    latency = "p99 under full load" if busy else "p99"
    table = plain_table(f"{latency} ≤ ms", "batch", "point", "samples/s", left=("point",), no_wrap=False)
    for bound, point in choices.bests:
        batch, rate = str(point.setting.batch), shown(point.samples_per_s, ",.0f")
        table.add_row(f"{bound:g}", batch, Text(point.label), rate)
    return titled(f"Best under a bound on {latency}{at_lengths(choices.axes)}", table)


def remarks_on(report: SweepReport) -> list[str]:
    """Failures, points that are not trustworthy or unsteady, and remarks on the figures."""
    return [*on_points(report), *_of_figures(report)]


def _of_figures(report: SweepReport) -> Iterator[str]:
    if is_decided_busy(report):
        yield (
            "front and bounds use latency under full load, queueing included: one query in "
            "flight says nothing about several streams"
        )
    sources = {point.power.source for point in report.measured if point.power is not None}
    if sources:
        yield f"samples/J: throughput over mean power, from the {' and the '.join(sorted(sources))}"
    elif report.measured:
        yield "samples/J: no source of power readings on this machine"
    if report.measured and not any(point.memory for point in report.measured):
        yield f"MiB: {report.terms.backend} reports no allocations"


def on_points(report: SweepReport) -> Iterator[str]:
    """Points that failed, are not trustworthy or unsteady, each with its reason."""
    yield from (
        f"{point.label} failed: {point.failure}" for point in report.points if point.failure is not None
    )
    yield from _doubts(report)


def _doubts(report: SweepReport) -> Iterator[str]:
    """The worst first."""
    for trust in (Trust.NONE, Trust.UNSTEADY):
        for point in report.points:
            for text in point.untrustworthy if trust is Trust.NONE else point.unsteady:
                yield f"{point.label}{trust.mark} is {trust.value}: {text}"
