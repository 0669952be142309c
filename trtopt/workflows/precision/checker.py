"""Models and engines compared with the model that is right, on ONNX Runtime, sample by sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.data import SampleSource, names_function, open_data
from trtopt.data.feeds import specs_of
from trtopt.data.fit import samples_in
from trtopt.data.random_inputs import random_batch
from trtopt.data.readers import read_npz, write_npz
from trtopt.device.ort.reference import Unoptimised, crash_context
from trtopt.errors import DataError, ModelError, UsageError
from trtopt.executors.api import THIS_HOST, Executor, run_job
from trtopt.export.source_module import sibling_function
from trtopt.export.spec import find, read_spec
from trtopt.files.atomic import scratch_folder
from trtopt.measure.engine import LoadedEngine, OutputsJob, filled, outputs_file
from trtopt.onnxio import model_file
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import data_dependent_outputs
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.prepare import prepare
from trtopt.precision.bounds import Bounds, violations
from trtopt.precision.compare import Deviation, add_outputs, open_model, without_padding
from trtopt.printable import visible
from trtopt.records import OnnxArtifact, TensorSpec
from trtopt.records.precision import CheckedSubject, TaskScore, Violation
from trtopt.records.tensors import TypedTensor
from trtopt.rewrite.typed_io.typed_graph import type_reference
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.listener import SILENT, Listener

_BATCH = 8
_REMEMBERED_BYTES = 256 << 20
"""How much of the reference's outputs is kept in memory."""
_INDICES = {np.dtype(np.int32), np.dtype(np.int64)}
"""An engine may take the one for the other."""
Array = NDArray[np.generic]
Arrays = dict[str, Array]


def run_over(
    engine: LoadedEngine,
    inputs: Sequence[TensorSpec],
    data: str | Path,
    folder: Path,
    executor: Executor = THIS_HOST,
    *,
    batches: int | None = None,
    limit_s: float | None = None,
    listener: Listener = SILENT,
) -> Iterator[Arrays]:
    """Run an engine over DATA, see `OutputsJob`; its outputs of each batch, which pass through `folder`."""
    if names_function(str(data)):
        for _ in range(2):  # what is no longer the same here was another in the worker, too
            next(open_data(data).batches(inputs, engine.batch))
    job = OutputsJob(
        engine=engine,
        inputs=tuple(inputs),
        data=str(data),
        folder=str(folder),
        batches=batches,
    )
    count = run_job(job, executor, limit_s=limit_s, on_progress=listener.progress)
    dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in engine.artifact.outputs}
    return (
        {  # .npz files have no name for types that NumPy lacks, such as bfloat16
            name: array.view(dtypes[name]) if array.dtype.kind == "V" else array
            for name, array in read_npz(outputs_file(folder, index)).items()
        }
        for index in range(count)
    )


