"""A model at many batch sizes, shapes, precisions and numbers of streams: built, measured, resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from trtopt.builder.shapes import by_own_names
from trtopt.builder_settings import SWEPT
from trtopt.data import open_data
from trtopt.data.source import fingerprint_of
from trtopt.device.backends import choose_for_running, open_builder
from trtopt.device.building import EngineBuilder
from trtopt.errors import MeasurementError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import Executor, run_in_threads
from trtopt.executors.choice import open_executor
from trtopt.measure.contracts import DEFAULT, changed, contract_named
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import (
    GRAPH_PRECISIONS,
    MAX_AXIS,
    Recipe,
    batch_sizes,
    io_request,
    measured_on,
)
from trtopt.records import Environment, OnnxArtifact, SweepPoint, SweepReport, SweepSetting, SweepTerms
from trtopt.requests.build import SweepRequest
from trtopt.workflows.build.graph import QUANTIZED, request_for, with_typed_io
from trtopt.workflows.listener import DONE, SILENT, Listener
from trtopt.workflows.race import with_streams
from trtopt.workflows.sweep.folder import (
    Builds,
    PointEngine,
    Swept,
    draw_point,
    is_sweep,
    job_of,
    record_point,
    save_sweep,
    sweep_in_progress,
)
from trtopt.workflows.workbench import check_opset, make_plans, notes_on

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class SweepPlan:
    """What is to be measured: every combination."""

    precisions: tuple[str | None, ...]
    axes: tuple[dict[str, int], ...]
    streams: tuple[int, ...]
    batches: tuple[int, ...]

    @property
    def engines(self) -> int:
        """How many there are; streams share them."""
        return len(self.precisions) * len(self.axes) * len(self.batches)

    def settings(self) -> Iterator[SweepSetting]:
        """All of them, curve by curve."""
        for precision, axes, streams, batch in product(
            self.precisions, self.axes, self.streams, self.batches
        ):
            yield SweepSetting(precision=precision, batch=batch, streams=streams, axes=axes)


def plan_of(swept: Swept) -> SweepPlan:
    """All that is to be measured."""
    request, recipe = swept.request, swept.recipe
    fixed = swept.onnx.fixed_batch
    axes, streams = request.axes or {}, batch_sizes(request.streams) or ()
    batches = (
        batch_sizes(request.batch) or recipe.batch or ((fixed,) if fixed is not None else DEFAULT_BATCHES)
    )
    for name, sizes in {"batch": batches, "streams": streams, **axes}.items():
        if not sizes or not all(1 <= size <= MAX_AXIS for size in sizes):
            raise UsageError(
                f"{name} = {list(sizes)}: sizes are whole numbers from 1 to {MAX_AXIS}", "give at least one"
            )
    lengths = [
        [(name, size) for size in sorted(set(sizes))]
        for name, sizes in by_own_names(swept.onnx.inputs, axes).items()
    ]
    return SweepPlan(
        precisions=tuple(dict.fromkeys(request.precisions or (recipe.precision,))),
        axes=tuple(dict(chosen) for chosen in product(*lengths)),
        streams=tuple(sorted(set(streams))),
        batches=tuple(sorted(set(batches))),
    )


def terms_of(swept: Swept) -> SweepTerms:
    """What all points share."""
    request, recipe = swept.request, swept.recipe
    if request.data is not None:
        open_data(request.data)
    data = measured_on(recipe, request.data, lambda text: None)
    kept = {
        "shapes": recipe.shapes,
        "axes": recipe.axes,
        "io": io_request(recipe),
        "rewrite": recipe.rewrite,
        "add_rule": recipe.add_rule,
        "forms": recipe.forms,
        "exclude": recipe.exclude,
        "calib": recipe.calib and fingerprint_of(recipe.calib),
        **{setting.name: getattr(recipe, setting.name) for setting in SWEPT},
        "plugins": [fingerprint_of(path) for path in recipe.plugins],  # what they are, not where
    }
    return SweepTerms(
        model_sha256=swept.onnx.sha256,
        backend=swept.builder.backend,
        device=swept.builder.device,
        contract=changed(contract_named(request.contract or DEFAULT), request.terms),
        recipe=msgspec.json.encode(kept, order="deterministic").decode(),
        warmup_s=request.warmup,
        duration_s=request.duration,
        data=None if data is None else fingerprint_of(data),
    )


def check(plan: SweepPlan, swept: Swept, terms: SweepTerms) -> None:
    """Validate all options before anything is built."""
    recipe, backend = swept.recipe, swept.builder.backend
    _check_recipe(recipe)
    for precision in plan.precisions:
        if precision is not None and precision not in GRAPH_PRECISIONS:
            remedy = f"choose among {', '.join(GRAPH_PRECISIONS)}; the sweep itself finds the best"
            raise UsageError(f"--precision {precision}: cannot be swept", remedy)
        if precision in QUANTIZED:
            request_for(swept.onnx, msgspec.structs.replace(recipe, precision=precision), backend)
    has_begun = is_sweep(swept.folder)  # goes on with the data that it has, needed or not
    is_needless = terms.data is None and all(swept.calib_for(one) is None for one in plan.precisions)
    if recipe.calib is not None and is_needless and not has_begun:
        raise UsageError(
            "--data: nothing here needs data", "add --precision fp16, bf16, int8 or fp8, or omit it"
        )
    for streams in plan.streams:
        with_streams(terms.contract, streams)
    for setting in plan.settings():
        recipe = swept.recipe_for(setting)
        make_plans(with_typed_io(swept.onnx, io_request(recipe), backend), recipe, backend)


def _check_recipe(recipe: Recipe) -> None:
    if recipe.dynamic:
        raise UsageError(
            "--dynamic: a sweep builds an engine for each batch size", "omit it, or use `trtopt build`"
        )
    if recipe.compute_capability:
        raise UsageError("--compute-capability: engines for other GPUs cannot be measured here", "omit it")
    if recipe.bounds:
        raise UsageError("bounds: a sweep does not evaluate accuracy", "see `trtopt check`")


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep whose options have been validated."""

    swept: Swept
    plan: SweepPlan
    terms: SweepTerms

    def run(self, listener: Listener) -> SweepReport:
        """Build and measure what is not there yet."""
        with sweep_in_progress(self.swept.folder, self.swept.source.name, self.terms) as report:
            run = _Run(self.swept, report, listener)
            run.all(self.plan)
            run.check_any()
            return run.report


