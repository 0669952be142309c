"""A sweep as a table of figures for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from trtopt.records import SweepPoint, SweepReport
from trtopt.records.base import Row

COLUMNS = (
    *("label", "precision", "batch", "streams", "axes", "p50_ms", "p90_ms", "p99_ms", "max_ms", "queries"),
    *("busy_p50_ms", "busy_p99_ms", "queries_per_s", "samples_per_s", "watts", "watts_from"),
    *("samples_per_joule", "memory_bytes", "buffers_bytes", "context_bytes", "engine_bytes"),
    *("build_seconds", "engine", "engine_sha256", "untrustworthy", "unsteady", "failure"),
)


def csv_of(report: SweepReport) -> bytes:
    """One row a point, failed ones included; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of(report))
    return text.getvalue().encode("utf-8", errors="backslashreplace")


def rows_of(report: SweepReport) -> Iterator[Row]:
    """The figures of every point, by column; a column that is not known is missing."""
    return map(_row, report.points)


def _row(point: SweepPoint) -> Row:
    setting, latency, busy = point.setting, point.latency, point.busy_latency
    axes = " ".join(f"{name}={length}" for name, length in sorted(setting.axes.items()))
    row: Row = {
        "label": point.label,
        "precision": setting.precision,
        "batch": setting.batch,
        "streams": setting.streams,
        "axes": axes,
        "queries": point.queries,
        "queries_per_s": point.queries_per_s,
        "samples_per_s": point.samples_per_s,
        "samples_per_joule": point.samples_per_joule,
        "engine_bytes": point.engine_bytes,
        "build_seconds": point.build_seconds,
        "untrustworthy": "; ".join(point.untrustworthy),
        "unsteady": "; ".join(point.unsteady),
        "failure": point.failure,
    }
    if latency is not None:
        row |= {"p50_ms": latency.p50_ms, "p90_ms": latency.p90_ms, "p99_ms": latency.p99_ms}
        row |= {"max_ms": latency.max_ms}
    if busy is not None:
        row |= {"busy_p50_ms": busy.p50_ms, "busy_p99_ms": busy.p99_ms}
    if point.power is not None:
        row |= {"watts": point.power.watts, "watts_from": point.power.source}
    if point.memory is not None:
        memory = point.memory
        row |= {"memory_bytes": memory.peak_bytes, "buffers_bytes": memory.buffers_bytes}
        row |= {"context_bytes": memory.context_bytes}
    if point.engine is not None:
        row |= {"engine": point.engine.path, "engine_sha256": point.engine.sha256}
    return row
