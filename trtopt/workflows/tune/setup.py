"""What a tuning run is given, validated before its baseline is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from trtopt.data.source import fingerprint_of
from trtopt.device.backends import choose_for_running, open_builder
from trtopt.device.building import EngineBuilder
from trtopt.executors.api import Executor
from trtopt.executors.choice import open_executor
from trtopt.files.locks import lock
from trtopt.files.replace_folder import remove_abandoned
from trtopt.measure.contracts import DEFAULT, contract_named
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import WHERE, Recipe, io_request, recipe_json
from trtopt.records import Ledger, MeasuredRunSpread, OnnxArtifact, TuneTerms
from trtopt.workflows.build.engines import check_opset
from trtopt.workflows.build.kept_model import with_typed_io
from trtopt.workflows.compare.run_spread import measured_run_spread
from trtopt.workflows.listener import Listener
from trtopt.workflows.tune.ledger import stored_ledgers
from trtopt.workflows.tune.objective import Measure, measure_for
from trtopt.workflows.tune.request import TuneRequest, batches_of, check_request, parse_budget
from trtopt.workflows.tune.samples import Samples, samples_of
from trtopt.workflows.tune.tuned_folder import TunedFolder

_FOLDER_SUFFIX = ".tuned"
_LIMIT_LEAST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The model, the terms, and the means to build and measure.

    `continues`: the folder has a ledger. `earlier` are this machine's ledgers. `notes` grows: what the user
    should know besides the result.
    """

    source: Path
    onnx: OnnxArtifact
    folder: TunedFolder
    continues: bool
    request: TuneRequest
    terms: TuneTerms
    measure: Measure
    samples: Samples
    builder: EngineBuilder
    executor: Executor
    earlier: tuple[Ledger, ...]
    run_spread: MeasuredRunSpread | None
    listener: Listener
    notes: list[str] = field(default_factory=list)

    @property
    def budget_s(self) -> float:
        """Seconds to spend, those of earlier runs included."""
        return parse_budget(self.request.budget)

    def left_for_candidates_s(self, ledger: Ledger) -> float:
        """Seconds of the budget that are left, but for racing the result against the baseline."""
        return self.budget_s - ledger.spent_s - ledger.baseline.measure_s

    def limit_s(self, enough_s: float) -> float:
        """Seconds that one build or measurement may take: the user's, or what must be enough for any."""
        return self.request.timeout or max(enough_s, _LIMIT_LEAST_S)

    @property
    def quiet(self) -> Listener:
        """The listener to progress alone."""
        return replace(self.listener, note=lambda text: None)


def default_folder(model: Path) -> Path:
    """Where a model is tuned if no place is given."""
    return Path(f"{model.stem}{_FOLDER_SUFFIX}")


@contextmanager
def set_up(
    model: str | Path, output: str | Path | None, request: TuneRequest, listener: Listener
) -> Iterator[Setup]:
    """All that a run needs, with the folder locked until the block ends."""
    source = Path(model)
    choice = choose_for_running(request.recipe.backend)
    check_request(request, choice.name)
    onnx = read_onnx(source)
    builder = open_builder(choice.name)
    listener.note(f"tuning with {builder.backend}: {choice.reason}")
    check_opset(onnx, builder)
    terms = _terms(onnx, request, builder)
    path = Path(output) if output is not None else default_folder(source)
    folder = TunedFolder(path.resolve(), request.cache_dir)
    budget_s = parse_budget(request.budget)
    with lock(folder.path, wait_s=0):
        remove_abandoned(folder.path)  # before anything is read: a killed run may have set the folder aside
        continues = folder.continues(request.resume)
        if request.resume and not continues:
            listener.note(f"{path}: nothing is there to continue: starting")
        with open_executor(request.recipe, builder, listener.note) as executor:
            executor.require_measuring()
            typed = with_typed_io(onnx, io_request(request.recipe), builder.backend)
            with samples_of(request.data, typed, folder.path, budget_s, listener) as samples:
                yield Setup(
                    source=source,
                    onnx=onnx,
                    folder=folder,
                    continues=continues,
                    request=request,
                    terms=terms,
                    measure=measure_for(request.objective, request.rate),
                    samples=samples,
                    builder=builder,
                    executor=executor,
                    earlier=tuple(stored_ledgers(builder.device, builder.backend.name, request.cache_dir)),
                    run_spread=measured_run_spread(builder.device),
                    listener=listener,
                )


def _terms(onnx: OnnxArtifact, request: TuneRequest, builder: EngineBuilder) -> TuneTerms:
    anywhere = {name: getattr(Recipe(), name) for name in WHERE}
    recipe = msgspec.structs.replace(request.recipe, batch=None, backend="auto", calib=None, **anywhere)
    return TuneTerms(
        model_sha256=onnx.sha256,
        backend=builder.backend,
        device=builder.device,
        objective=request.objective,
        rate=request.rate,
        contract=contract_named(request.contract or DEFAULT),
        batch=batches_of(request, onnx.fixed_batch, onnx),
        recipe=recipe_json(recipe),
        data=None if request.data is None else fingerprint_of(request.data),
        bounds=request.bounds.given,
        threshold=request.threshold,
        duration_s=request.duration,
    )
