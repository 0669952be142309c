"""The engines of a path, a manifest's or external ones, and the batch sizes at which they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.builder.shapes import over_all
from trtopt.device.backends import BackendChoice, choose_for_running, open_builder
from trtopt.errors import ArtifactError, UsageError
from trtopt.executors.api import run_job
from trtopt.files.atomic import scratch_folder
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.formats import ENGINE, format_of
from trtopt.files.manifests import MANIFEST, check_plugins, is_library, plugin_libraries, read_manifest
from trtopt.measure.engine import DescribeJob, EngineDescription, LoadedEngine
from trtopt.recipe import ANY_SIZES, Recipe, batch_sizes
from trtopt.records import BuildPlan, BuildSettings, EngineArtifact, Manifest, Profile, ShapeRange, TensorSpec
from trtopt.records.tensors import TypedTensor
from trtopt.requests.measure import BenchRequest, CompareRequest, ExplainRequest, ProfileRequest
from trtopt.requests.models import CheckRequest
from trtopt.workflows.build.build import build_recipe
from trtopt.workflows.build.folder import as_it_is, verified_graphs
from trtopt.workflows.race import engine_at
from trtopt.workflows.workbench import Workbench

_ANY_ENGINE = "a folder that `trtopt build` made, an engine in one, or an ONNX file"


@dataclass(frozen=True)
class ResolvedEngines:
    """Engines to measure, of `folder`. `inputs` are those of their model, which leaves the batch open.

    The model of an external engine is unknown: `inputs` are its own, the hash is "".
    """

    folder: Path
    inputs: tuple[TensorSpec, ...]
    model_sha256: str
    engines: tuple[LoadedEngine, ...]
    source_sha256: str = ""
    """Of the file that the user gave, from which the model may have been made."""
    io: tuple[TypedTensor, ...] = ()
    """What was typed of that file's inputs and outputs."""


def engines_at(
    folder: Path,
    inputs: Sequence[TensorSpec],
    engines: Sequence[EngineArtifact],
    batch: Sequence[int] | None = None,
    sizes: Recipe = ANY_SIZES,
) -> tuple[LoadedEngine, ...]:
    """Engines of a folder at the batch sizes at which each is measured, see `points`."""
    chosen = points(engines, batch)
    return tuple(engine_at(folder, inputs, engine, size, sizes) for engine, size in chosen)


RunRequest = BenchRequest | CheckRequest | CompareRequest | ExplainRequest | ProfileRequest


@contextmanager
def resolve_engines(path: Path, request: RunRequest, notes: list[str]) -> Iterator[ResolvedEngines]:
    """The engines of `path`; temporary ones are built of an ONNX file, or for another backend.

    Engines that the request trusts, by their own name or by path, are described by their present hash, with
    which they are loaded.
    """
    batch, backend, trust = batch_sizes(request.batch), request.backend, request.trust

    def of_build(folder: Path, manifest: Manifest, engines: Sequence[EngineArtifact]) -> ResolvedEngines:
        model, source = manifest.onnx, manifest.source_sha256
        loaded = engines_at(folder, model.inputs, engines, batch, request.sizes)
        return ResolvedEngines(folder, model.inputs, model.sha256, loaded, source, manifest.io)

    if is_external(path, trust):
        choice = _choose((), backend)
        notes.append(
            f"{path.name}: no manifest describes it, loaded because of --trust; "
            f"loaded with {choice.name}: {choice.reason}",
        )
        engine, _ = external_engine(path, choice.name)
        loaded = engines_at(path.parent, engine.inputs, (engine,), batch, request.sizes)
        yield ResolvedEngines(path.parent, engine.inputs, "", loaded)
        return
    folder, manifest, engines = find_engines(path)
    engines = _trust(folder, engines, trust, notes)
    choice = _choose(engines, backend)
    if manifest is None or not engines:
        notes.append(f"engines are built for this measurement only, with {choice.name}: {choice.reason}")
        with scratch_folder() as scratch:
            folder = scratch / "build"
            recipe = msgspec.structs.replace(request.sizes, batch=batch or None, backend=choice.name)
            manifest = build_recipe(path, folder, recipe, listener=request.listener)
            yield of_build(folder, manifest, manifest.engines)
        return
    own = engines[0].plan.backend.name
    if choice.name == own:
        check_plugins(engines, trust)
        yield of_build(folder, manifest, engines)
        return
    plans = {engine.plan.label: engine.plan for engine, _ in points(engines, batch)}
    workbench = Workbench(builder=open_builder(choice.name), listener=request.listener)
    measured = f"their model is, with {workbench.builder.backend}"
    notes.append(f"the engines (of {own}) are not run, {measured}: {choice.reason}")
    graphs = verified_graphs(folder, manifest)
    with scratch_folder() as scratch:
        rebuilt = workbench.build_again(graphs, [*plans.values()], scratch)
        yield of_build(scratch, manifest, rebuilt)