class Checker:
    """Holds the reference and judges one subject after the other against it."""

    def __init__(
        self, against: OnnxArtifact, task: Task | None, bounds: Bounds, executor: Executor = THIS_HOST
    ) -> None:
        path = Path(against.path)
        self.artifact, self._name, self._executor = against, path.name, executor
        self.model = prepare(model_file.load(path))
        self._specs = specs_of(self.model.proto)
        self._answers: dict[bytes, Arrays] = {}
        self._room = _REMEMBERED_BYTES
        self._task, self._bounds = task, bounds

    @cached_property
    def _reference(self) -> Unoptimised:
        return open_model(self.model)

    def model_file(self, name: str, other: ModelFile, source: SampleSource) -> CheckedSubject:
        """Compare a model, which runs on ONNX Runtime too, its 16-bit arithmetic emulated."""
        self._check_inputs(name, specs_of(other.proto))
        session = open_model(other)

        def run(feed: Arrays) -> Arrays:
            with crash_context(name):
                return session.run(session.fit(feed))

        outputs = (run(feed) for feed, _ in self._feeds(source, _BATCH))
        return self._judge(name, self._feeds(source, _BATCH), outputs)

    def _check_inputs(self, name: str, given: Sequence[TensorSpec]) -> None:
        """Refuse what takes other inputs; floats of another width are converted."""
        wanted = {spec.name: spec for spec in self._specs}
        remedy = "check it against the model that it was made from"
        if {spec.name for spec in given} != wanted.keys():
            ours, theirs = (
                ", ".join(map(visible, sorted(spec.name for spec in specs))) for specs in (given, self._specs)
            )
            raise ModelError(
                f"{name} takes other inputs than the reference: {ours}; that takes {theirs}", remedy
            )
        for spec in given:
            if not _takes_alike(spec, wanted[spec.name]):
                ours, theirs = (
                    f"{one.dtype} ({', '.join(map(str, one.shape))})" for one in (spec, wanted[spec.name])
                )
                raise ModelError(
                    f"{name} takes {visible(spec.name)!r} as {ours}, and the reference as {theirs}", remedy
                )

    def take_inputs_of(self, tensors: Sequence[TypedTensor]) -> None:
        """Give the reference typed inputs and outputs, unless it has them itself."""
        if tensors:
            self.model = type_reference(self.model, tensors)
            self._specs = specs_of(self.model.proto)

    def engines(
        self,
        wanted: Sequence[LoadedEngine],
        data: str | Path | None,
        listener: Listener,
        limit_s: float | None,
    ) -> list[CheckedSubject]:
        """Compare engines; see `engine`."""
        listener.plans([f"batch{one.batch}" for one in wanted])
        return [
            self.engine(engine, data, listener.of_job(place), limit_s) for place, engine in enumerate(wanted)
        ]

    def engine(
        self,
        engine: LoadedEngine,
        data: str | Path | None,
        listener: Listener,
        limit_s: float | None = None,
        batches: int | None = None,
    ) -> CheckedSubject:
        """Compare an engine, which the executor runs over DATA or so many of its batches."""
        name = engine.artifact.path
        self._check_inputs(name, engine.artifact.inputs)
        with scratch_folder() as scratch:
            if data is None:
                data = scratch / "random.npz"
                write_npz(data, random_batch(self._specs, engine.shapes))
            outputs = run_over(
                msgspec.structs.replace(engine, shapes={}),  # they are the samples'
                self._specs,
                data,
                scratch,
                self._executor,
                batches=batches,
                limit_s=limit_s,
                listener=listener,
            )
            feeds = islice(self._feeds(open_data(data), engine.batch), batches)
            return self._judge(name, feeds, outputs, engine)

    def _feeds(self, source: SampleSource, size: int) -> Iterator[tuple[Arrays, Array | None]]:
        """Batches of inputs, each with its labels if the task wants them and the data has them."""
        has_labels = self._task is not None and source.has(LABELS.name)
        specs = (*self._specs, LABELS) if has_labels else self._specs
        for feed in source.batches(specs, size):
            labels = feed.pop(LABELS.name) if has_labels else None
            yield feed, labels

    def _answer(self, feed: Arrays) -> Arrays:
        """The reference's outputs, remembered while there is room: subjects are judged on the same data."""
        key = _digest(feed)
        if key in self._answers:
            return self._answers[key]
        with crash_context(f"the reference, {self._name}"):
            wanted = self._reference.run(feed)
        size = sum(array.nbytes for array in wanted.values())
        if size <= self._room:
            self._room -= size
            self._answers[key] = wanted
        return wanted

    def _judge(
        self,
        name: str,
        feeds: Iterable[tuple[Arrays, Array | None]],
        outputs: Iterable[Arrays],
        engine: LoadedEngine | None = None,
    ) -> CheckedSubject:
        found: dict[str, Deviation] = {}
        sized = data_dependent_outputs(self.model.proto.graph)
        samples = 0
        for (feed, labels), got in zip(feeds, outputs, strict=True):
            # where sizes of outputs depend on data, the reference takes what the engine did
            alike = filled(feed, self._specs, engine) if engine is not None and sized else feed
            wanted = self._answer(alike)
            count = samples_in(feed, self._specs)
            got = {
                key: array if key in sized else without_padding(array, wanted.get(key), count)
                for key, array in got.items()
            }
            add_outputs(found, wanted, got, sized)
            if self._task is not None:
                self._task.add(wanted, got, labels)
            samples += count
        if not found:
            raise ModelError(f"{name} has no numeric output", "only numbers can be compared")
        results = tuple(item.result() for item in found.values())
        missed = violations(results, self._bounds)
        if self._bounds.any and not any(one.values or one.resized for one in results):
            (one, *_), what = results, "number of compared values"
            missed = (Violation(output=one.output, measure=what, found=0, bound=1),)
        return CheckedSubject(
            name=name,
            backend=ONNXRUNTIME if engine is None else str(engine.artifact.plan.backend),
            batch=None if engine is None else engine.batch,
            samples=samples,
            outputs=results,
            task=self._task.score() if self._task is not None else None,
            violations=missed,
        )


