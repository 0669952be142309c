"""A candidate's build folder: the incumbent's with one thing changed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.device.building import EngineBuilder
from trtopt.executors.api import Executor
from trtopt.files.manifests import write_manifest
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records import EngineArtifact, Manifest, OnnxArtifact, to_json
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.targets import target_of
from trtopt.version import __version__
from trtopt.workflows.build.build import build
from trtopt.workflows.build.engine_selection import in_folder
from trtopt.workflows.build.engines import (
    TIMING_CACHE_FILE,
    BuildOptions,
    build_engines,
    caches_for,
    make_plans,
)
from trtopt.workflows.build.verified_graphs import verified_graphs
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.listener import Listener
from trtopt.workflows.profile.profile import PROFILE_FILE
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.ledger import LEDGER
from trtopt.workflows.tune.tuned_folder import BASELINE


@dataclass(frozen=True)
class Maker:
    """Builds the baseline and candidates of a model."""

    source: Path
    recipe: Recipe
    builder: EngineBuilder
    bounds: Mapping[str, float]
    data: str | None
    data_name: str | None
    """What the user calls the samples."""
    cache_dir: str | Path | None
    limit_s: float | None
    executor: Executor
    listener: Listener

    def baseline(self, folder: Path, batch: int) -> Built:
        """Today's defaults."""
        recipe = self._limited(msgspec.structs.replace(self.recipe, batch=(batch,)))
        return Built(folder, self._build(recipe, folder), recipe, batch, 1)

    def make(self, incumbent: Built, change: Change, folder: Path) -> Built:
        """The incumbent with a change, in a folder to be made."""
        recipe = self._limited(msgspec.structs.replace(incumbent.recipe, **change.recipe))
        assert recipe.batch is not None
        manifest = (
            self._build(recipe, folder)
            if change.makes_graph
            else self._derived(incumbent, change, recipe, folder)
        )
        return Built(
            folder,
            manifest,
            recipe,
            recipe.batch[0],
            change.streams or incumbent.streams,
            (*incumbent.changes, change.name),
        )

    def _limited(self, recipe: Recipe) -> Recipe:
        return msgspec.structs.replace(recipe, backend=self.builder.backend.name, build_timeout=self.limit_s)

    def _build(self, recipe: Recipe, folder: Path) -> Manifest:
        """From the user's model; samples and bounds are for what selects a precision by measuring."""
        if recipe.precision not in (None, "fp32"):
            recipe = msgspec.structs.replace(recipe, calib=recipe.calib or self.data)
        if recipe.precision == "best":
            recipe = msgspec.structs.replace(recipe, bounds=dict(self.bounds))
        manifest = build(
            self.source,
            folder,
            recipe,
            cache_dir=self.cache_dir,
            executor=self.executor,
            listener=self.listener,
        )
        if manifest.verdict is None or self.data_name is None:
            return manifest
        named = msgspec.structs.replace(manifest.verdict, data=self.data_name)
        return write_manifest(folder, msgspec.structs.replace(manifest, verdict=named))

    def _derived(self, incumbent: Built, change: Change, recipe: Recipe, folder: Path) -> Manifest:
        """The incumbent's folder with one more rule, other settings or another build."""
        manifest, engine = incumbent.manifest, incumbent.engine
        _copy_without(incumbent.folder, folder, manifest)
        graphs = verified_graphs(folder, manifest)
        graph = next(one for one in graphs if one.sha256 == engine.plan.onnx_sha256)
        intermediates = manifest.intermediates
        if change.rule is not None:
            rewritten = self._rewritten(graph, change.rule, folder)
            if rewritten is None:
                return manifest
            intermediates = (*intermediates, in_folder(graph))
            graph = rewritten
        (plan,) = make_plans(graph, recipe, self.builder.backend)
        if change.builds_engine:
            engines = build_engines((graph,), (plan,), folder, self._how(folder, change), self.listener)
        else:
            engines = (engine,)
            for name in _files_of(engine):
                shutil.copy2(incumbent.folder / name, folder / name)
        made = msgspec.structs.replace(
            manifest,
            trtopt=__version__,
            created=now(),
            argv=command_line(),
            onnx=in_folder(graph),
            graphs=(),
            intermediates=intermediates,
            engines=engines,
        )
        return write_manifest(folder, made)

    def _rewritten(self, graph: OnnxArtifact, rule: str, folder: Path) -> OnnxArtifact | None:
        """The graph after one more rule; None where that finds nothing."""
        out = folder / f"model.{rule}.onnx"
        target = target_of(self.builder.backend).name
        trace = rewrite_model(Path(graph.path), out, target=target, rules=(rule,), write_unchanged=False)
        if not trace.applied:
            return None
        trace = msgspec.structs.replace(trace, source=Path(graph.path).name, out=out.name)
        (folder / f"rewrite.{rule}.json").write_bytes(to_json(trace))
        return msgspec.structs.replace(read_onnx(out), parent=graph.sha256)

    def _how(self, folder: Path, change: Change) -> BuildOptions:
        """The incumbent's timings, but where others compete or a build is to time everything again."""
        cache, store = caches_for(self.recipe, self.builder, folder, self.cache_dir)
        if change.recipe or change.fresh:
            (folder / TIMING_CACHE_FILE).unlink(missing_ok=True)
        if change.fresh and cache is not None:
            cache, store = folder / TIMING_CACHE_FILE, None
        return BuildOptions(cache, store, self.executor, self.limit_s)


def _copy_without(source: Path, folder: Path, manifest: Manifest) -> None:
    """Copy what the manifest lists but engines, what describes them, and the ledger."""
    built = {name for engine in manifest.engines for name in _files_of(engine)}
    folder.mkdir()
    for name in manifest.files.keys() - built - {BASELINE, LEDGER, PROFILE_FILE}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, folder / name)


def _files_of(engine: EngineArtifact) -> list[str]:
    return [name for name in (engine.path, engine.log, engine.layers, engine.memory) if name]