def runs_on(path: Path, backend: str | None, trust: Sequence[str] = ()) -> str:
    """The backend of the engines that `resolve_engines` yields."""
    engines = () if is_external(path, trust) else find_engines(path)[2]
    return _choose(engines, backend).name


def check_own_run(path: Path, backend: str | None, trust: Sequence[str] = ()) -> None:
    """Refuse a build in whose engines' place others would be judged here, unless their backend is named."""
    if backend not in (None, "auto") or is_external(path, trust):
        return
    engines, here = find_engines(path)[2], runs_on(path, backend)
    if engines and (own := engines[0].plan.backend.name) != here:
        raise UsageError(
            f"{path}: its engines, of {own}, cannot run here, and {here} would be judged in their place",
            f"run it where they run, with --backend {own}; or judge the model on {here}: --backend {here}",
        )


def check_trust(names: Sequence[str], paths: Sequence[Path]) -> None:
    """Validate `--trust` before anything is built: it names engines or plugins of `paths`."""
    there: list[Path] = []
    libraries: set[str] = set()
    for path in paths if names else ():
        folder, engines = path.parent, tuple[EngineArtifact, ...]()
        if not is_external(path, names):
            folder, _, engines = find_engines(path)
        there += [folder / engine.path for engine in engines] or [path]
        libraries |= plugin_libraries(engines)
    for name in names:
        is_plugin = any(is_library(name, library) for library in libraries)
        if not is_plugin and not any(_is_named(engine, [name]) for engine in there):
            choices = ", ".join(sorted({engine.name for engine in there})) or "those of a build folder"
            raise UsageError(
                f"--trust {name}: no engine of {' or '.join(str(path) for path in paths)}",
                f"name one of {choices}, or give the path of an engine in its build folder",
            )


def _is_named(engine: Path, names: Sequence[str]) -> bool:
    """Whether one of the names is its own, or its path."""
    return engine.name in names or engine.resolve() in {Path(name).resolve() for name in names}


def find_engines(path: Path) -> tuple[Path, Manifest | None, tuple[EngineArtifact, ...]]:
    """The folder that `path` is or lies in, its manifest, and the selected engines."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", "give a build folder, an engine or an ONNX file")
    other = format_of(path) if path.is_file() and path.suffix != ".onnx" else None
    if other is not None and other != ENGINE:
        raise UsageError(
            f"{path}: is {other.what}, not an engine or a model",
            other.remedy_for(
                path, f"give {_ANY_ENGINE}; arrays with --data, and files of results to trtopt compare"
            ),
        )
    folder = path if path.is_dir() else path.parent
    has_manifest = (folder / MANIFEST).is_file()
    manifest = read_manifest(folder) if path.is_dir() or has_manifest else None
    engines = manifest.engines if manifest is not None else ()
    if not path.is_dir():
        listed, engines = engines, tuple(engine for engine in engines if engine.path == path.name)
        if not engines and path.suffix != ".onnx":
            choices = f"one of {', '.join(engine.path for engine in listed)}" if listed else _ANY_ENGINE
            raise ArtifactError(
                f"{path}: no manifest lists this file; an engine is native code and was not loaded",
                f"give {choices}; if you trust this one, bench, check and compare load it with "
                f"--trust {path}",
            )
    return folder, manifest, engines


def _trust(
    folder: Path, engines: Sequence[EngineArtifact], names: Sequence[str], notes: list[str]
) -> tuple[EngineArtifact, ...]:
    """The engines, those of `names` as they are now; names may be those of other folders' engines."""
    found = []
    for engine in engines:
        now = as_it_is(folder, engine) if _is_named(folder / engine.path, names) else engine
        if now.sha256 != engine.sha256:
            notes.append(f"{engine.path} has changed since the build: loaded because of --trust")
        found.append(now)
    return tuple(found)


def _choose(engines: Sequence[EngineArtifact], backend: str | None) -> BackendChoice:
    own = engines[0].plan.backend.name if engines else None
    return choose_for_running(backend, own)


def is_model(path: Path) -> bool:
    """Whether a path is an ONNX file and no engine of ONNX Runtime's, which looks like one."""
    return path.suffix == ".onnx" and not (path.parent / MANIFEST).is_file()


