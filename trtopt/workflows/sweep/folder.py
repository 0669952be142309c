"""A sweep's folder: who may write to it, what of it is to be believed, and its points in it.

    sweep.json, sweep.csv   the points, after every one of them;
    graphs/PRECISION/       the model in that precision, prepared once;
    builds/PRECISION…/      a build folder with an engine for each batch size;
    results/POINT-KEY.json  the result file of a point, raw samples included

A result file that carries a point's key is what makes a point measured; `sweep.json` is drawn from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtopt.builder.shapes import shapes_at
from trtopt.data.fit import sample_axes
from trtopt.errors import ArtifactError, DeviceError, OutputError, WrongPathError
from trtopt.files.atomic import is_temporary, lock, remove_if_abandoned, write_atomically
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.measure.analysis.energy import mean_power
from trtopt.measure.analysis.findings import doubts_of
from trtopt.measure.analysis.sweep_points import csv_of
from trtopt.measure.engine import BenchJob
from trtopt.measure.statistics.summaries import summarise, throughput
from trtopt.records import (
    BenchPoint,
    BenchReport,
    EngineRef,
    Environment,
    MemoryPass,
    PointMemory,
    Samples,
    Spread,
    SweepPoint,
    SweepReport,
    SweepSetting,
    SweepTerms,
    Trust,
    read_versioned,
    to_json,
)
from trtopt.targets import ONNXRUNTIME
from trtopt.workers.protocol import Benched
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.provenance import check_same_terms, command_line, now
from trtopt.workflows.race import with_streams
from trtopt.workflows.sweep.builds import PointEngine, file_name

REPORT = "sweep.json"
TABLE = "sweep.csv"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's, in whatever state."""
    return (folder / REPORT).is_file()


def read_sweep(folder: Path) -> SweepReport:
    """The report of a sweep."""
    path = folder / REPORT if folder.is_dir() else folder
    try:
        if folder.is_dir() and path.exists() and not path.is_file():
            raise ValueError("not a regular file")  # a pipe would be waited for
        return read_versioned(read_bounded(path), SweepReport)
    except FileNotFoundError:
        raise WrongPathError(
            f"{folder}: not a sweep folder: there is no {REPORT}", "give a folder that `trtopt sweep -o` made"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as the report of a sweep: {reason_of(error)}",
            "sweep again into another folder",
        ) from None


def save_sweep(folder: Path, report: SweepReport) -> None:
    """Write the report and its table."""
    write_atomically(folder / REPORT, to_json(report))
    write_atomically(folder / TABLE, csv_of(report))


@contextmanager
def sweep_in_progress(folder: Path, model: str, terms: SweepTerms) -> Iterator[SweepReport]:
    """Hold a sweep's folder, new or to be continued; yields the report of what is there."""
    guard = folder / REPORT
    if not guard.exists() and _is_anything(folder):
        raise OutputError(
            f"{folder}: exists and is not a sweep folder", "choose another name with -o, or remove it"
        )
    with lock(guard, wait_s=0):
        if not guard.exists():
            report = SweepReport(created=now(), argv=command_line(), model=model, terms=terms)
            save_sweep(folder, report)
        else:
            report = read_sweep(folder)
            check_same_terms(f"{folder}: is a sweep", report.terms, terms)
            _remove_unfinished(folder)
        yield report


def _is_anything(folder: Path) -> bool:
    """Whether there is more than what a sweep leaves that was killed at once."""
    if not folder.is_dir():
        return folder.exists()
    return any(REPORT not in path.name for path in folder.iterdir())


def _remove_unfinished(folder: Path) -> None:
    """What a sweep that was killed had under temporary names."""
    for path in sorted(folder.rglob(".*.tmp")):
        if is_temporary(path):
            remove_if_abandoned(path)


_KEY_DIGITS = 12


def result_path(folder: Path, setting: SweepSetting, terms: SweepTerms) -> Path:
    """Where a point's result file lies: its key is in its name."""
    name = f"{file_name(setting.label)}-{setting.key(terms)[:_KEY_DIGITS]}.json"
    return folder / "results" / name


