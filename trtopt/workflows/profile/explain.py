"""From two engines of one model, or their profiles, to why one is slower or faster than the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from trtopt.errors import ArtifactError, UsageError
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.inspect.explanation import differences
from trtopt.recipe import batch_sizes
from trtopt.records import Explanation, ProfileReport
from trtopt.requests.measure import ExplainRequest, ProfileRequest
from trtopt.requests.shared import parse_budget
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.bench.resolve_engines import check_trust, runs_on
from trtopt.workflows.compare.result_files import is_result_file
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.profile.profile import PROFILE_FILE, profile, read_profile
from trtopt.workflows.profile.remedies import check_chosen, has_engines, try_remedies
from trtopt.workflows.provenance import check_engines, command_line, now


def explain(request: ExplainRequest, listener: Listener = SILENT) -> Explanation:
    """Find the causes of the difference in time; see `trtopt.explain`. What was not profiled is, A first."""
    paths = [Path(one) for one in (request.a, request.b)]
    loaded = [path for path in paths if not _is_profiled(path) or (request.remedies and has_engines(path))]
    check_trust(request.trust, loaded)
    if not request.remedies and request.budget != ExplainRequest.budget:
        raise UsageError("--budget: has no effect where nothing is tried", "add --try, or omit it")
    end = time.monotonic() + parse_budget(str(request.budget))
    if request.remedies and not has_engines(paths[1]):
        raise UsageError(
            f"--try: {paths[1]} is no build folder and no engine in one, on which remedies could be built",
            "give the build folder of B; a profile.json in it is used",
        )
    if all(map(_is_profiled, paths)) and not request.remedies:
        where = "on saved profiles, which are not measured again"
        request.refuse_all_but({"a", "b", "batch"}, where)
    saved = {path: _read(path) for path in paths if _is_profiled(path)}
    a, b = (saved.get(path) or _measure(path, request, listener) for path in paths)
    _check_one_model(a, b, paths[1])
    sizes = batch_sizes(request.batch)
    chosen = ([one for one in side.engines if sizes is None or one.batch in sizes] for side in (a, b))
    found = differences(*chosen)
    if not found:
        measured = (sorted({one.batch for one in side.engines if one.sum_ms}) for side in (a, b))
        in_a, in_b = (", ".join(map(str, side)) or "none" for side in measured)
        raise ArtifactError(
            f"no batch size was timed in both: A has batch {in_a}, B batch {in_b}",
            "profile both at one batch size: trtopt profile PATH --batch N -o FOLDER",
        )
    check_chosen(request.remedies, found)
    if request.remedies:
        found = tuple(try_remedies(one, request, end, listener) for one in found)
    return Explanation(
        created=now(),
        argv=command_line(),
        a=str(request.a),
        b=str(request.b),
        device=b.environment.device.name,
        engines=found,
        notes=(*_notes(a, b, paths), *dict.fromkeys((*a.notes, *b.notes))),
    )


def _is_profiled(path: Path) -> bool:
    return is_result_file(path) or (path / PROFILE_FILE).is_file()


def _read(path: Path) -> ProfileReport:
    """A saved profile; one in a build folder must be of its engines."""
    report = read_profile(path)
    if (path / MANIFEST).is_file():
        remedy = f"remove {path / PROFILE_FILE}, or write it again: trtopt profile {path} -o {path}"
        check_engines(report, read_manifest(path), path / PROFILE_FILE, path, remedy)
    return report


def _measure(path: Path, request: ExplainRequest, listener: Listener) -> ProfileReport:
    trust = tuple(_trusted(request.trust, path))
    on_gpu = runs_on(path, request.backend, trust) != ONNXRUNTIME
    own = {"kernels": request.kernels and on_gpu, "trust": trust}
    return profile(ProfileRequest(path, **request.values_for(ProfileRequest) | own), listener)


def _trusted(names: Sequence[str], path: Path) -> Iterator[str]:
    """Those that are of this path's engines and plugins; the others are the other one's."""
    for name in names:
        with suppress(UsageError):
            check_trust([name], [path])
            yield name


def _check_one_model(a: ProfileReport, b: ProfileReport, where: Path) -> None:
    if not _nodes_of(a) & _nodes_of(b):
        problem = "is of another model" if _nodes_of(a) and _nodes_of(b) else "one of them has no layers"
        raise ArtifactError(
            f"{where}: shares no ONNX node with A: {problem}", "compare profiled engines of one model"
        )


def _nodes_of(report: ProfileReport) -> set[str]:
    return {name for engine in report.engines for layer in engine.layers for name in layer.onnx_nodes}


def _notes(a: ProfileReport, b: ProfileReport, paths: Sequence[Path]) -> Iterator[str]:
    """What speaks against the sums."""
    own, others = map(_nodes_of, (a, b))
    built = (path for path in paths if (path / MANIFEST).is_file())
    sources = {read_manifest(path).source_sha256 for path in built}
    if len(sources) > 1 or 2 * len(own & others) < min(len(own), len(others)):
        files = "are built from two ONNX files and " * (len(sources) > 1)
        shared = f"{len(own & others)} ONNX nodes of {len(own)} and {len(others)}"
        yield f"A and B {files}share {shared}: they may be of two models"
    first, second = (one.environment.device for one in (a, b))
    if first.name != second.name:
        yield f"profiled on unlike devices: A on {first.name}, B on {second.name}"
    for name, side in (("A", a), ("B", b)):
        if any(engine.kernels and engine.kernels.dropped for engine in side.engines):
            yield f"the tracer missed kernels of {name}, which sums lack: profile a smaller batch, or again"
    on_gpu = first.kind == second.kind == "gpu"
    if on_gpu and not all(engine.kernels for one in (a, b) for engine in one.engines):
        yield "by layers alone, as not both have kernels: trtopt profile --kernels records what runs inside"
