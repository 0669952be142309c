"""Whether a report's figures are trustworthy, and hints for better ones."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.measure.analysis.findings import (
    clocks_text,
    doubts_of,
    hints_of,
    is_on_host,
    loads_of,
    measurements_of,
    oddities,
    remarks,
    trust_of,
)
from trtopt.measure.analysis.hints import HintCode
from trtopt.measure.load.arrivals import keeps_up
from trtopt.records import BenchPoint, BenchReport, Trust
from trtopt.report.notes import Note, Severity, grouped, plain


def is_trustworthy(report: BenchReport) -> bool:
    """Whether all of its figures are trustworthy and steady."""
    return all(trust_of(point, on_host=is_on_host(report)) is Trust.FULL for point in report.points)


def marked(point: BenchPoint, *, on_host: bool) -> str:
    """The point's batch size for a table; with a mark if its figures are doubtful."""
    return f"{point.batch}{trust_of(point, on_host=on_host).mark}"


def trust_lines(report: BenchReport) -> list[str]:
    """Clocks in one line; then interference by batch size, and hints with their remedies."""
    on_host = is_on_host(report)
    lines = [clocks_text([m for point in report.points for m in measurements_of(point)])]
    for point in report.points:
        trust = trust_of(point, on_host=on_host)
        if trust is not Trust.FULL:
            lines.append(f"batch {point.batch}{trust.mark} is {trust.value}:")
        for measurement in measurements_of(point):
            name = f"batch {point.batch}, {measurement.mode}"
            if measurement is point.single_stream:
                name += " of one stream"
            lines += [f"{name}: {remark}" for remark in remarks(measurement)]
        if point.failure is not None:
            lines.append(f"batch {point.batch}: passes are missing: {point.failure}")
    for point in report.points:
        lines += [
            f"hint: batch {point.batch}: {hint.text} → {hint.remedy}"
            for hint in hints_of(point, on_host=on_host)
        ]
    return lines


def trust_warnings(report: BenchReport) -> list[str]:
    """Why figures are not trustworthy, one line per reason."""
    found = [
        Note(Severity.FAILURE, doubt.text, point.batch)
        for point in report.points
        for doubt in doubts_of(point, on_host=is_on_host(report))
        if doubt.trust is Trust.NONE
    ]
    return [f"not trustworthy: {line}" for line in grouped(found)]


def bench_notes(report: BenchReport) -> list[Note]:
    """Findings, hints and notes of all points, without what `trust_warnings` says."""
    whole = list(dict.fromkeys(report.notes))
    others = [text for text in all_notes(report) if text not in whole]
    return [*(Note(Severity.FINDING, text) for text in whole), *_findings(report), *plain(others)]


def all_notes(report: BenchReport) -> list[str]:
    """Every recorded note once, the report's first."""
    notes = [note for point in report.points for m in measurements_of(point) for note in m.notes]
    notes += [note for point in report.points for load in loads_of(point) for note in load.notes]
    return list(dict.fromkeys((*report.notes, *notes)))


def _findings(report: BenchReport) -> Iterator[Note]:
    on_host = is_on_host(report)
    for point in report.points:
        if point.failure is not None:
            yield Note(Severity.FAILURE, f"passes are missing: {point.failure}", point.batch)
        for load in loads_of(point):
            if load.failure is None and not keeps_up(load):
                yield Note(Severity.FAILURE, "the target cannot keep up with the load", point.batch)
        doubts = [one for one in doubts_of(point, on_host=on_host) if one.trust is Trust.UNSTEADY]
        for place, doubt in enumerate(doubts):
            severity = Severity.FINDING if place else Severity.DOUBT
            yield Note(severity, f"unsteady (~): {doubt.short}", point.batch, doubt.remedy)
        found = [finding.short for m in measurements_of(point) for finding in oddities(m)]
        for text in dict.fromkeys(found):
            if text not in {doubt.short for doubt in doubts}:
                yield Note(Severity.FINDING, text, point.batch)
        for hint in hints_of(point, on_host=on_host):
            if hint.code is not HintCode.UNSTABLE:
                yield Note(Severity.HINT, hint.text.partition(":")[0], point.batch, hint.remedy)