def _takes_alike(spec: TensorSpec, reference: TensorSpec) -> bool:
    """Whether an input takes the samples of the reference's; the first axis may have another length."""
    dtypes = {numpy_dtype(one.dtype) for one in (spec, reference)}
    converted = all(one.kind in "fV" for one in dtypes) or dtypes == _INDICES
    pairs = zip(spec.shape[1:], reference.shape[1:], strict=False)
    return (len(dtypes) == 1 or converted) and all(
        isinstance(ours, str) or isinstance(theirs, str) or ours == theirs for ours, theirs in pairs
    )


def _digest(feed: Arrays) -> bytes:
    whole = hashlib.blake2b()
    for name, array in feed.items():
        whole.update(f"{name} {array.dtype} {array.shape}".encode())
        whole.update(array.tobytes())
    return whole.digest()


# A model's task metric, as its file in the collection names it.


LABELS = TensorSpec(name="labels", dtype="int64", shape=("samples",))
"""What DATA calls the right answers, one a sample."""


class Task:
    """Collects one output of both sides, and the labels where there are any, and scores them.

    A metric takes (outputs, labels) where the data has labels, else (reference's outputs, outputs).
    """

    def __init__(self, model: str) -> None:
        path = find(model)
        spec = read_spec(path)
        if spec.metric is None or not spec.outputs:
            raise UsageError(f"--model {model}: its file names no metric", "omit --model")
        self._metric, self._output = spec.metric, spec.outputs[0]
        self.data = path.parent / spec.data if spec.data is not None else None
        self._function = sibling_function(path, spec.metric)
        self._kept: tuple[list[Array], ...] = ([], [], [])

    def add(self, wanted: Arrays, got: Arrays, labels: Array | None) -> None:
        """Take a batch of both sides' outputs."""
        if self._output not in wanted:
            raise UsageError(
                f"the model has no output {self._output!r}",
                "check that --model names the model that it was made from",
            )
        for kept, array in zip(self._kept, (wanted[self._output], got[self._output], labels), strict=True):
            if array is not None:
                kept.append(array)

    def score(self) -> TaskScore:
        """The metric over all added batches; then starts again."""
        reference, checked, labels = (np.concatenate(kept) if kept else None for kept in self._kept)
        self._kept = ([], [], [])
        try:
            if labels is not None:
                scores = self._function(reference, labels), self._function(checked, labels)
            else:
                scores = self._function(reference, reference), self._function(reference, checked)
        except Exception as error:
            raise DataError(
                f"the metric {self._metric} fails on this data: {error}",
                f"does it need an array {LABELS.name!r} in --data?",
            ) from error
        return TaskScore(metric=self._metric, reference=float(scores[0]), checked=float(scores[1]))
