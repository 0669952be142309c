"""What a tuning run is given, validated before its baseline is built: request, samples, folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from trtopt.data import names_function, open_data
from trtopt.data.packing import quantize_array
from trtopt.data.readers import write_npz
from trtopt.data.source import SamplesJob, fingerprint_of, needs_data
from trtopt.device.api import EngineBuilder
from trtopt.device.backends import choose_for_running, open_builder
from trtopt.errors import UsageError
from trtopt.executors.api import Executor, run_job
from trtopt.files.atomic import lock, scratch_beside, scratch_folder
from trtopt.files.outputs import remove_abandoned
from trtopt.measure.contracts import contract_for
from trtopt.measure.loop.interleaved import BLOCK_QUERIES
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import WHERE, Recipe, batch_sizes, recipe_json
from trtopt.records import (
    Ledger,
    Manifest,
    MeasuredRunSpread,
    Objective,
    OnnxArtifact,
    Samples,
    TensorSpec,
    TuneTerms,
)
from trtopt.requests.build import TuneRequest
from trtopt.requests.shared import parse_budget
from trtopt.workflows.build.graph import with_typed_io
from trtopt.workflows.listener import Listener
from trtopt.workflows.race import measured_run_spread
from trtopt.workflows.tune.tuned_folder import TunedFolder, stored_ledgers
from trtopt.workflows.workbench import check_opset, open_executor

_P99 = 99.0
_FOR_P99 = 100
"""No 99th percentile of fewer."""


@dataclass(frozen=True)
class Measure:
    """An objective: the mode it is measured in, its cost and unit, and each block's cost from its samples.

    `per_sample`: costs are those of a sample, so that engines of several batch sizes compare. A block has
    `block_queries` at least.
    """

    mode: Literal["latency", "throughput"]
    cost: str
    unit: str
    costs: Callable[[Samples], list[float]]
    per_sample: bool = False
    block_queries: int = BLOCK_QUERIES


def _per_query_ms(block: Samples) -> list[float]:
    """From the first start to the last end, over the queries."""
    return [(max(block.end_ms) - min(block.start_ms)) / len(block.end_ms)]


MEASURES: dict[Objective, Measure] = {
    "latency": Measure("latency", "latency", "ms", lambda block: block.latency_ms),
    "p99": Measure(
        "latency",
        "p99 latency",
        "ms (p99)",
        lambda block: [float(np.percentile(block.latency_ms, _P99))],
        block_queries=_FOR_P99,
    ),
    "throughput": Measure("throughput", "time per sample", "ms per sample", _per_query_ms, per_sample=True),
}


def check_request(request: TuneRequest) -> None:
    """Validate what no model is needed for."""
    if not request.kinds:
        raise UsageError("--include and --exclude leave no kind of candidate", "exclude fewer kinds")
    if "precision" in request.include and "precision" in request.kinds and request.data is None:
        raise needs_data("--include precision", "to calibrate INT8", "omit --include precision")
    if request.data is not None and not names_function(str(request.data)):  # which a worker imports
        open_data(request.data)
    recipe = request.recipe
    if recipe.dynamic or recipe.ranges:
        raise UsageError("--recipe: an engine for a range of batch sizes cannot be tuned", "omit `dynamic`")
    if recipe.compute_capability:
        raise UsageError(
            "--recipe: engines for other GPUs cannot be measured here", "omit compute_capability"
        )
    if recipe.bounds:
        raise UsageError("--recipe: bounds are for the tuning as a whole", "give --min-cosine instead")


def batches_of(request: TuneRequest, onnx: OnnxArtifact) -> tuple[int, ...]:
    """The batch sizes that may be chosen; the first is the baseline's."""
    fixed = onnx.fixed_batch
    sizes = tuple(dict.fromkeys(batch_sizes(request.batch) or request.recipe.batch or (fixed or 1,)))
    if len(sizes) > 1 and not MEASURES[request.objective].per_sample:
        raise UsageError(
            f"--batch {','.join(map(str, sizes))}: {request.objective} is tuned for one batch size at a time",
            "name one, or choose --objective throughput, which compares batch sizes per sample",
        )
    if fixed is not None and sizes != (fixed,):
        raise UsageError(
            f"--batch {','.join(map(str, sizes))}: {onnx.path} fixes its batch at {fixed}",
            f"omit --batch, or make it dynamic: trtopt rewrite {onnx.path} --dynamic-batch -o dynamic.onnx",
        )
    return sizes


_BATCH = 32


@contextmanager
def samples_of(
    name: str | None, inputs: Sequence[TensorSpec], folder: Path, limit_s: float, listener: Listener
) -> Iterator[tuple[str | None, float]]:
    """The samples that `--data` names, and the seconds that a copy of them took.

    Those of a function are copied to files beside `folder`, which are there until the block ends.
    """
    if name is None or not names_function(name):
        yield name, 0.0
        return
    began_s = time.monotonic()
    with scratch_beside(folder) as scratch:
        copied = scratch / Path(name).name
        copied.mkdir()
        job = SamplesJob(data=name, inputs=tuple(inputs), folder=str(copied))
        listener.plans([f"samples of {name}"])
        run_job(job, limit_s=limit_s, on_progress=listener.progress)
        yield str(copied), time.monotonic() - began_s


