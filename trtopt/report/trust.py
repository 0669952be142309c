"""Whether a report's figures are trustworthy, and hints for better ones."""

from __future__ import annotations

from trtopt.measure.analysis.findings import clocks_text, hints_of, measurements_of, remarks, untrustworthy
from trtopt.records import BenchPoint, BenchReport


def is_trustworthy(report: BenchReport) -> bool:
    """Whether all of its figures are trustworthy."""
    return not any(untrustworthy(point) for point in report.points)


def marked(point: BenchPoint) -> str:
    """The point's batch size for a table; with a mark if its figures are not trustworthy."""
    return f"{point.batch}!" if untrustworthy(point) else str(point.batch)


def trust_lines(report: BenchReport) -> list[str]:
    """Clocks in one line; then interference by batch size, and hints with their remedies."""
    on_host = report.environment.device.kind == "cpu"
    lines = [clocks_text([m for point in report.points for m in measurements_of(point)])]
    for point in report.points:
        if untrustworthy(point):
            lines.append(f"batch {point.batch}! is not trustworthy:")
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
