"""What engines were measured to take, from a result file of `trtopt bench`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trtopt.errors import UsageError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.records import BenchReport, EngineArtifact, read_versioned

BENCH_FILE = "bench.json"
"""A result file of this name in a build folder is used by default."""

Latencies = dict[str, tuple[tuple[int, float], ...]]
"""By an engine's SHA-256: (batch, median milliseconds) by ascending batch."""


def measured_latencies(
    folder: Path, engines: tuple[EngineArtifact, ...], bench: BenchReport | str | Path | None
) -> Latencies:
    """The latencies of the engines in a folder, by the report given or the one in the folder.

    A report in the folder that measured other engines is ignored.

    Raises:
        ArtifactError: a result file that cannot be read.
        UsageError: the report given measured none of these engines.
    """
    default = folder / BENCH_FILE
    if bench is None:
        return _of(_read(default), engines) if default.is_file() else {}
    report = bench if isinstance(bench, BenchReport) else _read(Path(bench))
    found = _of(report, engines)
    if not found:
        raise UsageError(
            f"the result given measured none of the engines in {folder}",
            f"measure these: trtopt bench {folder} --json {default}",
        )
    return found


def _read(path: Path) -> BenchReport:
    remedy = "measure again with trtopt bench --json FILE, or remove the file"
    with reading_as("a result of trtopt bench", path, remedy):
        return read_versioned(read_bounded(path), BenchReport)


def _of(report: BenchReport, engines: tuple[EngineArtifact, ...]) -> Latencies:
    medians: dict[str, dict[int, float]] = {engine.sha256: {} for engine in engines}
    for point in report.points:
        latency = point.latency.samples.latency_ms
        if latency and point.latency.engine.sha256 in medians:
            medians[point.latency.engine.sha256][point.batch] = float(np.median(latency))
    return {sha256: tuple(sorted(found.items())) for sha256, found in medians.items() if found}
