"""The engines of a sweep: what is shared between them is made once, and existing ones are reused."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from trtopt.device.building import EngineBuilder
from trtopt.errors import ArtifactError, TrtoptError
from trtopt.executors.api import Executor
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reason_of, sha256_of
from trtopt.files.manifests import MANIFEST, hashes_of, read_manifest, write_manifest
from trtopt.files.outputs import folder_in_progress
from trtopt.recipe import Recipe
from trtopt.records import BuildPlan, EngineArtifact, Manifest, OnnxArtifact, SweepSetting, from_json, to_json
from trtopt.version import __version__
from trtopt.workflows.build.folder import in_folder, stamp, verified_graphs
from trtopt.workflows.build.graph import QUANTISED, Precision, keep_model, prepare_graph
from trtopt.workflows.listener import Listener
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.workbench import EngineRequest, Workbench, make_plans

_PREPARED = "prepared.json"
"""A manifest without engines, beside a model that is ready to be built."""
_UNTYPED = (None, "fp32")


@dataclass(frozen=True)
class Swept:
    """What is swept: the model, where it lies, how it is built, and into which folder."""

    onnx: OnnxArtifact
    source: Path
    recipe: Recipe
    builder: EngineBuilder
    folder: Path
    executor: Executor
    cache_dir: str | Path | None = None

    def recipe_for(self, setting: SweepSetting) -> Recipe:
        """The recipe of one point's engine."""
        axes = self.recipe.axes | {name: (length,) for name, length in setting.axes.items()}
        return msgspec.structs.replace(
            self.recipe, batch=(setting.batch,), axes=axes, precision=setting.precision
        )

    def calib_for(self, precision: str | None) -> str | None:
        """The data that a precision asks for: several precisions share the option."""
        return None if precision in _UNTYPED else self.recipe.calib


@dataclass(frozen=True)
class PointEngine:
    """An engine of a build folder of the sweep's, and the graph that it was built of."""

    folder: Path
    onnx: OnnxArtifact
    artifact: EngineArtifact


