"""Several models, swept alike, each into a folder of its own; on a cluster several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from trtopt.errors import MeasurementError, OutputError, TrtoptError, UsageError
from trtopt.executors.threads import run_in_threads
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import check_timeout
from trtopt.records import SweepReport
from trtopt.workflows.listener import DONE, SILENT, Listener
from trtopt.workflows.sweep.request import SweepRequest
from trtopt.workflows.sweep.sweep import CheckedSweep, checked, executor_for

Outcomes = dict[Path, SweepReport | TrtoptError]
"""The report of each model, or why there is none."""


def sweep_models(
    models: Sequence[Path], output: Path, request: SweepRequest, listener: Listener = SILENT
) -> Outcomes:
    """Sweep each model into `output`/MODEL.sweep; one that fails leaves the others alone."""
    check_timeout(request.timeout)
    _check_names(models)
    graphs = {model: read_onnx(model) for model in models}
    outcomes: Outcomes = {}
    with executor_for(list(graphs.values()), request, listener) as (builder, executor):
        sweeps: list[CheckedSweep] = []
        for model, onnx in graphs.items():
            with _naming(model):
                folder = output / f"{model.stem}.sweep"
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
