"""The workbench: engines from graphs, with plans and timing caches, and where they are built."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.shapes import over_all, profiles_for
from trtopt.builder_settings import recorded_settings
from trtopt.device.api import EngineBuilder
from trtopt.device.backends import places_to_build
from trtopt.device.cuda.probe import first_gpu
from trtopt.errors import (
    BuildError,
    ModelError,
    RefusedGraphError,
    TrtoptError,
    UnsupportedOpError,
)
from trtopt.executors.api import THIS_HOST, Executor, LocalExecutor
from trtopt.files.atomic import scratch_beside
from trtopt.inspect.graph import read_graph
from trtopt.onnxio import model_file
from trtopt.recipe import LOCAL, Recipe, io_request
from trtopt.records import (
    Backend,
    BuildPlan,
    BuildSettings,
    EngineArtifact,
    OnnxArtifact,
    TacticLock,
)
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.cache_folder import NO_CACHE, store_folder
from trtopt.workflows.listener import SILENT, Listener

MODEL_FILE = "model.onnx"
TIMING_CACHE_FILE = "timing.cache"


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """What engines are built on: the builder, its timing cache and the store behind it, where, and who hears.

    `limit_s` is for one build. With a `lock` no timing cache is used: what it leaves to choose among is no
    contest.
    """

    builder: EngineBuilder
    cache: Path | None = None
    store: Path | None = None
    executor: Executor = THIS_HOST
    listener: Listener = SILENT
    limit_s: float | None = None
    lock: TacticLock | None = None

    def with_caches(self, recipe: Recipe, folder: Path, cache_dir: str | Path | None) -> Workbench:
        """With the user's cache; or one in the folder, which its engines share, and the store behind it."""
        if self.lock is not None:
            return self
        own = recipe.timing_cache
        if not self.builder.uses_timing_cache or own == NO_CACHE:
            return self.with_cache_in(folder)
        if own is None:
            return replace(self.with_cache_in(folder), store=store_folder(cache_dir))
        return replace(self, cache=Path(own).absolute(), store=None)

    def with_cache_in(self, folder: Path) -> Workbench:
        """With a timing cache in a folder alone."""
        cache = folder / TIMING_CACHE_FILE if self.builder.uses_timing_cache else None
        return replace(self, cache=cache, store=None)

    def build(
        self, graphs: Sequence[OnnxArtifact], plans: Sequence[BuildPlan], folder: Path
    ) -> tuple[EngineArtifact, ...]:
        """Build one engine per plan into `folder`; in the order of the plans.

        Each plan says by hash which of the `graphs` its engine is made of. The first failure ends the others.
        """
        by_hash = {graph.sha256: graph for graph in graphs}
        jobs = [self.job(by_hash[plan.onnx_sha256], plan, folder) for plan in plans]
        self.listener.plans([plan.label for plan in plans])
        built: dict[int, EngineArtifact] = {}
        with closing(self.build_each(jobs)) as outcomes:
            for index, outcome in outcomes:
                if isinstance(outcome, TrtoptError):
                    raise outcome
                built[index] = outcome
        return tuple(built[index] for index in range(len(plans)))

    def build_again(
        self, graphs: Sequence[OnnxArtifact], plans: Sequence[BuildPlan], folder: Path
    ) -> tuple[EngineArtifact, ...]:
        """Build to an earlier build's plans; those of another backend have this one's default settings."""
        backend = self.builder.backend
        own = [
            msgspec.structs.replace(
                plan,
                backend=backend,
                settings=plan.settings if plan.backend.name == backend.name else BuildSettings(),
            )
            for plan in plans
        ]
        return self.build(graphs, own, folder)

    def job(self, onnx: OnnxArtifact, plan: BuildPlan, folder: Path) -> BuildJob:
        """The job that builds an engine of a graph to a plan into a folder."""
        return BuildJob(
            onnx=onnx.path,
            types=onnx.types,
            plan=plan,
            folder=str(folder.absolute()),
            timing_cache=str(self.cache.absolute()) if self.cache else None,
            store=str(self.store.absolute()) if self.store else None,
            tactics=None if self.lock is None else self.lock.engines[plan.label],
        )

    def build_each(self, jobs: Sequence[BuildJob]) -> Generator[tuple[int, EngineArtifact | TrtoptError]]:
        """Build engines; yields (index, engine or error) as they are done."""
        with ExitStack() as scratch:
            refused: dict[int, tuple[TrtoptError, BuildJob]] = {}
            for index, result in self._run(jobs):
                if isinstance(result, RefusedGraphError | UnsupportedOpError) and (
                    job := _at_its_shapes(jobs[index], scratch)
                ):
                    refused[index] = result, job
                else:
                    yield index, _explain(result, jobs[index])
            folded = self._run([job for _, job in refused.values()]) if refused else iter(())
            for place, result in folded:
                index, (refusal, _) = list(refused.items())[place]
                if isinstance(result, EngineArtifact):
                    note = (
                        f"{result.plan.label}: built at its shapes, with constants folded: {refusal.problem}"
                    )
                    yield index, msgspec.structs.replace(result, notes=(*result.notes, note))
                else:
                    yield index, _explain(refusal, jobs[index])

    def _run(self, jobs: Sequence[BuildJob]) -> Iterator[tuple[int, EngineArtifact | TrtoptError]]:
        results = self.executor.run_all_jobs(jobs, limit_s=self.limit_s, on_progress=self.listener.progress)
        with closing(results):
            yield from results


