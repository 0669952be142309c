"""A model at many batch sizes, shapes, precisions and numbers of streams: built, measured, resumed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from trtopt.device.backends import choose_for_running, open_builder
from trtopt.device.building import EngineBuilder
from trtopt.errors import MeasurementError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import Executor, run_in_threads
from trtopt.executors.choice import open_executor
from trtopt.measure.analysis.sweep_points import next_size
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import check_timeout, measured_on
from trtopt.records import Environment, OnnxArtifact, SweepPoint, SweepReport, SweepSetting, SweepTerms
from trtopt.requests.sweep import SweepRequest
from trtopt.workers.protocol import Benched, Result
from trtopt.workflows.listener import DONE, SILENT, Listener
from trtopt.workflows.sweep.builds import Builds, PointEngine, Swept
from trtopt.workflows.sweep.folder import drawn, job_of, measured_point, save_sweep, sweep_in_progress
from trtopt.workflows.sweep.request import SweepPlan, check, plan_of, terms_of
from trtopt.workflows.workbench import check_opset, notes_on


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep whose options have been validated."""

    swept: Swept
    plan: SweepPlan
    terms: SweepTerms
    request: SweepRequest

    def run(self, listener: Listener) -> SweepReport:
        """Build and measure what is not there yet."""
        with sweep_in_progress(self.swept.folder, self.swept.source.name, self.terms) as report:
            data = measured_on(self.request.recipe, self.request.data, listener.note)
            run = _Run(self.swept, report, data, self.request.timeout, listener)
            run.all(self.plan)
            run.check_any()
            return run.report


def sweep(request: SweepRequest, listener: Listener = SILENT) -> SweepReport:
    """Build and measure a model at every combination, into a resumable folder; see `trtopt.sweep`."""
    check_timeout(request.timeout)
    source = Path(request.model)
    folder = Path(request.output) if request.output is not None else Path(f"{source.stem}.sweep")
    onnx = read_onnx(source)
    with executor_for([onnx], request, listener) as (builder, executor):
        return checked(onnx, source, folder, request, builder, executor).run(listener)


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


def checked(
    onnx: OnnxArtifact,
    source: Path,
    folder: Path,
    request: SweepRequest,
    builder: EngineBuilder,
    executor: Executor,
) -> CheckedSweep:
    """Validate all options for a model."""
    swept = Swept(onnx, source, request.recipe, builder, folder, executor, request.cache_dir)
    plan, terms = plan_of(swept, request), terms_of(swept, request)
    check(plan, swept, terms)
    return CheckedSweep(swept, plan, terms, request)


_SAVE_S = 1.0


