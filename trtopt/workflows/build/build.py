"""From an ONNX file to a folder of engines: of the requested graph, or of the best measured precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec

from trtopt.data import names_function, open_data
from trtopt.data.source import needs_data, range_notes
from trtopt.device.backends import (
    choose_for_building,
    choose_for_running,
    least_capability,
    open_builder,
)
from trtopt.errors import (
    ArtifactError,
    BackendMissingError,
    BuildError,
    IncompatibleEngineError,
    NoGpuError,
    OutputError,
    TrtoptError,
    UsageError,
)
from trtopt.executors.api import Executor
from trtopt.files.atomic import locked_folder, writing
from trtopt.files.manifests import is_build_folder, own_files, read_manifest, write_manifest
from trtopt.files.outputs import folder_in_progress, names_of_user_files, write_output
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import bounds_in
from trtopt.recipe import BEST, QUANTIZED, SELECTION_BUDGET, Recipe, io_request
from trtopt.records import Backend, Manifest, OnnxArtifact, to_json
from trtopt.requests.build import BuildRequest
from trtopt.requests.recipe import check_recipe
from trtopt.targets import target_of
from trtopt.workflows.build.graph import (
    PreparedGraph,
    keep_model,
    prepare_graph,
    request_for,
    with_typed_io,
)
from trtopt.workflows.build.precision_selection import BASELINE, select_precision
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.provenance import command_line
from trtopt.workflows.tactic_lock import KIND, lock_alarms, lock_of, open_lock
from trtopt.workflows.workbench import Workbench, check_opset, make_plans, notes_on, open_executor


def build(request: BuildRequest) -> Manifest:
    """Build engines from an ONNX file into a folder: one per batch size, or one dynamic engine.

    Returns:
        The manifest of the folder: its engines with their settings, and how they were made.

    Raises:
        BuildError: the builder failed.

    Example:
        >>> manifest = trtopt.build("model.onnx", "engines", batch=[1, 8], backend="onnxruntime")
        >>> manifest
        <Manifest: 2 engines by onnxruntime: batch 1, 8>
        >>> [engine.path for engine in manifest.engines]
        ['batch1.onnx', 'batch8.onnx']
    """
    return build_recipe(
        request.model,
        request.output,
        request.recipe,
        force=request.force,
        cache_dir=request.cache_dir,
        lock=request.lock,
        locked=request.locked,
        listener=request.listener,
    )


def build_recipe(
    model: str | Path,
    output: str | Path | None,
    recipe: Recipe,
    *,
    force: bool = False,
    cache_dir: str | Path | None = None,
    lock: str | Path | None = None,
    locked: str | Path | None = None,
    executor: Executor | None = None,
    listener: Listener = SILENT,
) -> Manifest:
    """Build the engines of a recipe from an ONNX file into a folder.

    `executor` is one that is open [default: what the recipe names]; `lock` and `locked` as in requests.
    """
    check_recipe(recipe)
    onnx = read_onnx(source := Path(model))
    choice = choose_for_building(recipe.backend)
    builder = open_builder(choice.name)
    check_opset(onnx, builder)
    # flags are validated before anything is written
    plans = make_plans(with_typed_io(onnx, recipe, builder.backend), recipe, builder.backend)
    _check_request(onnx, recipe, builder.backend)
    tactics = open_lock(lock, locked, recipe, builder, plans)
    notes = notes_on(recipe, builder, len(plans))
    target = Path(output) if output is not None else default_output(source)
    replaced = _check_replaced(target, onnx, force)
    why = f": {choice.reason}" if recipe.backend == "auto" else ""
    listener.notes([f"building with {builder.backend}{why}", *replaced])
    with folder_in_progress(target) as folder:
        kept = keep_model(onnx, folder, recipe, builder.backend, listener)
        with (
            nullcontext(executor) if executor else open_executor(recipe, builder, listener.note) as runs,
            _named_as_given(kept.onnx.path, source),
        ):
            workbench = Workbench(
                builder=builder,
                executor=runs,
                listener=listener,
                limit_s=recipe.build_timeout,
                lock=tactics,
            ).with_caches(recipe, folder, cache_dir)
            made = _select_engines(kept, recipe, workbench, folder)
        if recipe.calib is not None:
            notes += range_notes(kept.onnx.inputs, open_data(recipe.calib))
        own = lock_of(folder, made.engines) if tactics is not None else None
        beyond = lock_alarms(folder, made.engines, own) if own is not None else ()
        manifest = msgspec.structs.replace(
            made,
            notes=tuple(dict.fromkeys((*notes, *made.notes))),  # a cast repeats those on the data
            alarms=tuple(dict.fromkeys((*weight_alarms(model_file.load(source)), *made.alarms, *beyond))),
        )
        manifest = write_manifest(folder, manifest)
    if lock is not None and own is not None:
        write_output(Path(lock), to_json(own), KIND)
    return manifest


@contextmanager
def _named_as_given(kept: str, source: Path) -> Iterator[None]:
    """Errors name the model as the user gave it, not the copy in the unfinished folder."""
    try:
        yield
    except BuildError as error:
        raise type(error)(error.problem.replace(kept, str(source)), error.remedy) from error


def _check_replaced(target: Path, onnx: OnnxArtifact, force: bool) -> list[str]:
    """A message about the existing build that the new one will replace."""
    try:
        with locked_folder(target.resolve().parent):  # another build may be replacing it
            if not is_build_folder(target):
                return []
            there = read_manifest(target)
        what = f"built {there.created} by trtopt {there.trtopt}"
        is_same = there.source_sha256 == onnx.sha256
        maker = _maker(there.argv)
    except ArtifactError as error:
        what, is_same, maker = error.problem, False, ""
    with writing(target):  # what cannot be listed could not be kept
        names = names_of_user_files(target, own_files(target))
    kept_note = [f"{target}: these files are kept with the new build: {', '.join(names)}"] if names else []
    if is_same and maker == _maker(command_line()):
        return [f"{target}: will be replaced; it holds this model, {what}", *kept_note]
    if force:
        why = f"made by `trtopt {maker}`" if is_same else "it is no build of this model"
        return [f"{target}: will be replaced, although {why}: {what}", *kept_note]
    of = f"the result of `trtopt {maker}`" if is_same else f"a build of another model than {onnx.path}"
    raise OutputError(
        f"{target}: holds {of} ({what})", "choose another name with -o, or replace it with --force"
    )


def _maker(argv: Sequence[str]) -> str:
    """The command that made a build; Python makes what `trtopt build` does, and so do translated lines."""
    maker = argv[1] if len(argv) > 1 and argv[0] in ("trtopt", "__main__.py") else "build"
    return "build" if maker in ("trtexec", "polygraphy") else maker


def default_output(model: Path) -> Path:
    """The default build folder: the model's name with `.trtopt`, in the current folder."""
    return Path(f"{model.stem}.trtopt")


