"""One start of an engine in this process, which must be fresh: how long each phase takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Literal

from trtopt.device.api import Target
from trtopt.device.sized_outputs import capture_inference
from trtopt.errors import GraphCaptureError
from trtopt.measure.engine import BenchJob, check_fits, input_batch, vouched_engine
from trtopt.measure.loop.buffers import device_buffers, fill, host_buffers
from trtopt.records import Job, Record
from trtopt.records.bench import ColdStart, StartPhase

_MODULE_LOADING = "CUDA_MODULE_LOADING"


class ColdStarted(Record, frozen=True, kw_only=True):
    """A cold-start job's result; `module_loading` is empty without a GPU."""

    start: ColdStart
    module_loading: str


class ColdStartJob(Job[ColdStarted], frozen=True, kw_only=True, tag="cold_start"):
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


def start_engine(job: ColdStartJob, open_target: Callable[[], Target]) -> ColdStarted:
    """Load the backend and the engine, run it twice and capture it, timing each phase."""
    bench = job.bench
    ms: dict[StartPhase, float] = {"process start": (time.monotonic() - job.began_s) * 1e3}
    with ExitStack() as resources:
        with _timed(ms, "library load"):
            target = resources.enter_context(closing(open_target()))
            check_fits(bench.artifact, target)  # what loads its library late does so here
        with _timed(ms, "read"):
            Path(bench.path).read_bytes()
        engine = vouched_engine(target, Path(bench.path), bench.artifact, bench.shapes)
        with _timed(ms, "deserialise"):
            session = resources.enter_context(closing(target.load(engine)))
        data = input_batch(session, bench.shapes, bench.data, bench.sample_axes)
        with _timed(ms, "context"):
            context = resources.enter_context(closing(session.context(bench.shapes)))
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
        if bench.contract.graph:
            try:
                with _timed(ms, "graph capture"):
                    capture_inference(target.device, context, stream, resources)
            except GraphCaptureError as error:
                refused = error.problem
        on_gpu = target.device.info.kind == "gpu"
    return ColdStarted(
        start=ColdStart(page_cache=job.page_cache, ms=ms, graph_refused=refused),
        module_loading=os.environ.get(_MODULE_LOADING, "DEFAULT") if on_gpu else "",
    )