def sweep(request: SweepRequest, listener: Listener = SILENT) -> SweepReport:
    """Build and measure a model at every combination, into a resumable folder; see `trtopt.sweep`."""
    source = Path(request.model)
    folder = Path(request.output) if request.output is not None else Path(f"{source.stem}.sweep")
    onnx = read_onnx(source)
    with executor_for([onnx], request, listener) as (builder, executor):
        return check_sweep(onnx, source, folder, request, builder, executor).run(listener)


@contextmanager
def executor_for(
    models: Sequence[OnnxArtifact], request: SweepRequest, listener: Listener
) -> Iterator[tuple[EngineBuilder, Executor]]:
    """What plans the engines of these models, and what builds and measures them."""
    choice = choose_for_running(request.recipe.backend)
    builder = open_builder(choice.name)
    listener.note(f"sweeping with {builder.backend}: {choice.reason}")
    for onnx in models:
        check_opset(onnx, builder)
    with open_executor(request.recipe, builder, listener.note) as executor:
        executor.require_measuring()
        yield builder, executor


def check_sweep(
    onnx: OnnxArtifact,
    source: Path,
    folder: Path,
    request: SweepRequest,
    builder: EngineBuilder,
    executor: Executor,
) -> CheckedSweep:
    """Validate all options for a model."""
    swept = Swept(onnx, source, request, builder, folder, executor)
    plan, terms = plan_of(swept), terms_of(swept)
    check(plan, swept, terms)
    return CheckedSweep(swept, plan, terms)


_SAVE_S = 1.0


