"""From an ONNX file to a folder of engines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.shapes import fixed_batch, over_all, profiles_for
from trtopt.device.backends import (
    choose_for_building,
    open_builder,
    places_to_build,
    require_builders_memory,
)
from trtopt.device.building import EngineBuilder
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import (
    ArtifactError,
    BuildError,
    InvalidModelError,
    ModelError,
    OutputError,
    TrtoptError,
    UsageError,
)
from trtopt.files.build_folder import (
    MANIFEST,
    cannot_write,
    folder_in_progress,
    is_build_folder,
    own_files,
    read_manifest,
    sha256_of,
    write_manifest,
)
from trtopt.files.replace_folder import names_of_others
from trtopt.files.signing import SIGNATURE
from trtopt.files.temporary import locked_folder
from trtopt.onnxio.external_data import external_files
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.recipe import Recipe, make_recipe, parse_shape_flag
from trtopt.records import (
    Backend,
    BuildPlan,
    BuildSettings,
    EngineArtifact,
    Manifest,
    OnnxArtifact,
    Plugin,
    RewriteSummary,
)
from trtopt.version import __version__
from trtopt.workers.protocol import Built
from trtopt.workers.supervisor import run_all_jobs
from trtopt.workflows.build.oversized_tensors import explained
from trtopt.workflows.build.rewriting import rewritten
from trtopt.workflows.build.timing_caches import NO_CACHE, store_folder
from trtopt.workflows.listener import SILENT, Listener

MODEL_FILE = "model.onnx"
TIMING_CACHE_FILE = "timing.cache"
_OWN_NAMES = {MODEL_FILE, TIMING_CACHE_FILE, MANIFEST, SIGNATURE}


def build(
    model: str | Path,
    output: str | Path | None = None,
    *,
    profile: str | None = None,
    force: bool = False,
    nvtx: bool = False,
    memory: bool = False,
    cache_dir: str | Path | None = None,
    listener: Listener = SILENT,
    **flags: Any,
) -> Manifest:
    """Build engines from an ONNX file into a folder: one for each batch size, or one dynamic engine.

    Args:
        model: the ONNX file.
        output: the folder to make; by default the model's name with `.trtopt`, in the current folder. A
            build of this model under that name is replaced once the new one is complete.
        force: replace a build of another model too.
        profile: a recipe from `profiles/` by name, or a TOML file.
        nvtx: show profilers parsing, building and describing as NVTX ranges.
        memory: follow the builder's allocations of device memory, into a file beside each engine; slows it.
        cache_dir: the store of timing caches [default: see `pipeline.caches.store_folder`].
        listener: hears progress and notes.
        flags: fields of `trtopt.recipe.Recipe`; each overrides the profile.

    Raises:
        TrtoptError: with what is wrong and what to do; nothing is left under the output's name.
    """
    from trtopt.workflows.build.engine_selection import (  # which builds with what is here
        check_request,
        select_engines,
    )

    recipe = make_recipe(profile, flags)
    onnx = read_onnx(source := Path(model))
    builder, why = _opened(recipe, nvtx=nvtx, memory=memory)
    listener.note(f"building with {builder.backend}{why}")
    check_opset(onnx, builder)
    plans = make_plans(onnx, recipe, builder.backend)  # flags are judged before anything is written
    check_request(onnx, recipe, builder.backend)
    notes = notes_on(recipe, builder, len(plans))
    target = Path(output) if output is not None else default_output(source)
    listener.notes((*notes, *_to_be_replaced(target, onnx, force)))
    with folder_in_progress(target) as folder:
        kept = keep_model(onnx, source, folder, builder.backend, listener, rewrite=recipe.rewrite)
        cache, store = caches_for(recipe, builder, folder, cache_dir)
        at = places_to_build(builder.backend.name, recipe.jobs)
        how = BuildOptions(cache, store, at, recipe.build_timeout, nvtx=nvtx, memory=memory)
        made = select_engines(kept.onnx, recipe, builder, folder, how, listener)
        manifest = Manifest(
            trtopt=__version__,
            created=now(),
            argv=command_line(),
            onnx=made.graphs[0],
            graphs=made.graphs[1:],
            intermediates=made.intermediates,
            rewrite=kept.rewrite,
            engines=made.engines,
            verdict=made.verdict,
            notes=(*notes, *kept.notes, *made.notes),
        )
        return write_manifest(folder, manifest)


def _opened(recipe: Recipe, *, nvtx: bool, memory: bool) -> tuple[EngineBuilder, str]:
    """The builder, and why it was chosen if nobody named it; refuses what it cannot do."""
    choice = choose_for_building(recipe.backend)
    if nvtx:
        require_nvtx()
    if memory:
        require_builders_memory(choice.name)
    return open_builder(choice.name), f": {choice.reason}" if recipe.backend == "auto" else ""


def _to_be_replaced(target: Path, onnx: OnnxArtifact, force: bool) -> list[str]:
    """What is said of a build that stands where the new one will.

    Raises:
        OutputError: it is of another model, or cannot be read, and `force` is not given.
    """
    try:
        with locked_folder(target.resolve().parent):  # another build may be replacing it
            if not is_build_folder(target):
                return []
            there = read_manifest(target)
        what = f"built {there.created} by trtopt {there.trtopt}"
        is_same = there.source_sha256 == onnx.sha256
    except ArtifactError as error:
        what, is_same = error.problem, False
    try:
        names = names_of_others(target, own_files(target))
    except OSError as error:  # what cannot be listed could not be kept
        raise cannot_write(target, error) from None
    told = [f"{target}: stays as it is beside the build: {', '.join(names)}"] if names else []
    if is_same:
        return [f"{target}: will be replaced; it holds this model, {what}", *told]
    if force:
        return [f"{target}: will be replaced, although it is no build of this model: {what}", *told]
    raise OutputError(
        f"{target}: holds a build, but of another model than {onnx.path} ({what})",
        "choose another name with -o, or replace it with --force",
    )


@dataclass(frozen=True)
class BuildOptions:
    """How engines are built: with which timing cache and store, and what is followed.

    One is built at a time in each of the places; see `device.backends.places_to_build`.
    """

    cache: Path | None
    store: Path | None = None
    places: tuple[str | None, ...] = (None,)
    limit_s: float | None = None
    nvtx: bool = False
    memory: bool = False


@dataclass(frozen=True)
class Kept:
    """The user's model in the build folder, and what was done to it on the way."""

    onnx: OnnxArtifact
    rewrite: RewriteSummary | None
    notes: tuple[str, ...]


