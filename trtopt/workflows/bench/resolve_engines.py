"""The engines of a path, a manifest's or external ones, and the batch sizes at which they are measured."""

from __future__ import annotations

import shlex
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
from trtopt.files.manifests import MANIFEST, check_plugins, is_library, plugin_libraries, read_manifest
from trtopt.measure.engine import Described, DescribeJob
from trtopt.recipe import Recipe
from trtopt.records import BuildPlan, BuildSettings, EngineArtifact, Manifest, Profile, ShapeRange, TensorSpec
from trtopt.records.tensors import TypedTensor
from trtopt.workflows.build.build import build
from trtopt.workflows.build.folder import as_it_is, verified_graphs
from trtopt.workflows.listener import Listener
from trtopt.workflows.workbench import Workbench

_ANY_SIZES = Recipe()
_WEIGHTS = (
    "is a file of weights",
    "write its model as ONNX with trtopt export, which takes it as --checkpoint {}",
)
_OTHER_FILES = {
    ".npz": ("holds arrays", "give the model or the build folder, and the arrays with --data {}"),
    ".npy": ("holds an array", "give the model or the build folder, and arrays in an .npz with --data"),
    ".json": ("is JSON", "give the build folder; result files are read by trtopt compare"),
    ".pt": _WEIGHTS,
    ".pth": _WEIGHTS,
    ".safetensors": _WEIGHTS,
}
"""By their suffix: files that are taken for an engine by mistake, and what to do with each."""


@dataclass(frozen=True)
class ResolvedEngines:
    """Engines to measure, in `folder`. `inputs` are those of their model, which leaves the batch open.

    The model of an external engine is unknown: `inputs` are its own, the hash is "".
    """

    folder: Path
    inputs: tuple[TensorSpec, ...]
    model_sha256: str
    engines: tuple[EngineArtifact, ...]
    source_sha256: str = ""
    """Of the file that the user gave, from which the model may have been made."""
    io: tuple[TypedTensor, ...] = ()
    """What was typed of that file's inputs and outputs."""


def engines_of_build(folder: Path, manifest: Manifest, engines: Sequence[EngineArtifact]) -> ResolvedEngines:
    """Engines whose manifest names the model."""
    model = manifest.onnx
    source = manifest.source_sha256
    return ResolvedEngines(folder, model.inputs, model.sha256, tuple(engines), source, manifest.io)


@contextmanager
def resolve_engines(
    path: Path,
    batch: Sequence[int] | None,
    backend: str | None,
    notes: list[str],
    listener: Listener,
    trust: Sequence[str] = (),
    sizes: Recipe = _ANY_SIZES,
) -> Iterator[ResolvedEngines]:
    """The engines of `path`; temporary ones are built if another backend is requested.

    The shapes and axes of `sizes` are what an ONNX file is built for.

    Engines that `trust` names, by their own name or by path, are described by their present hash, with which
    they are loaded.
    """
    if is_external(path, trust):
        choice = _choose((), backend)
        notes.append(
            f"{path.name}: no manifest describes it, loaded because of --trust; "
            f"loaded with {choice.name}: {choice.reason}",
        )
        engine = external_engine(path, choice.name)
        yield ResolvedEngines(path.parent, engine.inputs, "", (engine,))
        return
    folder, manifest, engines = find_engines(path)
    engines = _trust(folder, engines, trust, notes)
    choice = _choose(engines, backend)
    if manifest is None or not engines:
        notes.append(f"engines are built for this measurement only, with {choice.name}: {choice.reason}")
        with scratch_folder() as scratch:
            folder = scratch / "build"
            recipe = msgspec.structs.replace(
                sizes, batch=tuple(batch) if batch else None, backend=choice.name
            )
            manifest = build(path, folder, recipe, listener=listener)
            yield engines_of_build(folder, manifest, manifest.engines)
        return
    own = engines[0].plan.backend.name
    if choice.name == own:
        check_plugins(engines, trust)
        yield engines_of_build(folder, manifest, engines)
        return
    notes.append(f"the engines (of {own}) are not run: {choice.reason}")
    plans = {engine.plan.label: engine.plan for engine, _ in points(engines, batch)}
    workbench = Workbench(builder=open_builder(choice.name), listener=listener)
    notes.append(f"the same model was built for this measurement, with {workbench.builder.backend}")
    graphs = verified_graphs(folder, manifest)
    with scratch_folder() as scratch:
        rebuilt = workbench.build_again(graphs, [*plans.values()], scratch)
        yield engines_of_build(scratch, manifest, rebuilt)


def runs_on(path: Path, backend: str | None, trust: Sequence[str] = ()) -> str:
    """The backend of the engines that `resolve_engines` yields."""
    engines = () if is_external(path, trust) else find_engines(path)[2]
    return _choose(engines, backend).name