def _at_its_shapes(job: BuildJob, scratch: ExitStack) -> BuildJob | None:
    """The job with the graph at the engine's own shapes; None where TensorRT got as plain a graph already."""
    if job.plan.backend.name == ONNXRUNTIME:
        return None
    from trtopt.rewrite.rewrite import fold_at

    shapes = {name: given.fixed for name, given in job.plan.shapes.items()}
    folder = scratch.enter_context(scratch_beside(Path(job.folder) / MODEL_FILE))
    given = replace(model_file.load(Path(job.onnx)), spool=folder)
    folded = fold_at(given, shapes, target_of(job.plan.backend))
    if folded is None:
        return None
    model_file.save(folded, folder / MODEL_FILE)
    return msgspec.structs.replace(job, onnx=str(folder / MODEL_FILE))


def _explain(result: EngineArtifact | TrtoptError, job: BuildJob) -> EngineArtifact | TrtoptError:
    return explain_oversize(result, Path(job.onnx), job.plan) if isinstance(result, BuildError) else result


def explain_oversize(error: BuildError, model: Path, plan: BuildPlan) -> BuildError:
    """The error, with the largest tensor in front of what TensorRT said, if that breaks its bound.

    TensorRT itself says only that some shape cannot be computed, and names nodes far behind the cause.
    """
    most = target_of(plan.backend).most_elements
    if most is None:
        return error
    largest, size = {name: given.max for name, given in plan.shapes.items()}, plan.batch.max[0]
    shapes = read_graph(model_file.load(model).proto, largest).shapes
    elements, name = max((math.prod(shape), name) for name, shape in shapes.items())
    if elements <= most:
        return error
    dims = "×".join(map(str, shapes[name]))
    return type(error)(
        f"{name!r} is {dims} at batch {size}, more than the {most:,} elements that "
        f"TensorRT {plan.backend.version} allows a tensor: {error.problem}",
        f"build for smaller batches or shapes; what grows with the batch alone fits up to "
        f"{size * most // elements}",
    )


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────


def make_plans(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> list[BuildPlan]:
    """The engines that a recipe requests."""
    batches = recipe.batch or (onnx.fixed_batch or 1,)
    engines = (
        [profiles_for(onnx, recipe.ranges or (batches,), recipe)]
        if recipe.dynamic
        else [profiles_for(onnx, ((size,),), recipe) for size in sorted(set(batches))]
    )
    settings = recorded_settings(recipe, BuildSettings)
    return [
        BuildPlan(
            onnx_sha256=onnx.sha256,
            batch=(reach := over_all(profiles)).batch,
            shapes=reach.shapes,
            settings=settings,
            backend=backend,
            multi_profile=profiles if len(profiles) > 1 else (),
            io_layouts=io_request(recipe).vectorised,
        )
        for profiles in engines
    ]


def check_opset(onnx: OnnxArtifact, builder: EngineBuilder) -> None:
    """Refuse an opset that the builder does not read."""
    newest = builder.max_opset
    if newest is not None and onnx.opset > newest:
        raise ModelError(
            f"{onnx.path}: opset {onnx.opset} is newer than {builder.backend} reads (up to {newest})",
            f"export the model again with opset {newest} or lower",
        )


def notes_on(recipe: Recipe, builder: EngineBuilder, engines: int) -> list[str]:
    """Notes on recipe options that have no effect here, or harm the engines."""
    notes = []
    if recipe.timing_cache not in (None, NO_CACHE) and not builder.uses_timing_cache:
        notes.append(f"{builder.backend} does not use timing caches: {recipe.timing_cache} is ignored")
    if builder.device.kind != "gpu" or recipe.executor != LOCAL:
        return notes
    taken, free = (len(set(places_to_build(builder.backend.name, one))) for one in (recipe.jobs, engines))
    if taken < recipe.jobs:
        notes.append(
            f"builds that share a GPU disturb each other's tactic timing: --jobs {taken} gives better engines"
        )
    elif recipe.jobs == 1 and free > 1:
        notes.append(f"{free} engines could be built at a time, each on its own GPU: --jobs {free}")
    return notes


# ── where its jobs run ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def open_executor(
    recipe: Recipe, builder: EngineBuilder, note: Callable[[str], None], *, measures: bool = False
) -> Iterator[Executor]:
    """What runs the recipe's jobs; `note` hears which nodes take part.

    Where measurements are to come, an error says what they lack before anything is built for them.
    """
    if recipe.executor == LOCAL:
        name = builder.backend.name
        if measures and name != ONNXRUNTIME:
            first_gpu()  # which builds may not need
        yield LocalExecutor(places_to_build(name, recipe.jobs))
        return
    from trtopt.executors.ray.connection import connected
    from trtopt.executors.ray.executor import RayExecutor

    with connected(recipe.executor):
        executor = RayExecutor(builder, gpu_model=recipe.gpu_model, retries=recipe.retries, note=note)
        if measures:
            executor.require_measuring()
        yield executor
