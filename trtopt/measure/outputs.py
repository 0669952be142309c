"""An engine's outputs over DATA, written batch by batch for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtopt.data import open_data
from trtopt.data.fit import sample_axes
from trtopt.data.readers import write_npz
from trtopt.device.api import Context, Device, DeviceBuffer, ProgressSink, Session, Target
from trtopt.device.sized_outputs import SizedCopies
from trtopt.measure.engine import vouched_engine
from trtopt.measure.loop.buffers import array_in, device_buffers, fill, fixed, host_buffers
from trtopt.records import EngineArtifact, Job, Shape, TensorSpec

Arrays = dict[str, NDArray[np.generic]]


class OutputsJob(Job[int], frozen=True, kw_only=True, tag="outputs"):
    """A worker's job: run an engine over `data`, as `trtopt.data.open_data` takes it; its result is how many
    batches there were.

    `inputs` are those of the model that the engine is compared with; batches of `batch` samples are filled up
    to the engine's own. The outputs of each batch go into `folder`, named by `outputs_file`.
    """

    path: str
    artifact: EngineArtifact
    inputs: tuple[TensorSpec, ...]
    data: str
    batch: int
    folder: str


def outputs_file(folder: Path, index: int) -> Path:
    """Where the outputs of batch number `index` are."""
    return folder / f"{index:06}.npz"


def write_outputs(target: Target, job: OutputsJob, progress: ProgressSink) -> int:
    """Run the engine over all samples; returns how many batches there were."""
    session = target.load(vouched_engine(target, Path(job.path), job.artifact, {}))
    index = -1
    try:
        with ExitStack() as resources:
            runner = _Runner(target.device, session, resources)
            for index, feed in enumerate(open_data(job.data).batches(job.inputs, job.batch)):
                progress("outputs", None)
                outputs = runner.run(filled(feed, job.inputs, job.batch, job.artifact))
                write_npz(outputs_file(Path(job.folder), index), outputs)
    finally:
        session.close()
    return index + 1


def filled(feed: Arrays, inputs: Sequence[TensorSpec], batch: int, engine: EngineArtifact) -> Arrays:
    """The batch, its last sample repeated until it is one that the engine admits."""
    first = {spec.name: 0 for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    axes = sample_axes(inputs) or first
    counts = {name: feed[name].shape[axis] for name, axis in axes.items()}
    rows = max(counts.values(), default=batch)
    spans = engine.plan.spans
    size = next((max(span.low, rows) for span in spans if rows <= span.high), rows)
    return {
        name: np.concatenate(
            [array, np.repeat(array.take([-1], axes[name]), size - counts[name], axes[name])], axes[name]
        )
        if name in axes and counts[name] < size
        else array
        for name, array in feed.items()
    }


class _Runner:
    """Runs one batch after the other; the context and device memory are kept while shapes stay the same."""

    def __init__(self, device: Device, session: Session, resources: ExitStack) -> None:
        self._device, self._session = device, session
        self._stream = device.stream()
        resources.callback(self._stream.close)
        self._own = resources.enter_context(ExitStack())
        self._shapes: Mapping[str, Shape] = {}
        self._context: Context | None = None
        self._memory: dict[str, DeviceBuffer] = {}

    def _ready(self, shapes: Mapping[str, Shape]) -> Context:
        """A context for these shapes, bound to memory of its own."""
        if self._context is None or shapes != self._shapes:
            self._own.close()
            context = self._session.context(shapes)
            self._own.callback(context.close)
            self._memory = device_buffers(self._device, context.bindings, self._own)
            context.bind(self._memory)
            self._sized = SizedCopies(self._device, context)
            self._own.callback(self._sized.close)
            self._context, self._shapes = context, shapes
        return self._context

    def run(self, feed: Arrays) -> Arrays:
        """The outputs for one batch of inputs."""
        context = self._ready({spec.name: feed[spec.name].shape for spec in self._session.inputs})
        with ExitStack() as resources:
            host = host_buffers(self._device, context.bindings, feed, resources)
            fill(self._device, context.bindings, self._memory, host, self._stream)
            context.enqueue(self._stream)
            outputs = [binding for binding in fixed(context.bindings) if not binding.is_input]
            for binding in outputs:
                self._device.copy_to_host(host[binding.name], self._memory[binding.name], self._stream)
            self._sized.enqueue(self._stream)
            self._stream.synchronize()
            found = {binding.name: array_in(host[binding.name], binding) for binding in outputs}
            found |= self._sized.arrays()
            return {spec.name: found[spec.name] for spec in self._session.outputs}
