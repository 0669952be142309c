"""One engine in a worker: vouched for, measured in passes of their own, described, started, run over data."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtopt.data import open_data
from trtopt.data.fit import sample_axes
from trtopt.data.random_inputs import random_batch
from trtopt.data.readers import write_npz
from trtopt.device.api import AllocationTracker, ProgressSink, Session, Target
from trtopt.device.memory_check import require_memory, warn_if_short
from trtopt.device.sized_outputs import capture_inference
from trtopt.errors import DeviceError, GraphCaptureError, IncompatibleEngineError, MeasurementError
from trtopt.files.atomic import writing
from trtopt.files.manifests import read_verified
from trtopt.measure.contracts import with_terms
from trtopt.measure.load.arrivals import Load
from trtopt.measure.load.load_pass import LoadSettings, measure_load, search_load
from trtopt.measure.loop.inference_stream import (
    InferenceStream,
    Inputs,
    device_buffers,
    fill,
    host_buffers,
    sets_of,
)
from trtopt.measure.loop.profiling_passes import follow_memory, time_layers
from trtopt.measure.loop.sampling import Subject, measure
from trtopt.measure.loop.stopping import Limits
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import (
    Backend,
    BenchPoint,
    Contract,
    DeviceInfo,
    EngineArtifact,
    EngineRef,
    Environment,
    Job,
    KernelPass,
    LoadSearch,
    Record,
    Shape,
    ShapeRange,
    TensorSpec,
    TracedRun,
)
from trtopt.records.bench import ColdStart, StartPhase


class LoadedEngine(Record, frozen=True, kw_only=True):
    """An engine file to load, if its hash is the artifact's, at a batch size and these shapes of its inputs.

    The same file twice gives two that share nothing. `sample_axes` are its model's, of `data.fit`.
    """

    path: str
    artifact: EngineArtifact
    batch: int
    shapes: dict[str, Shape]
    sample_axes: dict[str, int] = {}  # noqa: RUF012  (msgspec copies mutable defaults)

    @property
    def ref(self) -> EngineRef:
        """How a measurement names it."""
        return EngineRef(path=self.path, sha256=self.artifact.sha256, label=self.artifact.plan.label)


def check_fits(artifact: EngineArtifact, target: Target) -> None:
    """Engines fit one flavour, version and GPU model."""
    built, here = artifact.plan.backend, target.backend
    remedy = "build again on this machine, or measure where it was built"
    if built != here:
        raise IncompatibleEngineError(f"{artifact.path}: built by {built}, this machine has {here}", remedy)
    gpu = target.device.info
    if artifact.device.kind == "gpu" and (artifact.device.name, artifact.device.compute_capability) != (
        gpu.name,
        gpu.compute_capability,
    ):
        raise IncompatibleEngineError(
            f"{artifact.path}: built for {artifact.device.name} (compute capability "
            f"{artifact.device.compute_capability}), this machine has {gpu.name} ({gpu.compute_capability})",
            remedy,
        )


def vouched_engine(target: Target, engine: LoadedEngine) -> bytes:
    """The engine's content, once it fits, its hash is right and the device has room for the least it takes.

    That is its file, for its weights are in it, and one set of inputs and outputs, which count where the
    engine knows their shapes.
    """
    artifact = engine.artifact
    check_fits(artifact, target)
    content = read_verified(Path(engine.path), artifact.sha256)
    tensors = _nbytes((*artifact.inputs, *artifact.outputs), engine.shapes)
    require_memory(
        artifact.path,
        {"engine": len(content), "inputs and outputs": tensors},
        target.device.device_memory(),
        "use a smaller batch or model",
    )
    return content


def check_stream_memory(session: Session, engine: LoadedEngine, contract: Contract) -> None:
    """Warn if the streams of a contract may find too little room.

    A stream takes what the engine states for a context's activations, at the largest shapes that it admits,
    and its sets of inputs and outputs.
    """
    tensors = _nbytes((*session.inputs, *session.outputs), engine.shapes)
    parts = {
        "activations": contract.streams * (session.device_memory_bytes or 0),
        "inputs and outputs": contract.streams * sets_of(contract) * tensors,
    }
    warn_if_short(engine.artifact.path, parts, session.device.device_memory())


def _nbytes(specs: Iterable[TensorSpec], shapes: Mapping[str, Shape]) -> int:
    """Bytes of the tensors whose shapes are given or known."""
    known = ((spec.dtype, shapes.get(spec.name, spec.shape)) for spec in specs)
    return sum(
        numpy_dtype(dtype).itemsize * math.prod(axis for axis in shape if isinstance(axis, int))
        for dtype, shape in known
        if all(isinstance(axis, int) for axis in shape)
    )


# ── its passes ────────────────────────────────────────────────────────────────────────────────────────


class BenchResult(Record, frozen=True, kw_only=True):
    """A bench job's result."""

    point: BenchPoint
    environment: Environment