class _Run:
    """A sweep under way; `report` is what is known so far, on disk too."""

    def __init__(self, swept: Swept, report: SweepReport, listener: Listener) -> None:
        self.report = report
        self._swept, self._limit_s, self._listener = swept, swept.request.timeout, listener
        self._data = measured_on(swept.recipe, swept.request.data, listener.note)
        self._builds = Builds(swept, listener)
        self._own: dict[str, SweepPoint] = {}
        self._saved, self._saved_s = report, time.monotonic()

    def all(self, plan: SweepPlan) -> None:
        """Every point of the plan, one after the other where several cannot be built or measured at once."""
        recipe = self._swept.recipe
        self._listener.notes(notes_on(recipe, self._swept.builder, plan.engines))
        settings = list(plan.settings())
        together = recipe.jobs > 1 or self._swept.executor.has_many_hosts
        for some in [settings] if together else [[one] for one in settings]:
            self._measure(some)

    def check_any(self) -> None:
        """Raises MeasurementError if none of this run's points has figures, whatever earlier runs left."""
        if all(point.failure is not None for point in self._own.values()):
            first = next(iter(self._own.values()))
            raise MeasurementError(
                f"none of {len(self._own)} points could be measured; {first.label}: {first.failure}",
                f"all reasons are in {self._swept.folder}; sweep again to try them again",
            )

    def _measure(self, settings: Sequence[SweepSetting]) -> None:
        """Enter a point for each setting: what its result file says, or it is built and measured.

        As many at a time as the executor does; what cannot be built or measured leaves the others alone.
        """
        terms, engines, missing = self.report.terms, dict[str, PointEngine](), list[SweepSetting]()
        for setting in settings:
            engine = self._builds.found(setting)
            there = None if engine is None else draw_point(self._swept.folder, setting, terms, engine)
            if there is not None:
                self._add(*there)
            elif engine is not None:
                engines[setting.key(terms)] = engine
            else:
                missing.append(setting)
        with closing(self._builds.build(missing)) as outcomes:
            for setting, built in outcomes:
                if isinstance(built, TrtoptError):
                    self._add_failed(setting, built)
                else:
                    engines[setting.key(terms)] = built
        wanted = [setting for setting in settings if setting.key(terms) in engines]
        self._listener.plans([setting.label for setting in wanted])
        jobs = [job_of(setting, terms, engines[setting.key(terms)], self._data) for setting in wanted]
        results = self._swept.executor.run_all_jobs(
            jobs, limit_s=self._limit_s, on_progress=self._listener.progress
        )
        with closing(results):
            for index, outcome in results:
                setting = wanted[index]
                try:
                    if isinstance(outcome, TrtoptError):
                        raise outcome
                    engine = engines[setting.key(terms)]
                    self._add(*record_point(self._swept.folder, setting, terms, engine, outcome))
                except OutputError:
                    raise
                except TrtoptError as error:
                    self._add_failed(setting, error)
        if self._saved is not self.report:
            self._save()

    def _add_failed(self, setting: SweepSetting, error: TrtoptError) -> None:
        """Enter a point with what kept it from being one."""
        key = setting.key(self.report.terms)
        self._add(SweepPoint(key=key, setting=setting, failure=error.problem), None)

    def _add(self, point: SweepPoint, environment: Environment | None) -> None:
        """Enter a point; the report is written once a second at most: result files are what counts."""
        others = [one for one in self.report.points if one.key != point.key]
        self._own[point.key] = point
        self.report = msgspec.structs.replace(
            self.report,
            environment=environment or self.report.environment,
            points=tuple(sorted((*others, point), key=_place)),
        )
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self._save()
        self._listener.sweep(self.report)

    def _save(self) -> None:
        save_sweep(self._swept.folder, self.report)
        self._saved, self._saved_s = self.report, time.monotonic()


def _place(point: SweepPoint) -> tuple[str, list[tuple[str, int]], int, int]:
    setting = point.setting
    return setting.precision or "", sorted(setting.axes.items()), setting.streams, setting.batch


Outcomes = dict[Path, SweepReport | TrtoptError]
"""The report of each model, or why there is none."""


def sweep_models(models: Sequence[Path], request: SweepRequest, listener: Listener = SILENT) -> Outcomes:
    """Sweep each model into `output`/MODEL.sweep; one that fails leaves the others alone."""
    _check_names(models)
    graphs = {model: read_onnx(model) for model in models}
    outcomes: Outcomes = {}
    with executor_for(list(graphs.values()), request, listener) as (builder, executor):
        sweeps: list[CheckedSweep] = []
        for model, onnx in graphs.items():
            with _naming(model):
                folder = Path(request.output or "") / f"{model.stem}.sweep"
                sweeps.append(check_sweep(onnx, model, folder, request, builder, executor))
        listener.plans([model.name for model in models])
        together = listener.for_threads()

        def run(place: int, one: CheckedSweep) -> None:
            try:
                outcomes[one.swept.source] = one.run(_of_model(together, place))
            except OutputError:
                raise
            except TrtoptError as error:
                outcomes[one.swept.source] = error
            together.progress(place, DONE, 1.0)

        run_in_threads(executor, [partial(run, place, one) for place, one in enumerate(sweeps)])
    return {model: outcomes[model] for model in models}


def require_reports(outcomes: Outcomes) -> None:
    """Find out whether each model has a report."""
    failed = [f"{model}: {one}" for model, one in outcomes.items() if isinstance(one, TrtoptError)]
    if failed:
        raise MeasurementError(
            f"{len(failed)} of {len(outcomes)} models could not be swept:\n" + "\n".join(failed),
            "run the same command again once the cause is removed: what is measured is kept",
        )


def _check_names(models: Sequence[Path]) -> None:
    stems = [model.stem for model in models]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise UsageError(
            f"{', '.join(twice)}: two models of one name would go into one folder",
            "sweep them with two commands, each with its own -o",
        )


@contextmanager
def _naming(model: Path) -> Iterator[None]:
    """Errors say which of the models they are about."""
    try:
        yield
    except TrtoptError as error:
        raise type(error)(f"{model}: {error.problem}", error.remedy) from None


def _of_model(listener: Listener, place: int) -> Listener:
    """The listener of one model's sweep: a single line says what is done with the model now."""
    labels: list[str] = []

    def plans(jobs: Sequence[str]) -> None:
        labels[:] = jobs

    def progress(index: int, phase: str, _: float | None) -> None:
        if phase != DONE:
            listener.progress(place, f"{labels[index]}: {phase}", None)

    return replace(listener, plans=plans, progress=progress)
