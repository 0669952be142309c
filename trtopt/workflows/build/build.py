"""From an ONNX file to a folder of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from trtopt.data import open_data
from trtopt.data.value_range import range_notes
from trtopt.device.backends import choose_for_building, open_builder, require_builders_memory
from trtopt.device.building import EngineBuilder
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import ArtifactError, BuildError, OutputError
from trtopt.executors.api import Executor
from trtopt.executors.choice import open_executor
from trtopt.files.atomic import cannot_write
from trtopt.files.build_folder import folder_in_progress
from trtopt.files.manifests import is_build_folder, own_files, read_manifest, write_manifest
from trtopt.files.replace_folder import names_of_user_files
from trtopt.files.temporary import locked_folder
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.nonfinite_weights import weight_alarms
from trtopt.recipe import Recipe, check_recipe, io_request
from trtopt.records import Manifest, OnnxArtifact
from trtopt.version import __version__
from trtopt.workflows.build.engines import BuildOptions, caches_for, check_opset, make_plans, notes_on
from trtopt.workflows.build.kept_model import keep_model, with_typed_io
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.listener import SILENT, Listener


def build(
    model: str | Path,
    output: str | Path | None,
    recipe: Recipe,
    *,
    force: bool = False,
    nvtx: bool = False,
    memory: bool = False,
    cache_dir: str | Path | None = None,
    executor: Executor | None = None,
    listener: Listener = SILENT,
) -> Manifest:
    """Build the engines of a recipe from an ONNX file into a folder; see `trtopt.build`.

    `executor` is one that is open [default: what the recipe names].
    """
    from trtopt.workflows.build.engine_selection import (  # which builds with the installed backend
        check_request,
        select_engines,
    )

    check_recipe(recipe)
    onnx = read_onnx(source := Path(model))
    builder, why = _opened(recipe, nvtx=nvtx, memory=memory)
    check_opset(onnx, builder)
    io = io_request(recipe)
    # flags are validated before anything is written
    plans = make_plans(with_typed_io(onnx, io, builder.backend), recipe, builder.backend)
    check_request(onnx, recipe, builder.backend)
    notes = notes_on(recipe, builder, len(plans))
    target = Path(output) if output is not None else default_output(source)
    replaced = _to_be_replaced(target, onnx, force)
    listener.notes([f"building with {builder.backend}{why}", *replaced])
    with folder_in_progress(target) as folder:
        kept = keep_model(
            onnx,
            source,
            folder,
            builder.backend,
            listener,
            rewrite=recipe.rewrite,
            add_rule=recipe.add_rule,
            io=io,
            data=recipe.calib,
        )
        cache, store = caches_for(recipe, builder, folder, cache_dir)
        with (
            nullcontext(executor) if executor else open_executor(recipe, builder, listener.note) as runs,
            _named_as_given(kept.onnx.path, source),
        ):
            how = BuildOptions(cache, store, runs, recipe.build_timeout, nvtx=nvtx, memory=memory)
            made = select_engines(kept.onnx, recipe, builder, folder, how, listener, kept.io)
        if recipe.calib is not None:
            notes += range_notes(kept.onnx.inputs, open_data(recipe.calib))
        manifest = Manifest(
            trtopt=__version__,
            created=now(),
            argv=command_line(),
            onnx=made.graphs[0],
            graphs=made.graphs[1:],
            io=made.io,
            intermediates=made.intermediates,
            rewrite=kept.rewrite,
            engines=made.engines,
            verdict=made.verdict,
            notes=tuple(
                dict.fromkeys((*notes, *kept.notes, *made.notes))
            ),  # a cast repeats those on the data
            alarms=tuple(dict.fromkeys((*weight_alarms(model_file.load(source)), *made.alarms))),
        )
        return write_manifest(folder, manifest)


@contextmanager
def _named_as_given(kept: str, source: Path) -> Iterator[None]:
    """Errors name the model as the user gave it, not the copy in the unfinished folder."""
    try:
        yield
    except BuildError as error:
        raise type(error)(error.problem.replace(kept, str(source)), error.remedy) from error


def _opened(recipe: Recipe, *, nvtx: bool, memory: bool) -> tuple[EngineBuilder, str]:
    """The builder, and why it was chosen if not named; refuses what it cannot do."""
    choice = choose_for_building(recipe.backend)
    if nvtx:
        require_nvtx()
    if memory:
        require_builders_memory(choice.name)
    return open_builder(choice.name), f": {choice.reason}" if recipe.backend == "auto" else ""


def _to_be_replaced(target: Path, onnx: OnnxArtifact, force: bool) -> list[str]:
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
    try:
        names = names_of_user_files(target, own_files(target))
    except OSError as error:  # what cannot be listed could not be kept
        raise cannot_write(target, error) from None
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
    """The command that made a build by its command line; Python makes what `trtopt build` does."""
    return argv[1] if len(argv) > 1 and argv[0] in ("trtopt", "__main__.py") else "build"


def default_output(model: Path) -> Path:
    """The default build folder: the model's name with `.trtopt`, in the current folder."""
    return Path(f"{model.stem}.trtopt")
