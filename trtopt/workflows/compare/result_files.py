"""Two result files against each other."""

from __future__ import annotations

import shlex
from pathlib import Path

from trtopt.errors import ArtifactError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import MANIFEST
from trtopt.measure.analysis.findings import measurements_of
from trtopt.measure.analysis.outcomes import FILES_LIMIT, Comparisons, compare_reports
from trtopt.recipe import batch_sizes
from trtopt.records import STAGES, BenchReport, Samples, read_versioned
from trtopt.requests.measure import CompareRequest
from trtopt.workflows.race import measured_run_spread

_REMEDY = (
    "give a file that `trtopt bench --json` wrote; or engines, also trtexec's, which are measured in turns: "
    "`trtopt compare OLD NEW`"
)


def is_result_file(path: Path) -> bool:
    """Whether a path is to be read as one: a JSON file that is no build folder's manifest."""
    return not path.is_dir() and path.suffix == ".json" and path.name != MANIFEST


def compare_files(a: Path, b: Path, request: CompareRequest) -> Comparisons:
    """Compare the latencies that two files hold."""
    first, second = read_result(a), read_result(b)
    return compare_reports(
        first,
        second,
        threshold=request.threshold,
        force=request.force,
        batch=batch_sizes(request.batch),
        limit=request.fail_on or FILES_LIMIT,
        run_spread=measured_run_spread(second.environment.device),
        again=_in_turns(first, second),
    )


def _in_turns(a: BenchReport, b: BenchReport) -> str:
    """The command that measures what both files are of in turns; by placeholders where it is not there."""
    folders = [Path(report.points[0].latency.engine.path).parent for report in (a, b)]
    is_there = folders[0] != folders[1] and all((folder / MANIFEST).is_file() for folder in folders)
    named = " ".join(shlex.quote(str(folder)) for folder in folders) if is_there else "A_FOLDER B_FOLDER"
    return f"measure both in turns: trtopt compare {named}"


def read_result(path: Path, remedy: str = _REMEDY) -> BenchReport:
    """A result file of `trtopt bench`, whole: `remedy` is for one that is not."""
    with reading_as("a result file", path, remedy):
        report = read_versioned(read_bounded(path), BenchReport)
        _check_kept(path, report)
        _check_samples(report)
    return report


def _check_kept(path: Path, report: BenchReport) -> None:
    """Refuse a pass that was disturbed from its first sample to its last."""
    for point in report.points:
        for measurement in (point.latency, point.throughput):
            if measurement is None or measurement.samples.start_ms or not measurement.discarded:
                continue
            reasons = sorted({reason for group in measurement.groups for reason in group})
            raise ArtifactError(
                f"{path}: batch {point.batch}: all {measurement.discarded} samples of its {measurement.mode} "
                f"pass were discarded ({', '.join(reasons) or 'the file gives no reason'})",
                "measure again when nothing slows the device down",
            )


def _check_samples(report: BenchReport) -> None:
    if not report.points:
        raise ValueError("it holds no measurements")
    sizes = [point.batch for point in report.points]
    if twice := sorted({size for size in sizes if sizes.count(size) > 1}):
        raise ValueError(f"it holds batch {', '.join(map(str, twice))} more than once")
    for point in report.points:
        for taken in measurements_of(point):
            if taken.batch != point.batch:
                raise ValueError(
                    f"batch {point.batch}: the samples of its {taken.mode} pass are of batch {taken.batch}"
                )
        if point.layers is not None and not all(layer.ms for layer in point.layers.layers):
            raise ValueError(f"batch {point.batch}: a layer has no times")
        if point.kernels is not None:
            columns = [column for one in point.kernels.launches for column in (one.start_ms, one.ms)]
            if columns and (not columns[0] or len(set(map(len, columns))) > 1):
                raise ValueError(f"batch {point.batch}: its columns of kernels are empty or of unlike length")
        for measurement in (point.latency, point.throughput):
            if measurement is None:
                continue
            samples = measurement.samples
            if not samples.start_ms or not all(map(_is_whole, (samples, measurement.staged))):
                raise ValueError(f"batch {point.batch}: its columns of samples are empty or of unlike length")
            if any(end <= start for start, end in zip(samples.start_ms, samples.end_ms, strict=True)):
                raise ValueError(
                    f"batch {point.batch}: some of its queries end before they begin, or at once"
                )


def _is_whole(samples: Samples) -> bool:
    """Whether all columns are of one length; the device's and the groups' may be empty."""
    lengths = {len(column) for column in (samples.start_ms, samples.end_ms, samples.inference_stream)}
    optional = (*(getattr(samples, column) for column in STAGES.values()), samples.group)
    return len(lengths | {len(column) for column in optional if column}) == 1
