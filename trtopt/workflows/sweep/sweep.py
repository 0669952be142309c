"""A model at many batch sizes, shapes, precisions and numbers of streams: built, measured, resumed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trtopt.device.backends import choose_for_running, open_builder
from trtopt.errors import MeasurementError, OutputError, TrtoptError
from trtopt.measure.analysis.sweep_refinement import next_size
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import check_timeout
from trtopt.records import Environment, SweepPoint, SweepReport, SweepSetting
from trtopt.workflows.build.engines import check_opset, notes_on
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.sweep.builds import Builds, Swept
from trtopt.workflows.sweep.folder import save_sweep, sweep_in_progress
from trtopt.workflows.sweep.points import drawn, measure_point
from trtopt.workflows.sweep.request import SweepPlan, SweepRequest, check, plan_of, terms_of


def sweep(
    model: str | Path,
    output: str | Path | None,
    request: SweepRequest,
    listener: Listener = SILENT,
) -> SweepReport:
    """Build and measure a model at every combination, into a folder that can be resumed; see `trtopt.sweep`.

    Raises:
        UsageError: options that are wrong or contradict each other; before anything is built.
        ArtifactError: the folder holds a sweep of another model or machine, or on other terms.
        MeasurementError: not one point could be measured.
    """
    check_timeout(request.timeout)
    source = Path(model)
    folder = Path(output) if output is not None else Path(f"{source.stem}.sweep")
    swept = _opened(source, folder, request, listener)
    plan = plan_of(swept, request)
    terms = terms_of(swept, request)
    check(plan, swept, terms)
    with sweep_in_progress(folder, source.name, terms) as report:
        data = str(request.data) if request.data is not None else None
        run = _Run(swept, report, data, request.timeout, listener)
        run.all(plan)
        run.check_any(plan)
        return run.report


def _opened(source: Path, folder: Path, request: SweepRequest, listener: Listener) -> Swept:
    onnx = read_onnx(source)
    choice = choose_for_running(request.recipe.backend)
    builder = open_builder(choice.name)
    listener.note(f"sweeping with {builder.backend}: {choice.reason}")
    check_opset(onnx, builder)
    return Swept(onnx, source, request.recipe, builder, folder, request.cache_dir)


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

    def all(self, plan: SweepPlan) -> None:
        """Every point of the plan, and those that refine it."""
        recipe = self._swept.recipe
        self._listener.notes(notes_on(recipe, self._swept.builder, plan.engines))
        if recipe.jobs > 1:
            self._builds.build_ahead(plan.settings())
        for curve in plan.curves():
            rates: dict[int, float | None] = {}
            todo = list(plan.batches)
            while todo:
                setting = msgspec.structs.replace(curve, batch=todo.pop(0))
                point = self._point(setting)
                rates[setting.batch] = None if point.failure is not None else point.samples_per_s
                if not todo and plan.is_adaptive:
                    known = {size: rate for size, rate in rates.items() if rate}
                    further = next_size(known, rates.keys() - known.keys())
                    todo += [] if further is None else [further]

    def check_any(self, plan: SweepPlan) -> None:
        """Raises MeasurementError if nothing was measured."""
        if not self.report.measured:
            first = next(point for point in self.report.points if point.failure is not None)
            raise MeasurementError(
                f"none of {len(self.report.points)} points could be measured; {first.label}: {first.failure}",
                f"all reasons are in {self._swept.folder}; sweep again to try them again",
            )

    def _point(self, setting: SweepSetting) -> SweepPoint:
        terms = self.report.terms
        try:
            engine = self._builds.found(setting)
            there = engine and drawn(self._swept.folder, setting, terms, engine)
            point, environment = there or measure_point(
                self._swept.folder,
                setting,
                terms,
                engine or self._builds.build(setting),
                self._data,
                self._limit_s,
                self._listener,
            )
        except OutputError:
            raise
        except TrtoptError as error:
            point, environment = (
                SweepPoint(key=setting.key(terms), setting=setting, failure=error.problem),
                None,
            )
        self._add(point, environment)
        return point

    def _add(self, point: SweepPoint, environment: Environment | None) -> None:
        others = [one for one in self.report.points if one.key != point.key]
        self.report = msgspec.structs.replace(
            self.report,
            environment=environment or self.report.environment,
            points=tuple(sorted((*others, point), key=_place)),
        )
        save_sweep(self._swept.folder, self.report)
        self._listener.sweep(self.report)


def _place(point: SweepPoint) -> tuple[str, list[tuple[str, int]], int, int]:
    setting = point.setting
    return setting.precision or "", sorted(setting.axes.items()), setting.streams, setting.batch