def keep_model(
    onnx: OnnxArtifact, source: Path, folder: Path, backend: Backend, listener: Listener, *, rewrite: bool
) -> Kept:
    """The user's model in a folder, rewritten if that is wanted and can be."""
    kept, summary, notes = None, None, []
    if rewrite:
        kept, summary, said = rewritten(onnx, source, folder / MODEL_FILE, backend)
        notes.append(said)
        listener.note(said)
    return Kept(kept or _copied(onnx, source, folder), summary, tuple(notes))


def default_output(model: Path) -> Path:
    """Where engines go when nobody says: the model's name with `.trtopt`, in the current folder."""
    return Path(f"{model.stem}.trtopt")


def make_plans(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> list[BuildPlan]:
    """The engines that a recipe asks for.

    Raises:
        UsageError, FixedBatchError: see `builder.shapes`.
    """
    batches = recipe.batch or (fixed_batch(onnx) or 1,)
    flags = [parse_shape_flag(f"{name}:{shapes}") for name, shapes in recipe.shapes.items()]
    engines = (
        [profiles_for(onnx, recipe.ranges or (batches,), flags)]
        if recipe.dynamic
        else [profiles_for(onnx, ((size,),), flags) for size in sorted(set(batches))]
    )
    settings = BuildSettings(
        opt_level=recipe.opt_level,
        workspace_bytes=recipe.workspace_mib * 2**20 if recipe.workspace_mib else None,
        tactic_sources=recipe.tactic_sources,
        compute_capabilities=recipe.compute_capability,
        plugins=tuple(_plugin(path) for path in recipe.plugins),
        reproducible=recipe.reproducible,
    )
    return [
        BuildPlan(
            onnx_sha256=onnx.sha256,
            batch=(reach := over_all(profiles)).batch,
            shapes=reach.shapes,
            settings=settings,
            backend=backend,
            multi_profile=profiles if len(profiles) > 1 else (),
        )
        for profiles in engines
    ]


def _plugin(path: str) -> Plugin:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--plugin {path}: no such file", "give the path of a plugin library (.so)")
    return Plugin(path=str(file.resolve()), sha256=sha256_of(file))


def check_opset(onnx: OnnxArtifact, builder: EngineBuilder) -> None:
    """Refuse an opset that the builder does not read.

    Raises:
        ModelError: it is newer.
    """
    newest = builder.max_opset
    if newest is not None and onnx.opset > newest:
        raise ModelError(
            f"{onnx.path}: opset {onnx.opset} is newer than {builder.backend} reads (up to {newest})",
            f"export the model again with opset {newest} or lower",
        )


def notes_on(recipe: Recipe, builder: EngineBuilder, engines: int) -> list[str]:
    """What a recipe for so many engines asks for in vain here, or to their disadvantage."""
    notes = []
    if recipe.timing_cache not in (None, NO_CACHE) and not builder.uses_timing_cache:
        notes.append(f"{builder.backend} makes no use of timing caches: {recipe.timing_cache} is left alone")
    if builder.device.kind != "gpu":
        return notes
    taken, free = (len(set(places_to_build(builder.backend.name, one))) for one in (recipe.jobs, engines))
    if taken < recipe.jobs:
        notes.append(
            f"builds that share a GPU disturb each other's tactic timing: --jobs {taken} gives better engines"
        )
    elif recipe.jobs == 1 and free > 1:
        notes.append(f"{free} engines could be built at a time, each on a GPU of its own: --jobs {free}")
    return notes


def _copied(onnx: OnnxArtifact, source: Path, folder: Path) -> OnnxArtifact:
    """Copy the model, and its external data under the names that the model knows, into the build folder.

    Raises:
        InvalidModelError: its data is in a file that is called like one of the build's own.
        OutputError: it cannot be copied.
    """
    files = external_files(load_graph(source), source)
    for name in {str(file.relative_to(source.parent)) for file in files} & _OWN_NAMES:
        raise InvalidModelError(
            f"{source}: keeps weights in {name!r}, a name that the build folder needs itself",
            "save the model again with another name for its weights",
        )
    try:
        for file in files:
            copy = folder / file.relative_to(source.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        shutil.copyfile(source, folder / MODEL_FILE)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return msgspec.structs.replace(onnx, path=str(folder / MODEL_FILE))


def caches_for(
    recipe: Recipe, builder: EngineBuilder, folder: Path, cache_dir: str | Path | None
) -> tuple[Path | None, Path | None]:
    """The user's cache alone; or one in the build folder that its engines share, and behind it the store."""
    if not builder.uses_timing_cache:
        return None, None
    if recipe.timing_cache is None:
        return folder / TIMING_CACHE_FILE, store_folder(cache_dir)
    if recipe.timing_cache == NO_CACHE:
        return folder / TIMING_CACHE_FILE, None
    return Path(recipe.timing_cache).absolute(), None


@dataclass(frozen=True)
class EngineRequest:
    """An engine to be built: of which graph, to which plan, into which folder."""

    onnx: OnnxArtifact
    plan: BuildPlan
    folder: Path


def build_engines(
    graphs: Sequence[OnnxArtifact],
    plans: Sequence[BuildPlan],
    folder: Path,
    how: BuildOptions,
    listener: Listener,
) -> tuple[EngineArtifact, ...]:
    """Build one engine a plan into `folder`; in the order of the plans.

    Each plan says by hash which of the `graphs` its engine is made of. The first failure ends the others.
    """
    by_hash = {graph.sha256: graph for graph in graphs}
    requested = [EngineRequest(by_hash[plan.onnx_sha256], plan, folder) for plan in plans]
    listener.plans([plan.label for plan in plans])
    built: dict[int, EngineArtifact] = {}
    with closing(build_each(requested, how, listener)) as outcomes:
        for index, outcome in outcomes:
            if isinstance(outcome, TrtoptError):
                raise outcome
            built[index] = outcome
    return tuple(built[index] for index in range(len(plans)))


def build_each(
    requested: Sequence[EngineRequest], how: BuildOptions, listener: Listener
) -> Generator[tuple[int, EngineArtifact | TrtoptError]]:
    """Build engines, whatever becomes of each; yields (index, engine or what went wrong) as they are done."""
    jobs = [
        BuildJob(
            onnx=one.onnx.path,
            types=one.onnx.types,
            plan=one.plan,
            folder=str(one.folder.absolute()),
            timing_cache=str(how.cache.absolute()) if how.cache else None,
            store=str(how.store.absolute()) if how.store else None,
            nvtx=how.nvtx,
            memory=how.memory,
        )
        for one in requested
    ]
    results = run_all_jobs(jobs, places=how.places, limit_s=how.limit_s, on_progress=listener.progress)
    with closing(results):
        for index, result in results:
            if isinstance(result, BuildError):
                yield index, explained(result, requested[index].onnx, requested[index].plan)
            elif isinstance(result, TrtoptError):
                yield index, result
            else:
                assert isinstance(result, Built)
                for note in result.engine.notes:
                    listener.note(note)
                yield index, result.engine


def command_line() -> tuple[str, ...]:
    """The command for records; without the folders that the program lies in, which are nobody's business."""
    return (Path(sys.argv[0]).name, *sys.argv[1:])


def now() -> str:
    """The time of day for records: ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