class BenchJob(Job[BenchResult], frozen=True, kw_only=True, tag="bench"):
    """A bench worker's job.

    `data` is what `trtopt.data.open_data` takes; None gives seeded random input. `nvtx` and `cuda_profiler`
    are for `device.nvtx`.
    """

    engine: LoadedEngine
    data: str | None
    contract: Contract
    warmup_s: float
    duration_s: float
    layers: bool
    memory: bool
    stop_early: bool = False
    load: LoadSettings | None = None
    nvtx: bool = False
    cuda_profiler: bool = False


def bench_engine(target: Target, job: BenchJob, progress: ProgressSink) -> BenchPoint:
    """Latency, throughput and, if requested, load, layers and memory.

    If the device fails once there are latencies, the point records it and lacks the later passes.
    """
    engine = vouched_engine(target, job.engine)
    made: dict[str, Any] = {}
    try:
        _take_passes(target, engine, job, progress, made)
    except (DeviceError, MeasurementError) as error:
        if "latency" not in made:
            raise
        return BenchPoint(batch=job.engine.batch, **made, failure=error.problem)
    return BenchPoint(batch=job.engine.batch, **made)


def _take_passes(
    target: Target, engine: bytes, job: BenchJob, progress: ProgressSink, made: dict[str, Any]
) -> None:
    """Add the passes to `made`, by their names in `BenchPoint`; one that reports a failure is the last."""
    device, terms, load = target.device, job.contract, job.load
    limits = Limits(warmup_s=job.warmup_s, duration_s=job.duration_s, stop_early=job.stop_early)
    passes: dict[str, Callable[[], Any]] = {}

    def take(name: str, run: Callable[[], Any]) -> None:
        progress(name.replace("_", " "), len(made) / (len(passes) + job.memory))
        with device.annotate(name.replace("_", " ")):
            made[name] = run()
        if getattr(made[name], "failure", None) is not None:
            raise DeviceError(made[name].failure, "what was measured until then is kept")

    with closing(target.load(engine)) as session:
        subject = subject_of(session, job)
        check_stream_memory(session, job.engine, terms)
        sample = partial(measure, subject)
        passes["latency"] = partial(sample, terms, "latency", limits)
        if terms.queue_ahead or terms.streams > 1:
            passes["throughput"] = partial(sample, terms, "throughput", limits)
        if terms.streams > 1:
            passes["single_stream"] = partial(sample, with_terms(terms, {"streams": 1}), "throughput", limits)
        if load is not None and load.goal is not None:

            def search() -> LoadSearch:
                closed = (made["latency"], made.get("throughput", made["latency"]))
                return search_load(subject, terms, load, closed, limits, progress)

            passes["load_search"] = search
        elif load is not None and load.rate is not None:
            arrivals = Load(load.rate, load.arrivals)
            passes["load"] = partial(measure_load, subject, terms, arrivals, limits)
        if job.layers:
            passes["layers"] = partial(time_layers, subject, graph=terms.graph)
        for name, run in passes.items():
            take(name, run)
    if job.memory:

        def load_tracked(tracker: AllocationTracker) -> Subject:
            return replace(subject, session=target.load(engine, track=tracker))

        take("memory", partial(follow_memory, device, load_tracked, len(engine)))


def subject_of(session: Session, job: BenchJob) -> Subject:
    """What a job measures, with one batch of its data."""
    data = input_batch(session, job.engine, job.data)
    return Subject(session, job.engine.ref, job.engine.batch, job.engine.shapes, data)


