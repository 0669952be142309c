"""An engine's outputs over DATA, written batch by batch for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtopt.data import open_data
from trtopt.data.fit import sample_axes
from trtopt.data.readers import write_npz
from trtopt.device.api import ProgressSink, Target
from trtopt.measure.engine import vouched_engine
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.records import Contract, EngineArtifact, Job, Shape, TensorSpec

Arrays = dict[str, NDArray[np.generic]]
ONE_QUERY = Contract(name="outputs", graph=False, transfers=True, queue_ahead=0, sync="spin")


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
    """Run the engine over all samples; returns how many batches there were.

    Context and memory are kept while shapes stay the same.
    """
    engine = vouched_engine(target, Path(job.path), job.artifact, {})
    count = 0
    with closing(target.load(engine)) as session, ExitStack() as held:
        kept: dict[str, Shape] = {}
        for feed in open_data(job.data).batches(job.inputs, job.batch):
            progress("outputs", None)
            data = filled(feed, job.inputs, job.batch, job.artifact)
            shapes = {spec.name: data[spec.name].shape for spec in session.inputs}
            if shapes != kept:
                held.close()
                stream = InferenceStream(target.device, session, shapes, data, ONE_QUERY)
                held.callback(stream.close)
                kept = shapes
            outputs = stream.outputs_for(data)
            write_npz(
                outputs_file(Path(job.folder), count),
                {spec.name: outputs[spec.name] for spec in session.outputs},
            )
            count += 1
    return count


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