class _Run:
    """A sweep under way; `report` is what is known so far, on disk too."""

    def __init__(
        self,
        swept: Swept,
        report: SweepReport,
        data: str | None,
        limit_s: float | None,
        listener: Listener,
    ) -> None:
        self.report = report
        self._swept, self._data, self._limit_s, self._listener = swept, data, limit_s, listener
        self._builds = Builds(swept, listener)
        self._ahead: dict[str, SweepPoint] = {}
        self._own: list[SweepPoint] = []
        self._saved_s = 0.0

    def all(self, plan: SweepPlan) -> None:
        """Every point of the plan, and those that refine it."""
        recipe = self._swept.recipe
        self._listener.notes(notes_on(recipe, self._swept.builder, plan.engines))
        if recipe.jobs > 1 or self._swept.executor.has_many_hosts:
            self._builds.build_ahead(plan.settings())
        if self._swept.executor.has_many_hosts:
            self._measure_ahead(plan.settings())
        for curve in plan.curves():
            rates: dict[int, float | None] = {}
            todo = list(plan.batches)
            while todo:
                setting = msgspec.structs.replace(curve, batch=todo.pop(0))
                point = self._point(setting)
                self._own.append(point)
                rates[setting.batch] = None if point.failure is not None else point.samples_per_s
                if not todo and plan.is_adaptive:
                    known = {size: rate for size, rate in rates.items() if rate}
                    further = next_size(known, rates.keys() - known.keys())
                    todo += [] if further is None else [further]

    def check_any(self) -> None:
        """Raises MeasurementError if none of this run's points has figures, whatever earlier runs left."""
        if all(point.failure is not None for point in self._own):
            first = self._own[0]
            raise MeasurementError(
                f"none of {len(self._own)} points could be measured; {first.label}: {first.failure}",
                f"all reasons are in {self._swept.folder}; sweep again to try them again",
            )

    def _measure_ahead(self, settings: Iterable[SweepSetting]) -> None:
        """Measure the points whose engines are there on all hosts at once; others have their turn later."""
        terms, wanted = self.report.terms, list[tuple[SweepSetting, PointEngine]]()
        for setting in settings:
            engine = self._builds.found(setting)
            if engine is not None and drawn(self._swept.folder, setting, terms, engine) is None:
                wanted.append((setting, engine))
        self._listener.plans([setting.label for setting, _ in wanted])
        jobs = [job_of(setting, terms, engine, self._data) for setting, engine in wanted]
        results = self._swept.executor.run_all_jobs(
            jobs, limit_s=self._limit_s, on_progress=self._listener.progress
        )
        with closing(results):
            for index, outcome in results:
                point, environment = self._recorded(*wanted[index], outcome)
                self._ahead[point.key] = point
                self._add(point, environment, at_once=False)
        save_sweep(self._swept.folder, self.report)

    def _point(self, setting: SweepSetting) -> SweepPoint:
        terms = self.report.terms
        if (known := self._ahead.get(setting.key(terms))) is not None:
            return known
        try:
            engine = self._builds.found(setting)
            there = engine and drawn(self._swept.folder, setting, terms, engine)
            point, environment = there or self._measured(setting, engine or self._builds.build(setting))
        except OutputError:
            raise
        except TrtoptError as error:
            point, environment = self._failed(setting, error), None
        self._add(point, environment)
        return point

    def _measured(self, setting: SweepSetting, engine: PointEngine) -> tuple[SweepPoint, Environment | None]:
        job = job_of(setting, self.report.terms, engine, self._data)
        self._listener.plans([setting.label])
        ((_, outcome),) = self._swept.executor.run_all_jobs(
            [job], limit_s=self._limit_s, on_progress=self._listener.progress
        )
        return self._recorded(setting, engine, outcome)

    def _recorded(
        self, setting: SweepSetting, engine: PointEngine, outcome: Result | TrtoptError
    ) -> tuple[SweepPoint, Environment | None]:
        """The point that a job's outcome makes."""
        try:
            if isinstance(outcome, TrtoptError):
                raise outcome
            assert isinstance(outcome, Benched)
            return measured_point(self._swept.folder, setting, self.report.terms, engine, outcome)
        except OutputError:
            raise
        except TrtoptError as error:
            return self._failed(setting, error), None

    def _failed(self, setting: SweepSetting, error: TrtoptError) -> SweepPoint:
        return SweepPoint(key=setting.key(self.report.terms), setting=setting, failure=error.problem)

    def _add(self, point: SweepPoint, environment: Environment | None, *, at_once: bool = True) -> None:
        """Enter a point. Not `at_once`, the report is written once a second: result files are what counts."""
        others = [one for one in self.report.points if one.key != point.key]
        self.report = msgspec.structs.replace(
            self.report,
            environment=environment or self.report.environment,
            points=tuple(sorted((*others, point), key=_place)),
        )
        if at_once or time.monotonic() - self._saved_s >= _SAVE_S:
            save_sweep(self._swept.folder, self.report)
            self._saved_s = time.monotonic()
        self._listener.sweep(self.report)


def _place(point: SweepPoint) -> tuple[str, list[tuple[str, int]], int, int]:
    setting = point.setting
    return setting.precision or "", sorted(setting.axes.items()), setting.streams, setting.batch


Outcomes = dict[Path, SweepReport | TrtoptError]
"""The report of each model, or why there is none."""


def sweep_models(models: Sequence[Path], request: SweepRequest, listener: Listener = SILENT) -> Outcomes:
    """Sweep each model into `output`/MODEL.sweep; one that fails leaves the others alone."""
    check_timeout(request.timeout)
    _check_names(models)
    graphs = {model: read_onnx(model) for model in models}
    outcomes: Outcomes = {}
    with executor_for(list(graphs.values()), request, listener) as (builder, executor):
        sweeps: list[CheckedSweep] = []
        for model, onnx in graphs.items():
            with _naming(model):
                folder = Path(request.output or "") / f"{model.stem}.sweep"
                sweeps.append(checked(onnx, model, folder, request, builder, executor))
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
