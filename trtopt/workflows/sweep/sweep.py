"""A model at many batch sizes, shapes, precisions and numbers of streams: built, measured, resumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby, product
from pathlib import Path

import msgspec

from trtopt.builder.shapes import by_own_names
from trtopt.builder_settings import SWEPT
from trtopt.data import open_data
from trtopt.data.source import fingerprint_of
from trtopt.device.api import EngineBuilder
from trtopt.device.backends import choose_for_running, open_builder
from trtopt.errors import MeasurementError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import Executor
from trtopt.measure.contracts import contract_for
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import GRAPH_PRECISIONS, LOCAL, MAX_AXIS, QUANTIZED, batch_sizes, io_request, measured_on
from trtopt.records import Environment, OnnxArtifact, SweepPoint, SweepReport, SweepSetting, SweepTerms
from trtopt.requests.build import SweepRequest
from trtopt.workflows.build.graph import request_for, with_typed_io
from trtopt.workflows.race import with_streams
from trtopt.workflows.sweep.folder import Builds, Point, Swept, is_sweep, save_sweep, sweep_in_progress
from trtopt.workflows.workbench import check_opset, make_plans, notes_on, open_executor

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32)


def settings_of(onnx: OnnxArtifact, request: SweepRequest) -> tuple[SweepSetting, ...]:
    """Every combination, engine by engine: numbers of streams share one."""
    recipe, fixed = request.recipe, onnx.fixed_batch
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
        for name, sizes in by_own_names(onnx.inputs, axes).items()
    ]
    return tuple(
        SweepSetting(precision=precision, batch=batch, streams=count, axes=dict(chosen))
        for precision in dict.fromkeys(request.precisions or (recipe.precision,))
        for chosen in product(*lengths)
        for batch in sorted(set(batches))
        for count in sorted(set(streams))
    )


def terms_of(onnx: OnnxArtifact, request: SweepRequest, builder: EngineBuilder) -> SweepTerms:
    """What all points share."""
    recipe = request.recipe
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
        model_sha256=onnx.sha256,
        backend=builder.backend,
        device=builder.device,
        contract=contract_for(request.contract, request.terms),
        recipe=msgspec.json.encode(kept, order="deterministic").decode(),
        warmup_s=request.warmup,
        duration_s=request.duration,
        data=None if data is None else fingerprint_of(data),
    )


def check_sweep(
    onnx: OnnxArtifact,
    folder: Path,
    request: SweepRequest,
    builder: EngineBuilder,
    executor: Executor,
) -> Swept:
    """Validate all options for a model before anything is built."""
    settings, terms = settings_of(onnx, request), terms_of(onnx, request, builder)
    swept = Swept(onnx, request, builder, folder, executor, settings, terms)
    recipe, backend = swept.recipe, builder.backend
    if recipe.dynamic:
        raise UsageError(
            "--dynamic: a sweep builds an engine for each batch size", "omit it, or use `trtopt build`"
        )
    if recipe.compute_capability:
        raise UsageError("--compute-capability: engines for other GPUs cannot be measured here", "omit it")
    if recipe.bounds:
        raise UsageError("bounds: a sweep does not evaluate accuracy", "see `trtopt check`")
    precisions = dict.fromkeys(setting.precision for setting in settings)
    for precision in precisions:
        if precision is not None and precision not in GRAPH_PRECISIONS:
            remedy = f"choose among {', '.join(GRAPH_PRECISIONS)}; the sweep itself finds the best"
            raise UsageError(f"--precision {precision}: cannot be swept", remedy)
        if precision in QUANTIZED:
            request_for(onnx, msgspec.structs.replace(recipe, precision=precision), backend)
    has_begun = is_sweep(folder)  # goes on with the data that it has, needed or not
    is_needless = terms.data is None and all(swept.calib_for(one) is None for one in precisions)
    if recipe.calib is not None and is_needless and not has_begun:
        raise UsageError(
            "--data: nothing here needs data", "add --precision fp16, bf16, int8 or fp8, or omit it"
        )
    for setting in settings:
        with_streams(terms.contract, setting.streams)
        recipe = swept.recipe_for(setting)
        make_plans(with_typed_io(onnx, recipe, backend), recipe, backend)
    return swept


def sweep(request: SweepRequest) -> SweepReport:
    """Build and measure a model at every combination, one at a time, into a folder that can be resumed.

    What the folder already has of this model, machine and options is not built or measured again, however the
    earlier run ended. A point that fails is recorded with its reason, and the next run
    tries it again.

    Returns:
        All points of the folder, by precision, axes, streams and batch.

    Raises:
        MeasurementError: not one point could be measured.

    Example:
        >>> report = trtopt.sweep("model.onnx", "swept", batch=[1, 8], backend="onnxruntime", duration=0.1)
        >>> [point.setting.batch for point in report.points]
        [1, 8]
        >>> [row["batch"] for row in report.rows()]
        [1, 8]
    """
    source = Path(request.model)
    folder = Path(request.output) if request.output is not None else Path(f"{source.stem}.sweep")
    onnx = read_onnx(source)
    choice = choose_for_running(request.recipe.backend)
    builder = open_builder(choice.name)
    request.listener.note(f"sweeping with {builder.backend}: {choice.reason}")
    check_opset(onnx, builder)
    with open_executor(request.recipe, builder, request.listener.note, measures=True) as executor:
        swept = check_sweep(onnx, folder, request, builder, executor)
        with sweep_in_progress(folder, source.name, swept.terms) as report:
            run = _Run(swept, report)
            run.all()
            return run.report


_SAVE_S = 1.0


class _Run:
    """A sweep under way; `report` is what is known so far, on disk too."""

    def __init__(self, swept: Swept, report: SweepReport) -> None:
        self.report = report
        self._swept, self._listener = swept, swept.request.listener
        self._data = measured_on(swept.recipe, swept.request.data, self._listener.note)
        self._builds = Builds(swept)
        self._remedies: dict[str, str] = {}
        self._own = {setting.key(swept.terms) for setting in swept.settings}
        self._total = len(self._own | {one.key for one in report.points})
        self._saved, self._saved_s = report, time.monotonic()

    def all(self) -> None:
        """Every point, one engine after the other where several cannot be built or measured at once.

        Raises MeasurementError if none of this run's points has figures, whatever earlier runs left.
        """
        swept, recipe = self._swept, self._swept.recipe
        engines = [
            list(group)
            for _, group in groupby(swept.settings, key=lambda one: (one.precision, one.axes, one.batch))
        ]
        self._listener.notes(notes_on(recipe, swept.builder, len(engines)))
        together = recipe.jobs > 1 or recipe.executor != LOCAL
        for some in [engines] if together else [[one] for one in engines]:
            self._measure(some)
        own = [point for point in self.report.points if point.key in self._own]
        if all(point.failure is not None for point in own):
            others = f"all reasons are in {swept.folder}; sweep again to try them again"
            raise MeasurementError(
                f"none of {len(own)} points could be measured; {own[0].label}: {own[0].failure}",
                "; ".join(filter(None, (self._remedies.get(own[0].key), others))),
            )

    def _measure(self, groups: Sequence[Sequence[SweepSetting]]) -> None:
        """Enter a point for each setting of engines: what its result file says, or it is built and measured.

        As many at a time as the executor does; what cannot be built or measured leaves the others alone.
        """
        self._check_there()
        folder, terms = self._swept.folder, self._swept.terms
        wanted: list[Point] = []
        missing: list[Sequence[SweepSetting]] = []
        for group in groups:
            engine = self._builds.find(group[0])
            if engine is None:
                missing.append(group)
                continue
            for setting in group:
                point = Point(folder, terms, setting, engine)
                if there := point.read():
                    self._add(*there)
                else:
                    wanted.append(point)
        with closing(self._builds.build([group[0] for group in missing])) as outcomes:
            for place, built in outcomes:
                if isinstance(built, OutputError):
                    raise built
                if isinstance(built, TrtoptError):
                    for setting in missing[place]:
                        self._add_failed(setting, built)
                else:
                    wanted += [Point(folder, terms, setting, built) for setting in missing[place]]
        self._listener.plans([point.setting.label for point in wanted])
        jobs = [point.job(self._data) for point in wanted]
        results = self._swept.executor.run_all_jobs(
            jobs, limit_s=self._swept.request.timeout, on_progress=self._listener.progress
        )
        with closing(results):
            for index, outcome in results:
                point = wanted[index]
                try:
                    if isinstance(outcome, TrtoptError):
                        raise outcome
                    self._check_there()
                    self._add(*point.record(outcome))
                except OutputError:
                    raise
                except TrtoptError as error:
                    self._add_failed(point.setting, error)
        if self._saved is not self.report:
            self._save()

    def _check_there(self) -> None:
        """Refuse to begin another folder of its name: the rest of it, and its lock, are elsewhere."""
        if not is_sweep(self._swept.folder):
            problem = f"{self._swept.folder}: was moved or removed while it was swept"
            raise OutputError(problem, "continue it with -o and the name that it has now")

    def _add_failed(self, setting: SweepSetting, error: TrtoptError) -> None:
        """Enter a point with what kept it from being one."""
        key = setting.key(self._swept.terms)
        self._remedies[key] = error.remedy
        self._add(SweepPoint(key=key, setting=setting, failure=error.problem), None)

    def _add(self, point: SweepPoint, environment: Environment | None) -> None:
        """Enter a point; the report is written once a second at most: result files are what counts."""
        others = [one for one in self.report.points if one.key != point.key]
        self.report = msgspec.structs.replace(
            self.report,
            environment=environment or self.report.environment,
            points=tuple(sorted((*others, point), key=_place)),
        )
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self._save()
        self._listener.sweep(self.report, self._total)

    def _save(self) -> None:
        self._check_there()
        save_sweep(self._swept.folder, self.report)
        self._saved, self._saved_s = self.report, time.monotonic()


def _place(point: SweepPoint) -> tuple[str, list[tuple[str, int]], int, int]:
    setting = point.setting
    return setting.precision or "", sorted(setting.axes.items()), setting.streams, setting.batch