_NARROW = {"int8", "float8_e4m3fn", "int4"}


def _check_request(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> None:
    """Validate a recipe's precision and its data before anything is written."""
    _check_capabilities(recipe)
    if bounds_in(recipe.bounds).any and not recipe.selects_precision:
        first = next(iter(recipe.bounds)).replace("_", "-")
        raise UsageError(
            f"--{first}: has no effect, because no precision is selected",
            "use it with --precision best, int8 or fp8, without --no-verdict",
        )
    if recipe.selection_budget != SELECTION_BUDGET and not recipe.selects_precision:
        raise UsageError(
            f"--selection-budget {recipe.selection_budget}: has no effect, because no precision is selected",
            "use it with --precision best or int8, without --no-verdict",
        )
    if recipe.fused_plugins:
        _check_plugins(onnx, recipe, backend)
    if recipe.forms and recipe.precision not in ("int8", BEST):
        raise UsageError(f"--forms {recipe.forms} is for INT8", "omit it, or give --precision int8 or best")
    if recipe.exclude and recipe.precision not in (*QUANTIZED, BEST):
        raise UsageError(
            f"--exclude {recipe.exclude[0]}: nothing is quantised",
            f"omit it, or give --precision {', '.join(QUANTIZED)} or best",
        )
    if recipe.calib is not None and not names_function(recipe.calib):  # which a worker imports
        open_data(recipe.calib)
    if recipe.precision in QUANTIZED:
        request_for(onnx, recipe, backend)
    if recipe.precision == BEST and recipe.calib is None:
        raise needs_data("--precision best", "for the scales and for accuracy")
    if recipe.precision == BEST and (found := obstacle(onnx, recipe, backend)):
        raise UsageError(
            f"--precision best chooses by measuring, which cannot be done here: {found.problem}", found.remedy
        )
    for name in recipe.bounds:
        if found := obstacle(onnx, recipe, backend):
            raise UsageError(
                f"--{name.replace('_', '-')}: the outputs cannot be compared here: {found.problem}",
                "omit it, and give it to `trtopt check BUILD_DIR` where the engines run",
            )


def _check_plugins(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> None:
    """Refuse plugins where they cannot be built, or not measured: nothing else says whether they pay."""
    if not target_of(backend).weakly_typed:
        raise UsageError(
            f"--fused-plugins: {backend} takes no ranges of tensors without Q/DQ, which these plugins need",
            "omit it, or build with TensorRT 8.6",
        )
    if recipe.precision not in ("int8", BEST) or not recipe.verdict:
        raise UsageError(
            "--fused-plugins: has no effect, because no INT8 engines are measured",
            "give --precision int8 or best, without --no-verdict",
        )
    if found := obstacle(onnx, recipe, backend):
        raise UsageError(f"--fused-plugins is chosen by measuring: {found.problem}", found.remedy)


def _check_capabilities(recipe: Recipe) -> None:
    precision = recipe.precision or ""
    least = least_capability(precision)
    for name in recipe.compute_capability:
        digits = "".join(filter(str.isdigit, name))
        if len(digits) > 1 and (int(digits[:-1]), int(digits[-1])) < least:
            raise UsageError(
                f"--compute-capability {name}: such GPUs have no {precision.upper()}",
                f"build for {least[0]}.{least[1]} and newer, or in another precision",
            )


def obstacle(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> UsageError | None:
    """Why precisions cannot be measured against one another; None if they can."""
    if not recipe.verdict:
        return UsageError("--no-verdict", "omit it, or name a precision")
    if recipe.compute_capability:
        return UsageError(
            "the engines are for the GPUs that --compute-capability names", "omit it, or name a precision"
        )
    runs = choose_for_running("auto", backend.name)
    if runs.name != backend.name:
        return UsageError(
            f"engines by {backend} do not run here: {runs.reason}",
            "build on the machine with the GPU, name a precision, or give --backend onnxruntime to choose "
            "for this CPU",
        )
    if not _NARROW.isdisjoint(onnx.types):
        return UsageError(
            "the model brings its own Q/DQ, and there is no float model to compare with",
            "give its float model, or name a precision: its own Q/DQ is kept",
        )
    if int8 := io_request(recipe).int8:
        return UsageError(
            f"{int8[0]!r} exchanges INT8 values, whose scale the graph in INT8 alone has",
            "name --precision int8",
        )
    return None


def _select_engines(kept: PreparedGraph, recipe: Recipe, workbench: Workbench, folder: Path) -> Manifest:
    """Engines of a model in `folder`, in the requested precision, with the manifest of what was made.

    Quantised engines are measured against FP16 on machines that can run them, and selected only where they
    are no slower; where they cannot be measured a note says so.
    """
    base, backend = kept.onnx, workbench.builder.backend
    if recipe.precision in (*QUANTIZED, BEST):
        found: TrtoptError | None = obstacle(base, recipe, backend)
        if found is None:
            try:
                return select_precision(kept, recipe, workbench, folder)
            except (IncompatibleEngineError, BackendMissingError, NoGpuError) as error:
                if recipe.precision == BEST or recipe.bounds:
                    raise
                found = error
        note = f"{recipe.precision} was not measured against {BASELINE}: {found.problem}"
        kept = replace(kept, notes=(*kept.notes, note))
    if recipe.precision is not None:  # "best" has been measured, or has failed
        workbench.listener.phase(Path(base.path).name, f"making the graph {recipe.precision.upper()}")
    made = prepare_graph(kept, recipe, backend)
    return made.manifest(workbench.build((made.onnx,), make_plans(made.onnx, recipe, backend), folder))