@contextmanager
def samples_for(build: Manifest, data: str | None) -> Iterator[str | None]:
    """The user's samples as the build takes them: floats become the values of INT8 inputs.

    They are clipped, as QuantizeLinear does.
    """
    typed = {one.name: one for one in build.io if one.role == "input"}
    scales = {name: one.scale for name, one in typed.items() if one.scale is not None}
    if data is None or not scales:
        yield data
        return
    given = [
        msgspec.structs.replace(spec, dtype=typed[spec.name].model_dtype) if spec.name in scales else spec
        for spec in build.onnx.inputs
    ]
    with scratch_folder() as scratch:
        for number, batch in enumerate(open_data(data).batches(given, _BATCH)):
            levels = {
                name: quantize_array(name, batch[name], scale, saturate=True)
                for name, scale in scales.items()
            }
            write_npz(scratch / f"{number:06}.npz", batch | levels)
        yield str(scratch)


_LIMIT_LEAST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The request, the terms, and the means to build and measure.

    `budget_s` are seconds to spend, those of earlier runs included. `data` are the user's samples, as files,
    whose copy took `copied_s`. `continues`: the folder has a ledger. `earlier` are this machine's ledgers.
    `notes` grows: what the user should know besides the result.
    """

    request: TuneRequest
    budget_s: float
    terms: TuneTerms
    folder: TunedFolder
    continues: bool
    data: str | None
    copied_s: float
    builder: EngineBuilder
    executor: Executor
    earlier: tuple[Ledger, ...]
    run_spread: MeasuredRunSpread | None
    notes: list[str] = field(default_factory=list)

    @property
    def measure(self) -> Measure:
        """What is measured."""
        return MEASURES[self.request.objective]

    def left_for_candidates_s(self, ledger: Ledger) -> float:
        """Seconds of the budget that are left, but for racing the result against the baseline."""
        return self.budget_s - ledger.spent_s - ledger.baseline.measure_s

    def limit_s(self, enough_s: float) -> float:
        """Seconds that one build or measurement may take: the user's, or what must be enough for any."""
        return self.request.timeout or max(enough_s, _LIMIT_LEAST_S)

    @property
    def quiet(self) -> Listener:
        """The listener to progress alone."""
        return replace(self.request.listener, note=lambda text: None)


def default_folder(model: Path) -> Path:
    """Where a model is tuned if no place is given."""
    return Path(f"{model.stem}.tuned")


@contextmanager
def set_up(request: TuneRequest) -> Iterator[Setup]:
    """All that a run needs, with the folder locked until the block ends."""
    source = Path(request.model)
    choice = choose_for_running(request.recipe.backend)
    budget_s = parse_budget(str(request.budget))
    check_request(request)
    onnx = read_onnx(source)
    builder = open_builder(choice.name)
    listener = request.listener
    listener.note(f"tuning with {builder.backend}: {choice.reason}")
    check_opset(onnx, builder)
    terms = _terms(onnx, request, builder)
    path = Path(request.output) if request.output is not None else default_folder(source)
    folder = TunedFolder(path.resolve(), request.cache_dir)
    with lock(folder.path, wait_s=0):
        remove_abandoned(folder.path)  # before anything is read: a killed run may have set the folder aside
        continues = folder.continues(request.resume)
        if request.resume and not continues:
            listener.note(f"{path}: nothing is there to continue: starting")
        with open_executor(request.recipe, builder, listener.note, measures=True) as executor:
            typed = with_typed_io(onnx, request.recipe, builder.backend)
            name = None if request.data is None else str(request.data)
            with samples_of(name, typed.inputs, folder.path, budget_s, listener) as (data, copied_s):
                yield Setup(
                    request=request,
                    budget_s=budget_s,
                    terms=terms,
                    folder=folder,
                    continues=continues,
                    data=data,
                    copied_s=copied_s,
                    builder=builder,
                    executor=executor,
                    earlier=tuple(stored_ledgers(builder.device, builder.backend.name, request.cache_dir)),
                    run_spread=measured_run_spread(builder.device),
                )


def _terms(onnx: OnnxArtifact, request: TuneRequest, builder: EngineBuilder) -> TuneTerms:
    anywhere = {name: getattr(Recipe(), name) for name in WHERE}
    recipe = msgspec.structs.replace(request.recipe, batch=None, backend="auto", calib=None, **anywhere)
    return TuneTerms(
        model_sha256=onnx.sha256,
        backend=builder.backend,
        device=builder.device,
        objective=request.objective,
        contract=contract_for(request.contract),
        batch=batches_of(request, onnx),
        recipe=recipe_json(recipe),
        data=None if request.data is None else fingerprint_of(request.data),
        bounds=request.bounds.given,
        threshold=request.threshold,
        duration_s=request.duration,
    )