class Builds:
    """Build folders, one a precision and lengths of axes; the model is prepared once a precision.

    A precision that the model cannot be given is not tried again.
    """

    def __init__(self, swept: Swept, listener: Listener) -> None:
        self._swept, self._listener = swept, listener
        self._workbench = Workbench(
            builder=swept.builder,
            executor=swept.executor,
            listener=listener,
            limit_s=swept.recipe.build_timeout,
        ).with_caches(swept.recipe, swept.folder, swept.cache_dir)
        self._graphs: dict[Path, list[OnnxArtifact]] = {}
        self._refused: dict[str | None, TrtoptError] = {}
        self._failed: dict[str, TrtoptError] = {}

    def found(self, setting: SweepSetting) -> PointEngine | None:
        """The engine of an earlier run, if it is there and is what its manifest vouches for."""
        folder = self._folder(setting)
        try:
            manifest = read_manifest(folder)
            key = self._plan(folder, manifest, setting).key
            engine = next((one for one in manifest.engines if one.plan.key == key), None)
            if engine is None or sha256_of(folder / engine.path) != engine.sha256:
                return None
        except (ArtifactError, OSError):
            return None
        return PointEngine(folder, manifest.onnx, engine)

    def build_ahead(self, settings: Iterable[SweepSetting]) -> None:
        """Build what is not there for all of the settings, as many at a time as the recipe says.

        What cannot be built says so when its turn to be measured comes.
        """
        requested: dict[tuple[Path, str], tuple[SweepSetting, EngineRequest]] = {}
        for setting in settings:
            if self.found(setting) is not None:
                continue
            with suppress(TrtoptError):
                one = self._requested(setting)
                requested[one.folder, one.plan.key] = setting, one
        wanted = list(requested.values())
        self._listener.plans([setting.label for setting, _ in wanted])
        with closing(self._workbench.build_each([one for _, one in wanted])) as outcomes:
            for index, outcome in outcomes:
                if isinstance(outcome, EngineArtifact):
                    self._enter(wanted[index][0], outcome)
                else:
                    self._failed[wanted[index][1].plan.key] = outcome

    def build(self, setting: SweepSetting) -> PointEngine:
        """Build it, with the timing cache that all share, and enter it into its folder's manifest."""
        requested = self._requested(setting)
        if requested.plan.key in self._failed:
            raise self._failed[requested.plan.key]
        self._listener.plans([requested.plan.label])
        ((_, outcome),) = self._workbench.build_each([requested])
        if isinstance(outcome, TrtoptError):
            raise outcome
        return self._enter(setting, outcome)

    def _requested(self, setting: SweepSetting) -> EngineRequest:
        """The engine that a setting needs; its folder is there, with the graph."""
        folder, prepared = self._folder(setting), self._prepared(setting.precision)
        if not folder.exists():
            with folder_in_progress(folder) as work:
                without = shutil.ignore_patterns(_PREPARED)
                shutil.copytree(
                    prepared, work, ignore=without, copy_function=shutil.copyfile, dirs_exist_ok=True
                )
        manifest = self._manifest(setting)
        plan = self._plan(folder, manifest, setting)
        by_hash = {graph.sha256: graph for graph in self._graphs_of(folder, manifest)}
        return EngineRequest(by_hash[plan.onnx_sha256], plan, folder)

    def _enter(self, setting: SweepSetting, engine: EngineArtifact) -> PointEngine:
        """Enter an engine into its folder's manifest."""
        folder, manifest = self._folder(setting), self._manifest(setting)
        others = [one for one in manifest.engines if one.plan.key != engine.plan.key]
        engines = tuple(sorted((*others, engine), key=lambda one: one.plan.batch.opt))
        made = stamp(msgspec.structs.replace(manifest, engines=engines))
        graphs = manifest.files or self._hashes_of_graphs(setting)
        own = {name: sha256_of(folder / name) for name in engine.files}
        write_manifest(folder, made, files=graphs | own)  # what others have put there is not vouched for
        return PointEngine(folder, manifest.onnx, engine)

    def _hashes_of_graphs(self, setting: SweepSetting) -> dict[str, str]:
        hashes = hashes_of(self._prepared(setting.precision))
        return {name: sha256 for name, sha256 in hashes.items() if name != _PREPARED}

    def _manifest(self, setting: SweepSetting) -> Manifest:
        """That of the setting's folder; one without engines where none is built yet."""
        folder = self._folder(setting)
        has_engines = (folder / MANIFEST).exists()
        return read_manifest(folder) if has_engines else _read_prepared(self._prepared(setting.precision))

    def _folder(self, setting: SweepSetting) -> Path:
        axes = (f"{name}{length}" for name, length in sorted(setting.axes.items()))
        return self._swept.folder / "builds" / file_name("-".join((_name(setting.precision), *axes)))

    def _graphs_of(self, folder: Path, manifest: Manifest) -> Sequence[OnnxArtifact]:
        if folder not in self._graphs:
            self._graphs[folder] = verified_graphs(folder, manifest)
        return self._graphs[folder]

    def _plan(self, folder: Path, manifest: Manifest, setting: SweepSetting) -> BuildPlan:
        recipe = self._swept.recipe_for(setting)
        (plan,) = make_plans(self._graphs_of(folder, manifest)[0], recipe, self._swept.builder.backend)
        return plan

    def _prepared(self, precision: str | None) -> Path:
        """The folder of the model in that precision; made if it is not there."""
        folder = self._swept.folder / "graphs" / _name(precision)
        if (folder / _PREPARED).exists():
            return folder
        if precision in self._refused:
            raise self._refused[precision]
        try:
            with folder_in_progress(folder) as work:
                write_atomically(work / _PREPARED, to_json(self._prepare(work, precision)))
        except TrtoptError as error:
            self._refused[precision] = error
            raise
        return folder

    def _prepare(self, folder: Path, precision: str | None) -> Manifest:
        swept, listener = self._swept, self._listener
        backend = swept.builder.backend
        recipe = swept.recipe
        kept = keep_model(swept.onnx, swept.source, folder, recipe, backend, listener)
        made = prepare_graph(
            kept.onnx,
            kept.io,
            cast("Precision | None", precision),
            swept.calib_for(precision),
            backend,
            forms=recipe.forms if precision == "int8" else None,
            exclude=recipe.exclude if precision in QUANTISED else (),
        )
        listener.notes(made.notes)
        return Manifest(
            trtopt=__version__,
            created=now(),
            argv=command_line(),
            onnx=in_folder(made.onnx),
            io=made.io,
            intermediates=made.intermediates,
            rewrite=kept.rewrite,
            engines=(),
            notes=(*kept.notes, *made.notes),
        )


def _read_prepared(folder: Path) -> Manifest:
    try:
        return from_json(read_bounded(folder / _PREPARED), Manifest)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{folder / _PREPARED}: cannot be read: {reason_of(error)}", f"remove {folder}"
        ) from None


def _name(precision: str | None) -> str:
    return precision or "model"


def file_name(label: str) -> str:
    """A label as a name of files: names of axes may hold any character."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