def check_trust(names: Sequence[str], paths: Sequence[Path]) -> None:
    """Validate `--trust` before anything is built: engines, plugins of `paths`, engines by path."""
    known: dict[str, None] = {}
    libraries: set[str] = set()
    for path in paths if names else ():
        engines = () if is_external(path, names) else find_engines(path)[2]
        known |= dict.fromkeys([engine.path for engine in engines] or [path.name])
        libraries |= plugin_libraries(engines)
    there = {path.resolve() for path in paths}
    for name in names:
        if any(is_library(name, library) for library in libraries):
            continue
        if name not in known and Path(name).resolve() not in there and not _is_engine(Path(name)):
            choices = ", ".join(sorted(known)) or "those of a build folder"
            raise UsageError(
                f"--trust {name}: no engine of {' or '.join(str(path) for path in paths)}",
                f"name one of {choices}, or give the path of an engine in its build folder",
            )


def find_engines(path: Path) -> tuple[Path, Manifest | None, tuple[EngineArtifact, ...]]:
    """The folder that `path` is or lies in, its manifest, and the selected engines."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", "give a build folder, an engine or an ONNX file")
    if path.suffix in _OTHER_FILES and not path.is_dir():
        what, remedy = _OTHER_FILES[path.suffix]
        raise UsageError(f"{path}: {what}, not an engine or a model", remedy.format(shlex.quote(str(path))))
    folder = path if path.is_dir() else path.parent
    has_manifest = (folder / MANIFEST).is_file()
    manifest = read_manifest(folder) if path.is_dir() or has_manifest else None
    engines = () if manifest is None else _select_listed(manifest, path)
    if not engines and path.suffix != ".onnx":
        raise ArtifactError(
            f"{path}: no manifest lists this file; an engine is native code and was not loaded",
            f"give a folder that `trtopt build` made, an engine in one, or an ONNX file; {_vouching(path)}",
        )
    return folder, manifest, engines


def _trust(
    folder: Path, engines: Sequence[EngineArtifact], names: Sequence[str], notes: list[str]
) -> tuple[EngineArtifact, ...]:
    """The engines, those of `names` as they are now; names may be those of other folders' engines."""
    own = {engine.path for engine in engines}
    named = {Path(name).resolve() for name in names} | {(folder / name).resolve() for name in {*names} & own}
    found = []
    for engine in engines:
        now = as_it_is(folder, engine) if (folder / engine.path).resolve() in named else engine
        if now.sha256 != engine.sha256:
            notes.append(f"{engine.path} has changed since the build: loaded because of --trust")
        found.append(now)
    return tuple(found)


def _is_engine(path: Path) -> bool:
    """Whether the manifest next to it lists it, unchanged or changed."""
    try:
        return any(engine.path == path.name for engine in read_manifest(path.parent).engines)
    except ArtifactError:
        return False


def _choose(engines: Sequence[EngineArtifact], backend: str | None) -> BackendChoice:
    own = engines[0].plan.backend.name if engines else None
    return choose_for_running(backend, own)


def _select_listed(manifest: Manifest, path: Path) -> tuple[EngineArtifact, ...]:
    """The manifest's engines that `path` (a folder or a file in it) means; none for its ONNX file."""
    if path.is_dir():
        return manifest.engines
    named = tuple(engine for engine in manifest.engines if engine.path == path.name)
    if not named and path.suffix != ".onnx":
        raise ArtifactError(
            f"{path}: the manifest next to it does not list this file; it was not loaded",
            f"give one of {', '.join(engine.path for engine in manifest.engines)}; {_vouching(path)}",
        )
    return named


def _vouching(path: Path) -> str:
    return f"if you trust this one, bench, check and compare load it with --trust {path}"


def is_external(path: Path, trust: Sequence[str]) -> bool:
    """Whether `trust` names the file `path`, by its own name or by path, and no manifest describes it.

    An ONNX file is a model, which is built, and needs no trust.
    """
    if path.suffix == ".onnx" or not path.is_file():
        return False
    if path.name not in trust and path.resolve() not in {Path(name).resolve() for name in trust}:
        return False
    beside = read_manifest(path.parent).engines if (path.parent / MANIFEST).is_file() else ()
    return not any(engine.path == path.name for engine in beside)


def external_engine(path: Path, backend: str) -> EngineArtifact:
    """The engine as a worker process that loads it with `backend` finds it."""
    sha256 = sha256_of(path)
    job = DescribeJob(path=str(path.absolute()), sha256=sha256, backend=backend)
    described = run_job(job)
    return EngineArtifact(
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


def plan_of(path: Path, described: Described) -> BuildPlan:
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
