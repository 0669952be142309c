"""What a plan is made of, validated before anything is served: arrivals, lengths, measured engines."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtopt.errors import ArtifactError, UsageError, WrongPathError
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.files.manifests import read_manifest
from trtopt.measure.analysis.findings import doubts_of
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.measure.statistics.summaries import throughput
from trtopt.records import BenchPoint, EngineArtifact, Environment, Shape, Trust
from trtopt.serving.load_folder import BENCH_FILE
from trtopt.serving.planning.setups import Curve, EngineMemory, MeasuredEngine
from trtopt.serving.planning.simulation import Process, Recorded, parse_process, parse_recorded
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.sweep.folder import REPORT, read_sweep


def read_arrivals(text: str) -> tuple[Process, str | None]:
    """A process by its name, or from a file of arrivals, with its hash."""
    path = Path(text)
    if not path.is_file():
        return parse_process(text), None
    try:
        content = read_bounded(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read as arrivals: {reason_of(error)}", "give another file"
        ) from None
    recorded = parse_recorded(content.decode(errors="replace"), text)
    return recorded, hashlib.sha256(content).hexdigest()


def shares_of(measured: Measured, process: Process, lengths: Mapping[int, float]) -> dict[int, float]:
    """The share of requests by length; a model without lengths has the one length 0."""
    has_lengths = set(measured.buckets) != {0}
    recorded = process.lengths if isinstance(process, Recorded) else ()
    has_given = bool(lengths) or bool(recorded)
    if has_lengths and not has_given:
        raise UsageError(
            f"the sweep has lengths {', '.join(map(str, sorted(measured.buckets)))}, and the lengths of "
            "requests are unknown",
            "give them as --lengths 128:0.7,384:0.3, or in a file of arrivals with a length for each",
        )
    if not has_lengths and has_given:
        raise UsageError(
            "requests have lengths, and the sweep has none", "sweep with --axis, or omit the lengths"
        )
    longest, swept = max(recorded or lengths, default=0), sorted(measured.buckets)
    if has_lengths and longest > swept[-1]:
        raise UsageError(
            f"length {longest} is longer than any that was swept ({swept[-1]})",
            f"sweep with --axis {measured.axis}={','.join(map(str, (*swept, longest)))}, "
            "or plan without requests that are so long",
        )
    return dict(lengths) if has_lengths else {0: 1.0}


_SOURCES = (
    "give a folder of `trtopt sweep`, or a build folder with a result of `trtopt bench --json` as bench.json"
)


@dataclass(frozen=True)
class Measured:
    """All engines of the sources, by hash where they lie, and what else a plan is to say of them.

    `axis` is what was swept besides the batch.
    """

    engines: tuple[MeasuredEngine, ...]
    artifacts: dict[str, EngineArtifact]
    folders: dict[str, Path]
    buckets: dict[int, dict[str, Shape]]
    axis: str | None
    environment: Environment
    model_sha256: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Point:
    """One point of one source; `precision` is None where only the graph knows."""

    folder: Path
    artifact: EngineArtifact
    point: BenchPoint
    environment: Environment
    model_sha256: str
    precision: str | None = None
    axis: str | None = None
    length: int = 0

    @property
    def origin(self) -> tuple[object, ...]:
        """What all points of a plan share."""
        here = self.environment
        return self.model_sha256, here.device.name, here.cpu, here.backend


def read_measured(sources: Sequence[Path]) -> Measured:
    """Read sweeps, and build folders with a result of `trtopt bench` as `bench.json`."""
    points = [point for source in sources for point in _points(source)]
    if not points:
        raise UsageError(
            f"{', '.join(map(str, sources))}: nothing has been measured there",
            "sweep again, and see what failed",
        )
    first = points[0]
    for point in points:
        if point.origin != first.origin:
            raise UsageError(
                f"{point.folder} and {first.folder} differ in model, machine or backend",
                "plan with what was measured of one model on one machine",
            )
    families = {point.artifact.plan.onnx_sha256: point.precision for point in points if point.precision}
    by_engine: dict[str, list[_Point]] = defaultdict(list)
    for point in points:
        by_engine[point.artifact.sha256].append(point)
    return Measured(
        engines=tuple(_engine(group, families) for group in by_engine.values()),
        artifacts={sha256: group[0].artifact for sha256, group in by_engine.items()},
        folders={sha256: group[0].folder for sha256, group in by_engine.items()},
        buckets={
            point.length: {name: shape[1:] for name, shape in point.point.latency.shapes.items()}
            for point in points
        },
        axis=next((point.axis for point in points if point.axis is not None), None),
        environment=first.environment,
        model_sha256=first.model_sha256,
        notes=_notes(points),
    )


def _points(source: Path) -> Iterator[_Point]:
    if (source / REPORT).is_file():
        yield from _of_sweep(source)
        return
    if not source.is_dir():
        raise WrongPathError(f"{source}: is not a folder", _SOURCES)
    file = source / BENCH_FILE
    measuring = f"trtopt bench {shlex.quote(str(source))} --json {shlex.quote(str(file))}"
    if not file.is_file():
        raise WrongPathError(
            f"{source}: holds no {BENCH_FILE}, a result of trtopt bench",
            f"measure its engines: {measuring}; or give a folder that `trtopt sweep` made",
        )
    manifest, report = read_manifest(source), read_result(file, _SOURCES)
    engines = {engine.sha256: engine for engine in manifest.engines}
    for point in report.points:
        artifact = engines.get(point.latency.engine.sha256)
        if artifact is None and report.environment.backend.name != manifest.engines[0].plan.backend.name:
            raise ArtifactError(
                f"{file}: was measured with {report.environment.backend.name}, not with the engines of "
                f"{source} ({manifest.engines[0].plan.backend.name})",
                "measure them on a machine with their GPU; to plan for this CPU, build with "
                "--backend onnxruntime: trtopt build --help",
            )
        if artifact is None:
            raise ArtifactError(
                f"{file}: batch {point.batch} is of another engine than the folder holds",
                f"measure again: {measuring}",
            )
        if point.failure is None:
            yield _Point(source, artifact, point, report.environment, manifest.source_sha256)


def _of_sweep(source: Path) -> Iterator[_Point]:
    sweep = read_sweep(source)
    for point in sweep.measured:
        if point.result is None or point.build is None or point.engine is None:
            continue
        if len(point.setting.axes) > 1:
            raise UsageError(
                f"{source}: sweeps {', '.join(sorted(point.setting.axes))} besides the batch",
                "plan with a sweep over one axis",
            )
        report = read_result(source / point.result, _SOURCES)
        folder, sha256 = source / point.build, point.engine.sha256
        artifact = next((one for one in read_manifest(folder).engines if one.sha256 == sha256), None)
        if artifact is None or report.points[0].latency.engine.sha256 != sha256:
            raise ArtifactError(
                f"{source}: {point.label} was measured on another engine than {folder} has (hashes differ)",
                "sweep again into another folder",
            )
        yield _Point(
            folder,
            artifact,
            report.points[0],
            report.environment,
            sweep.model_sha256,
            point.setting.precision or "model",
            next(iter(point.setting.axes), None),
            next(iter(point.setting.axes.values()), 0),
        )


def _engine(points: Sequence[_Point], families: Mapping[str, str]) -> MeasuredEngine:
    artifact = points[0].artifact
    family = families.get(artifact.plan.onnx_sha256) or points[0].folder.name
    lengths = sorted({point.length for point in points})
    at_length = f" length {lengths[0]}" if lengths != [0] and len(lengths) == 1 else ""
    memory = [
        EngineMemory(
            one.peak_bytes + one.buffers_bytes, max(one.context_bytes, default=0) + one.buffers_bytes
        )
        for point in points
        if (one := point.point.memory) is not None
    ]
    return MeasuredEngine(
        name=f"{family} {artifact.plan.label}{at_length}",
        sha256=artifact.sha256,
        family=family,
        curves={
            length: _curves(artifact, [point.point for point in points if point.length == length])
            for length in lengths
        },
        memory=max(memory, key=lambda one: one.first_bytes, default=None),
    )


def _curves(artifact: EngineArtifact, points: Sequence[BenchPoint]) -> tuple[Curve, ...]:
    """One for each optimisation profile that was measured, where it is the one to run."""
    spans = [
        (low, high, [point for point in points if low <= point.batch <= high])
        for low, high, _ in artifact.plan.spans
    ]
    return tuple(Curve(low, high, _levels(here)) for low, high, here in spans if here)


def _levels(points: Sequence[BenchPoint]) -> dict[int, dict[int, list[float]]]:
    """Latencies alone as measured; among several streams scaled by how much longer a query took there."""
    levels: dict[int, dict[int, list[float]]] = {1: {}}
    for point in points:
        levels[1][point.batch] = point.latency.samples.latency_ms
    for point in points:
        several, one = point.throughput, point.single_stream
        if several is None or one is None or several.contract.streams < 2:
            continue
        streams = several.contract.streams
        rates = [throughput(run.samples, point.batch).queries_per_s for run in (one, several)]
        slower = max(1.0, streams * rates[0] / rates[1])
        levels.setdefault(streams, {})[point.batch] = [ms * slower for ms in levels[1][point.batch]]
    return levels


def _notes(points: Sequence[_Point]) -> tuple[str, ...]:
    worst = [
        (point, doubts[0]) for point in points if (doubts := doubts_of(point.point, point.environment.device))
    ]
    notes = []
    for trust, word in ((Trust.NONE, "not trustworthy"), (Trust.UNSTEADY, "unsteady")):
        doubted = [(point, doubt.text) for point, doubt in worst if doubt.trust is trust]
        if doubted:
            named, why = doubted[0]
            notes.append(f"{len(doubted)} measurements are {word} ({named.artifact.path}: {why})")
    latencies = [(one, one.point.latency.samples.latency_ms) for one in points]
    unsure = [
        one
        for one, ms in latencies
        if not ms or percentile_interval(ms, 99.0).relative_half_width == math.inf
    ]
    if unsure:
        named = max(unsure, key=lambda one: one.point.latency.samples.wall_ms)
        notes.append(
            f"{len(unsure)} of {len(points)} measurements are too short for their slow spells "
            f"({named.artifact.path}, batch {named.point.batch}: the 95 % interval of p99 is open after "
            f"{named.point.latency.samples.wall_ms / 1e3:.1f} s): measure with a longer --duration"
        )
    return tuple(notes)