def input_batch(session: Session, engine: LoadedEngine, data: str | None) -> Inputs:
    """One batch of what `data` names (see `trtopt.data.open_data`), or of seeded random input.

    The sample axes are the model's, which an engine of fixed shapes does not tell.
    """
    if data is None:
        return random_batch(session.inputs, engine.shapes)
    return open_data(data).first_batch(session.inputs, engine.shapes, engine.sample_axes)


# ── its kernels: jobs of their own, so that the tracer is in no process that measures latency ─────────


class KernelJob(Job[KernelPass], frozen=True, kw_only=True, tag="kernels"):
    """A worker's job: record the kernels of what `bench` measures."""

    bench: BenchJob


class RangesJob(Job[tuple[TracedRun, ...]], frozen=True, kw_only=True, tag="ranges"):
    """A worker's job: record in which of its layers the engine launches each kernel.

    See `records.KernelPass.marked_runs`.
    """

    bench: BenchJob


@contextmanager
def loaded(target: Target, bench: BenchJob) -> Iterator[Subject]:
    """What a measurement measures."""
    with closing(target.load(vouched_engine(target, bench.engine))) as session:
        yield subject_of(session, bench)


# ── its own description, for external engines without a manifest ──────────────────────────────────────


class EngineDescription(Record, frozen=True, kw_only=True):
    """A describe job's result, and what it was loaded by; `profiles` as `device.api.Session` has them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    backend: Backend
    device: DeviceInfo
    context_bytes: int | None = None
    layers: str | None = None
    """In the backend's own JSON, if they were requested."""


class DescribeJob(Job[EngineDescription], frozen=True, kw_only=True, tag="describe"):
    """A worker's job: describe an engine. The file is loaded only if its hash is `sha256`."""

    path: str
    sha256: str
    backend: str
    with_layers: bool = False


def describe(target: Target, job: DescribeJob) -> EngineDescription:
    """Load the engine and read its inputs, outputs and profiles; its layers as of what it is tuned for."""
    content = read_verified(Path(job.path), job.sha256, "command line")
    require_memory(
        job.path,
        {"engine": len(content)},
        target.device.device_memory(),
        "free the device, or use a smaller one",
    )
    with closing(target.load(content)) as session:
        return EngineDescription(
            inputs=session.inputs,
            outputs=session.outputs,
            profiles=tuple(map(dict, session.profiles)),
            backend=target.backend,
            device=target.device.info,
            context_bytes=session.device_memory_bytes,
            layers=_layers_of(session) if job.with_layers else None,
        )


def _layers_of(session: Session) -> str | None:
    if not session.profiles:
        return None
    shapes = {name: shapes.opt for name, shapes in session.profiles[0].items()}
    with closing(session.context(shapes)) as context:
        return context.inspect()


# ── one start of it in this process, which must be fresh: how long each phase takes ───────────────────


_MODULE_LOADING = "CUDA_MODULE_LOADING"


class StartResult(Record, frozen=True, kw_only=True):
    """A cold-start job's result; `module_loading` is empty without a GPU."""

    start: ColdStart
    module_loading: str


class ColdStartJob(Job[StartResult], frozen=True, kw_only=True, tag="cold_start"):
    """A worker's job: start the engine once. `began_s` is when its process was started, by `time.monotonic`.

    `page_cache` is the state that the engine's file was brought into before.
    """

    bench: BenchJob
    page_cache: Literal["warm", "cold"]
    began_s: float


@contextmanager
def _timed(ms: dict[StartPhase, float], phase: StartPhase) -> Iterator[None]:
    """Note how long the block takes; a block that fails has no time."""
    began_s = time.monotonic()
    yield
    ms[phase] = (time.monotonic() - began_s) * 1e3


