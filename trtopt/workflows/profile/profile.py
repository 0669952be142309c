"""From a build folder, an engine or an ONNX file to a profile of its engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec

from trtopt.device.nvtx import require_nvtx
from trtopt.errors import UsageError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import read_manifest
from trtopt.inspect.graph import read_graph
from trtopt.inspect.inspector import description_of
from trtopt.inspect.profile import profile_point
from trtopt.onnxio.model_file import load
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import batch_sizes
from trtopt.records import BenchReport, DevicePeaks, EngineArtifact, Manifest, ProfileReport, read_versioned
from trtopt.records.profile import check_profile
from trtopt.requests.measure import ProfileRequest
from trtopt.requests.shared import BackendName
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.bench.bench import bench
from trtopt.workflows.bench.resolve_engines import find_engines, is_external, resolve_engines
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.profile.peaks import known_peaks, probe_peaks
from trtopt.workflows.provenance import check_engines, check_model, command_line, now

PROFILE_FILE = "profile.json"
TRACE_FILE = "trace.json"


def check_request(request: ProfileRequest) -> None:
    """Validate what no engine is needed for."""
    if request.nvtx:
        require_nvtx()  # later its absence would be taken for that of a GPU
    if request.result is not None:
        request.refuse_all_but({"path", "batch", "result"}, "with --result, which measures nothing")


def profile(request: ProfileRequest) -> ProfileReport:
    """Time every layer, and join the times with the inspector's layers and the ONNX file's nodes.

    Returns:
        The profile, one part per engine and batch size: layers, fusions, precisions and floors.

    Example:
        >>> report = trtopt.profile("engines", batch=8, duration=0.1)
        >>> layers = report.to_dict()["engines"][0]["layers"]
        >>> len(layers) > 0
        True
    """
    check_request(request)
    given = None if request.result is None else read_result(Path(request.result))
    notes: list[str] = []
    with _subject(request, notes) as (subject, model, manifest):
        named = () if manifest is None or subject.is_dir() else manifest.engines
        engine = next((one for one in named if one.path == subject.name), None)
        if given is None:  # on what engines were built with: another backend has layers of its own
            own = None if manifest is None else manifest.engines[0].plan.backend.name
            backend = request.backend or cast(BackendName | None, own)
            report = bench(replace(request.measurement, path=subject, backend=backend))
        else:
            result = Path(str(request.result))
            remedy = (
                "give the folder or model that was measured, or measure again with `trtopt bench --layers`"
            )
            check_model(given.model_sha256, read_onnx(model).sha256, result, str(model), remedy)
            if manifest is not None:
                check_engines(given, manifest, result, model.parent, remedy)
            report = _choose_points(given, engine, batch_sizes(request.batch), result)
        peaks = _peaks_for(report, manifest, request, notes)
        made = _profile_points(report, model, manifest, peaks)
    return msgspec.structs.replace(made, notes=(*notes, *made.notes))


@contextmanager
def _subject(request: ProfileRequest, notes: list[str]) -> Iterator[tuple[Path, Path, Manifest | None]]:
    """What to measure, the ONNX file that it was made of, and the manifest; an ONNX file is built first.

    Of a build the first graph, which the manifest vouches for as for all of them.
    """
    path = Path(request.path)
    if is_external(path, request.trust):
        raise UsageError(
            f"{path}: no manifest names its model, and a profile is about the model's nodes",
            "time its layers with `trtopt bench --layers`, or give a folder that `trtopt build` made",
        )
    folder, manifest, engines = find_engines(path)
    if manifest is not None and engines:
        yield path, Path(verified_graphs(folder, manifest)[0].path), manifest
    elif request.result is not None:
        yield path, path, manifest
    else:
        with resolve_engines(path, request, notes) as found:
            manifest = read_manifest(found.folder)
            yield found.folder, Path(verified_graphs(found.folder, manifest)[0].path), manifest


def _choose_points(
    report: BenchReport, engine: EngineArtifact | None, batch: Sequence[int] | None, result: Path
) -> BenchReport:
    """The measurements of the engine, at the requested batch sizes."""
    label = None if engine is None else engine.plan.label
    points = [point for point in report.points if label in (None, point.latency.engine.label)]
    measured = sorted({point.batch for point in points})
    lost = [f"batch {size}" for size in batch or () if size not in measured]
    if lost or not points:
        raise UsageError(
            f"{result}: has no measurement of {', '.join(lost) or label}",
            f"choose among batch {', '.join(map(str, measured))}" if measured else "give the engines' folder",
        )
    chosen = tuple(point for point in points if batch is None or point.batch in batch)
    return msgspec.structs.replace(report, points=chosen)


def _peaks_for(
    report: BenchReport,
    manifest: Manifest | None,
    request: ProfileRequest,
    notes: list[str],
) -> DevicePeaks | None:
    """The peaks of the device that was measured on, probed if asked with the tactics that its engines use."""
    device, backend = report.environment.device, report.environment.backend
    if not request.probe_peaks:
        return known_peaks(device)
    plan = manifest.engines[0].plan if manifest is not None else None
    sources = plan.settings.tactic_sources if plan is not None and plan.backend == backend else None
    peaks, probe_notes = probe_peaks(device, backend, sources, request.timeout, request.listener)
    notes += probe_notes
    return peaks


def _profile_points(
    report: BenchReport, model: Path, manifest: Manifest | None, peaks: DevicePeaks | None
) -> ProfileReport:
    environment = report.environment
    graphs: dict[str, Path] = {}
    if manifest is not None:  # engines of one folder may be made of several
        named = ((engine.plan.label, manifest.graph_of(engine).path) for engine in manifest.engines)
        graphs = {label: model.with_name(Path(path).name) for label, path in named}
    read = lru_cache(lambda path: load(path).proto)
    missing: list[str] = []
    if peaks is None:
        missing.append(
            f"no floors: the peak rates of {environment.device.name} are not known; "
            "--probe-peaks measures them"
        )
    engines = []
    for point in report.points:
        graph = read(graphs.get(point.latency.engine.label, model))
        engines.append(
            profile_point(
                point,
                description_of(point, missing),
                read_graph(graph, point.latency.shapes),
                peaks,
                by_tensors=environment.backend.name == ONNXRUNTIME,
                weakly_typed=target_of(environment.backend).weakly_typed,
            )
        )
    return ProfileReport(
        created=now(),
        argv=command_line(),
        environment=environment,
        model_sha256=report.model_sha256,
        peaks=peaks,
        engines=tuple(engines),
        missing=tuple(dict.fromkeys(missing)),
        notes=(
            *report.notes,
            *(
                f"batch {point.batch}: {note}"
                for point in report.points
                if point.layers is not None
                for note in point.layers.notes
            ),
        ),
    )


def read_profile(path: Path) -> ProfileReport:
    """A result file of `trtopt profile`, or the folder that it lies in."""
    file = path / PROFILE_FILE if path.is_dir() else path
    remedy = "give what `trtopt profile -o` wrote; its --result takes what `trtopt bench --layers` measured"
    with reading_as("a profile", file, remedy):
        report = read_versioned(read_bounded(file), ProfileReport)
        check_profile(report)
    return report
