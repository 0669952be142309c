"""Two result files against each other."""

from __future__ import annotations

from pathlib import Path

from trtopt.errors import ArtifactError
from trtopt.measure.comparison import THRESHOLD
from trtopt.measure.results import ReportComparison, compare_reports
from trtopt.records import BenchReport, read_versioned

_MAX_RESULT_BYTES = 1 << 30


def compare_results(
    a: str | Path, b: str | Path, *, threshold: float = THRESHOLD, force: bool = False
) -> ReportComparison:
    """Compare the latency passes of two result files of `trtopt bench`.

    Args:
        a: the baseline.
        b: what is judged against it.
        threshold: a difference below this share is of no practical interest.
        force: compare although the machines differ.

    Raises:
        UsageError: they do not belong together; see `measure.results.compare_reports`.
        ArtifactError: a file that is no result file, is cut short or written by a newer trtopt.
    """
    return compare_reports(read_result(Path(a)), read_result(Path(b)), threshold=threshold, force=force)


def read_result(path: Path) -> BenchReport:
    """A result file of `trtopt bench`.

    Raises:
        ArtifactError: no such file, not a result file, cut short, edited beyond its schema, of a newer
            trtopt, or without samples.
    """
    try:
        if path.stat().st_size > _MAX_RESULT_BYTES:
            raise ValueError("larger than a result file can be")
        report = read_versioned(path.read_bytes(), BenchReport)
        _check_samples(report)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as a result file: {error}",
            "give a file that `trtopt bench --json` wrote",
        ) from None
    return report


def _check_samples(report: BenchReport) -> None:
    if not report.points:
        raise ValueError("it holds no measurements")
    for point in report.points:
        samples = point.latency.samples
        columns = (samples.start_ms, samples.end_ms, samples.enqueue_ms, samples.gpu_compute_ms, samples.lane)
        if not samples.start_ms or len({len(column) for column in columns}) != 1:
            raise ValueError(f"batch {point.batch}: its columns of samples are empty or of unlike length")