def is_external(path: Path, trust: Sequence[str]) -> bool:
    """Whether `trust` names the file `path`, by its own name or by path, and no manifest describes it.

    An ONNX file is a model, which is built, and needs no trust.
    """
    if path.suffix == ".onnx" or not path.is_file() or not _is_named(path, trust):
        return False
    beside = read_manifest(path.parent).engines if (path.parent / MANIFEST).is_file() else ()
    return not any(engine.path == path.name for engine in beside)


def external_engine(
    path: Path, backend: str, *, with_layers: bool = False
) -> tuple[EngineArtifact, EngineDescription]:
    """The engine as a worker process that loads it with `backend` finds it."""
    sha256 = sha256_of(path)
    job = DescribeJob(path=str(path.absolute()), sha256=sha256, backend=backend, with_layers=with_layers)
    described = run_job(job)
    artifact = EngineArtifact(
        path=path.name,
        sha256=sha256,
        size_bytes=path.stat().st_size,
        plan=plan_of(path, described),
        inputs=described.inputs,
        outputs=described.outputs,
        device=described.device,
        build_seconds=0.0,
        builder_config={},
        log="",
        warnings=0,
        notes=("no manifest describes it: trusted by name",),
    )
    return artifact, described


def plan_of(path: Path, described: EngineDescription) -> BuildPlan:
    """The plan of the engine at `path`, from its own shapes. Its model and settings are unknown."""
    ranges = described.profiles or ({spec.name: _only_shape(path, spec) for spec in described.inputs},)
    profiles = tuple(
        Profile(batch=_batch(described.inputs, shapes), shapes=dict(shapes)) for shapes in ranges
    )
    whole = over_all(profiles)
    return BuildPlan(
        onnx_sha256="",
        batch=whole.batch,
        shapes=whole.shapes,
        settings=BuildSettings(),
        backend=described.backend,
        multi_profile=profiles if len(profiles) > 1 else (),
    )


def _only_shape(path: Path, spec: TensorSpec) -> ShapeRange:
    shape = tuple(axis for axis in spec.shape if isinstance(axis, int))
    if len(shape) < len(spec.shape):
        raise ArtifactError(
            f"{path}: leaves an axis of input {spec.name!r} open, and its sizes are unknown",
            "measure it in the folder that `trtopt build` made",
        )
    return ShapeRange(min=shape, opt=shape, max=shape)


def _batch(inputs: Sequence[TensorSpec], shapes: dict[str, ShapeRange]) -> ShapeRange:
    """Axis 0 of the first input that leaves it open; of the first that has axes, where all are fixed."""
    with_axes = [spec for spec in inputs if spec.shape]
    leading = [spec for spec in with_axes if isinstance(spec.shape[0], str)] or with_axes
    if not leading:
        return ShapeRange(min=(1,), opt=(1,), max=(1,))
    own = shapes[leading[0].name]
    return ShapeRange(min=own.min[:1], opt=own.opt[:1], max=own.max[:1])


def points(
    engines: Sequence[EngineArtifact], batch: Sequence[int] | None
) -> list[tuple[EngineArtifact, int]]:
    """Which engine is measured at which batch size.

    Dynamic engines stand for the smallest and largest batch of each profile, and what it is tuned for.
    """
    if batch is None:
        sizes = {(index, size) for index, engine in enumerate(engines) for size in _telling(engine.plan)}
        return [(engines[index], size) for index, size in sorted(sizes)]
    return [(_engine_for(engines, size), size) for size in sorted(set(batch))]


def _telling(plan: BuildPlan) -> Iterator[int]:
    """Where each profile begins and ends to be used, and what it is tuned for."""
    yield from (size for span in plan.spans for size in (span.low, span.high))
    yield from (profile.batch.opt[0] for profile in plan.profiles)


def _engine_for(engines: Sequence[EngineArtifact], size: int) -> EngineArtifact:
    """The engine that is tuned closest to a batch size, among those that admit it."""
    spans = [(engine, engine.plan.span_of(size)) for engine in engines]
    fitting = [(engine, engine.plan.profiles[span.profile]) for engine, span in spans if span is not None]
    if not fitting:
        there = ", ".join(engine.plan.label for engine in engines)
        raise UsageError(
            f"--batch {size}: no engine here takes it (there are: {there})",
            f"choose among those, or build one: trtopt build MODEL.onnx -o FOLDER --batch {size}",
        )
    return min(fitting, key=lambda one: abs(one[1].batch.opt[0] - size))[0]