def drawn(
    folder: Path, setting: SweepSetting, terms: SweepTerms, engine: PointEngine
) -> tuple[SweepPoint, Environment] | None:
    """The point from its result file, if that is there, is whole and is of this engine."""
    path = result_path(folder, setting, terms)
    if not path.is_file():  # named after the label of an older trtopt
        path = next(path.parent.glob(f"*-{setting.key(terms)[:_KEY_DIGITS]}.json"), path)
    try:
        report = read_result(path)
    except ArtifactError:
        return None
    measured = report.points[0]
    if measured.failure is not None or measured.latency.engine.sha256 != engine.artifact.sha256:
        return None
    return point_of(folder, path, setting, terms, engine, measured), report.environment


def job_of(setting: SweepSetting, terms: SweepTerms, engine: PointEngine, data: str | None) -> BenchJob:
    """The job that measures a point."""
    return BenchJob(
        path=str((engine.folder / engine.artifact.path).absolute()),
        artifact=engine.artifact,
        batch=setting.batch,
        shapes=shapes_at(engine.onnx.inputs, engine.artifact.plan, setting.batch),
        data=data,
        sample_axes=sample_axes(engine.onnx.inputs),
        contract=with_streams(terms.contract, setting.streams),
        warmup_s=terms.warmup_s,
        duration_s=terms.duration_s,
        layers=False,
        memory=terms.backend.name != ONNXRUNTIME,
    )


def measured_point(
    folder: Path, setting: SweepSetting, terms: SweepTerms, engine: PointEngine, result: Benched
) -> tuple[SweepPoint, Environment]:
    """What the job of a point has come to. Only a point that went through leaves a result file."""
    measured = result.point
    if not measured.latency.samples.start_ms:
        raise DeviceError(
            f"all {measured.latency.discarded} samples of its latency pass were discarded: "
            f"{'; '.join(measured.latency.untrustworthy)}",
            "sweep again when nothing slows the device down",
        )
    path = result_path(folder, setting, terms)
    if measured.failure is None:
        report = BenchReport(
            created=now(),
            argv=command_line(),
            environment=result.environment,
            model_sha256=engine.onnx.sha256,
            source_sha256=terms.model_sha256,
            points=(measured,),
        )
        write_atomically(path, to_json(report, indent=None))
    return point_of(folder, path, setting, terms, engine, measured), result.environment


def point_of(
    folder: Path,
    path: Path,
    setting: SweepSetting,
    terms: SweepTerms,
    engine: PointEngine,
    measured: BenchPoint,
) -> SweepPoint:
    """A point's figures, drawn from its passes."""
    artifact, build = engine.artifact, engine.folder.relative_to(folder).as_posix()
    doubts = doubts_of(measured, on_host=terms.device.kind == "cpu")
    rated = measured.throughput or measured.latency
    rates: dict[str, Any] = {}
    if rated.samples.start_ms and (measured.throughput is not None or measured.failure is None):
        rate = throughput(rated.samples, setting.batch)
        rates = {"samples_per_s": rate.samples_per_s, "queries_per_s": rate.queries_per_s}
        rates |= {"busy_latency": spread_of(rated.samples), "power": mean_power(rated)}
    return SweepPoint(
        key=setting.key(terms),
        setting=setting,
        shapes=measured.latency.shapes,
        build=build,
        engine=EngineRef(path=f"{build}/{artifact.path}", sha256=artifact.sha256, label=artifact.plan.label),
        engine_bytes=artifact.size_bytes,
        build_seconds=artifact.build_seconds,
        result=path.relative_to(folder).as_posix() if measured.failure is None else None,
        queries=len(measured.latency.samples.start_ms),
        latency=spread_of(measured.latency.samples),
        memory=memory_of(measured.memory) if measured.memory is not None else None,
        untrustworthy=tuple(doubt.text for doubt in doubts if doubt.trust is Trust.NONE),
        unsteady=tuple(doubt.text for doubt in doubts if doubt.trust is Trust.UNSTEADY),
        failure=measured.failure,
        **rates,
    )


def spread_of(samples: Samples) -> Spread:
    """How the latencies of a pass are spread."""
    summary = summarise(samples.latency_ms)
    p50, p90, p99 = (summary.percentiles[p] for p in (50.0, 90.0, 99.0))
    return Spread(p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=summary.maximum)


def memory_of(memory: MemoryPass) -> PointMemory:
    """What one context took, buffers included, and what one more would take."""
    return PointMemory(
        peak_bytes=memory.peak_bytes + memory.buffers_bytes,
        buffers_bytes=memory.buffers_bytes,
        context_bytes=max(memory.context_bytes, default=None),
    )