def start_engine(job: ColdStartJob, open_target: Callable[[], Target]) -> StartResult:
    """Load the backend and the engine, run it twice and capture it, timing each phase."""
    engine = job.bench.engine
    ms: dict[StartPhase, float] = {"process start": (time.monotonic() - job.began_s) * 1e3}
    with ExitStack() as resources:
        with _timed(ms, "library load"):
            target = resources.enter_context(closing(open_target()))
            check_fits(engine.artifact, target)  # what loads its library late does so here
        with _timed(ms, "read"):
            Path(engine.path).read_bytes()
        content = vouched_engine(target, engine)
        with _timed(ms, "deserialise"):
            session = resources.enter_context(closing(target.load(content)))
        data = input_batch(session, engine, job.bench.data)
        with _timed(ms, "context"):
            context = resources.enter_context(closing(session.context(engine.shapes)))
            stream = resources.enter_context(closing(target.device.stream()))
            buffers = device_buffers(target.device, context.bindings, resources)
            context.bind(buffers)
        host = host_buffers(target.device, context.bindings, data, resources)
        fill(target.device, context.bindings, buffers, host, stream)
        inferences: tuple[StartPhase, ...] = ("first inference", "second inference")
        for phase in inferences:
            with _timed(ms, phase):
                context.enqueue(stream)
                stream.synchronize()
        refused = None
        if job.bench.contract.graph:
            try:
                with _timed(ms, "graph capture"):
                    capture_inference(target.device, context, stream, resources)
            except GraphCaptureError as error:
                refused = error.problem
        on_gpu = target.device.info.kind == "gpu"
    return StartResult(
        start=ColdStart(page_cache=job.page_cache, ms=ms, graph_refused=refused),
        module_loading=os.environ.get(_MODULE_LOADING, "DEFAULT") if on_gpu else "",
    )


# ── its outputs over DATA, written batch by batch for comparison ──────────────────────────────────────


Arrays = dict[str, NDArray[np.generic]]
ONE_QUERY = Contract(name="outputs", graph=False, transfers=True, queue_ahead=0, sync="spin")


class OutputsJob(Job[int], frozen=True, kw_only=True, tag="outputs"):
    """A worker's job: run an engine over `data`, as `trtopt.data.open_data` takes it; its result is how many
    batches there were.

    `inputs` are those of the model that the engine is compared with; batches are filled up to the engine's
    own. The outputs of each of the first `batches`, or of all, go into `folder`, named by
    `outputs_file`.
    """

    engine: LoadedEngine
    inputs: tuple[TensorSpec, ...]
    data: str
    folder: str
    batches: int | None = None


def outputs_file(folder: Path, index: int) -> Path:
    """Where the outputs of batch number `index` are."""
    return folder / f"{index:06}.npz"


def write_outputs(target: Target, job: OutputsJob, progress: ProgressSink) -> int:
    """Run the engine over all samples; returns how many batches there were.

    Context and memory are kept while shapes stay the same.
    """
    count = 0
    with closing(target.load(vouched_engine(target, job.engine))) as session, ExitStack() as held:
        kept: dict[str, Shape] = {}
        for feed in islice(open_data(job.data).batches(job.inputs, job.engine.batch), job.batches):
            progress("outputs", None)
            data = filled(feed, job.inputs, job.engine)
            shapes = {spec.name: data[spec.name].shape for spec in session.inputs}
            if shapes != kept:
                held.close()
                stream = InferenceStream(session, shapes, data, ONE_QUERY)
                held.callback(stream.close)
                kept = shapes
            outputs = stream.outputs_for(data)
            with writing(file := outputs_file(Path(job.folder), count)):
                write_npz(file, {spec.name: outputs[spec.name] for spec in session.outputs})
            count += 1
    return count


def filled(feed: Arrays, inputs: Sequence[TensorSpec], engine: LoadedEngine) -> Arrays:
    """The batch, its last sample repeated until it is one that the engine admits."""
    first = {spec.name: 0 for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    axes = sample_axes(inputs) or first
    counts = {name: feed[name].shape[axis] for name, axis in axes.items()}
    rows = max(counts.values(), default=engine.batch)
    spans = engine.artifact.plan.spans
    size = next((max(span.low, rows) for span in spans if rows <= span.high), rows)
    return {
        name: np.concatenate(
            [array, np.repeat(array.take([-1], axes[name]), size - counts[name], axes[name])], axes[name]
        )
        if name in axes and counts[name] < size
        else array
        for name, array in feed.items()
    }
