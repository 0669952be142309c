"""Calibration: the choice among methods that find ranges, and the table's file.

All methods read the same histogram, so that comparing them costs no further pass over the data. The one that
suits a model best has the least output error on samples that calibration has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.data.fit import rows_of, sample_axes, samples_in
from trtopt.data.readers import Arrays
from trtopt.data.source import needs_data
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ArtifactError, UsageError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.outputs import Kind
from trtopt.onnxio.graph_walk import refill
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.precision.compare import Deviation, First, decibels
from trtopt.precision.observe import check_finite, observe
from trtopt.precision.placement.draft import PlacementOptions, Plan
from trtopt.precision.qdq import QdqFormat, Scales, check_weight, write
from trtopt.precision.ranges import AUTO, MAX, METHODS, Histogram, all_amax
from trtopt.precision.running import open_proto, passing, with_weights_dequantized
from trtopt.records import TensorSpec, from_json, read_versioned, to_json
from trtopt.records.precision import CalibrationTable, MethodScore, TensorRange

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)


TABLE_SUFFIX = ".calibration.json"


def table_beside(model: Path) -> Path:
    """Where the calibration table of a model goes."""
    return model.with_name(model.name + TABLE_SUFFIX)


def table_text(table: CalibrationTable) -> bytes:
    """A table's file, with the hash of the rest: one that somebody has edited shows that."""
    bare = msgspec.structs.replace(table, sha256="")
    return to_json(msgspec.structs.replace(bare, sha256=hashlib.sha256(to_json(bare)).hexdigest()))


def _is_unedited(path: Path) -> bool:
    text = read_bounded(path)
    try:
        return text == table_text(from_json(text, CalibrationTable))
    except ValueError:
        return False


TABLE = Kind("a calibration table", _is_unedited)


def chosen(amax: Mapping[str, Mapping[str, float]], method: str) -> dict[str, TensorRange]:
    """The table's rows with one method's values chosen."""
    return {name: TensorRange(chosen=row[method], amax=dict(row)) for name, row in amax.items()}


def by_group(rows: Mapping[str, float], groups: Iterable[frozenset[str]]) -> dict[str, float]:
    """amax by tensor where tensors of one group share the largest among them."""
    shared = dict(rows)
    for group in groups:
        largest = max((rows[name] for name in group if name in rows), default=0.0)
        shared |= {name: largest for name in group if name in rows}
    return shared


def check_method(method: str) -> None:
    """Refuse a method that does not exist."""
    if method not in (*METHODS, AUTO):
        raise UsageError(f"--method {method}: unknown", f"choose one of {', '.join((AUTO, *METHODS))}")


def read_table(path: Path) -> CalibrationTable:
    """A table from its file."""
    with reading_as("a calibration table", path, "make one with trtopt quantize --data DATA"):
        table = read_versioned(read_bounded(path), CalibrationTable)
    for name, row in table.tensors.items():
        for value in (row.chosen, *row.amax.values()):
            if not 0 <= value <= _LARGEST:
                raise ArtifactError(
                    f"{path}: tensor {name!r} has amax {value}",
                    f"an amax is a number from 0 to FP32's largest, {_LARGEST:.3g}",
                )
    for name, factors in table.smoothed.items():
        for channel, factor in factors.items():
            if not _SMALLEST <= factor <= _LARGEST:
                raise ArtifactError(
                    f"{path}: channel {channel} of {name!r} is divided by {factor}",
                    f"what divides is a number that FP32 holds: from {_SMALLEST:.3g} to {_LARGEST:.3g}",
                )
    return table


def with_method(table: CalibrationTable, method: str | None) -> CalibrationTable:
    """The table with another method chosen; as it stands for None and for `auto`, whose choice is in it."""
    if method in (None, AUTO):
        return table
    lacking = [name for name, row in table.tensors.items() if method not in row.amax]
    if lacking:
        raise UsageError(
            f"the table has no {method} for tensor {lacking[0]!r}", "calibrate again with --data DATA"
        )
    rows = chosen({name: row.amax for name, row in table.tensors.items()}, str(method))
    return msgspec.structs.replace(table, method=str(method), tensors=rows)


def check_complete(table: CalibrationTable, tensors: Iterable[str], name: str) -> None:
    """Every tensor that is to be quantised must be in the table."""
    lacking = [tensor for tensor in tensors if tensor not in table.tensors]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ArtifactError(
            f"{name}: tensor {lacking[0]!r}{more} is to be quantised and not in the table",
            "the table was made for another model, placement or target: calibrate again with --data DATA",
        )


EVERY = 8
"""One sample of so many is held out."""


class Part(SampleSource):
    """The samples of a source that are held out, or all others. A fixed batch is kept whole.

    `sha256` is of all samples of the source that the last reading saw, those of the other part included; it
    does not depend on how they are cut into batches. `numbers` are the positions in the source of the samples
    in the batch read last.
    """

    def __init__(self, source: SampleSource, *, held: bool, every: int = EVERY) -> None:
        super().__init__(source.name, [])
        self._source, self._held, self._every = source, held, every
        self._digests: dict[str, Any] = {}
        self.numbers: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def sha256(self) -> str:
        """One hash over the names and contents of all inputs."""
        whole = hashlib.sha256()
        for name in sorted(self._digests):
            whole.update(f"{name}:{self._digests[name].hexdigest()};".encode())
        return whole.hexdigest()

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[dict[str, NDArray[Any]]]:
        """As the source's, of this part's samples."""
        is_open = any(isinstance(axis, str) for spec in inputs for axis in spec.shape[:1])
        rows = rows_of(inputs, size)
        axes = sample_axes(inputs) or {name: 0 for name, number in rows.items() if number and is_open}
        first = seen = 0
        self._digests = {name: hashlib.sha256() for name in rows}
        for batch in self._source.batches(inputs, size):
            for name, array in batch.items():
                self._digests[name].update(_bytes_of(array))
            count = next((batch[name].shape[axis] for name, axis in axes.items()), 1)
            numbers = np.arange(first, first + count)
            apart = numbers % self._every == self._every - 1 if self._every else np.zeros(count, bool)
            mine = apart == self._held
            there = samples_in(batch, inputs)
            self.numbers = numbers[mine] if axes else np.arange(seen, seen + there)
            first, seen = first + count, seen + there
            if mine.all():
                yield batch
            elif mine.any():
                yield {
                    name: array.compress(mine, axes[name]) if name in axes else array
                    for name, array in batch.items()
                }


def _bytes_of(array: NDArray[Any]) -> Any:
    if array.dtype.hasobject:  # texts
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


_ENOUGH = 16
_CLEAR_DB = 3.0
"""What a method that clips must gain on fewer than `_ENOUGH` samples: half of the error's power."""


def is_float(array: NDArray[Any]) -> bool:
    """Whether the array holds floating-point numbers."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def best_of(scores: Sequence[MethodScore], held: int, careful: str) -> str:
    """The best method or, unless it is clearly better on `held` samples that are few, the `careful` one.

    What the others clip is rare: a few samples may have none of it.
    """
    found = {item.method: item.sqnr_db for item in scores}
    lead = scores[0].sqnr_db - found[careful]
    return scores[0].method if held >= _ENOUGH or lead >= _CLEAR_DB else careful


@dataclass(frozen=True, kw_only=True)
class QuantizationJob(PlacementOptions):
    """One job: what is quantised where and how it is written, and where ranges come from.

    `method` None: `auto`, for FP8 `max`. Ranges come from samples, or from a table (with its name for
    messages), which lists what is smoothed; both may be missing.
    """

    qdq: QdqFormat
    method: str | None = None
    source: SampleSource | None = None
    random_data: bool = False
    table: CalibrationTable | None = None
    table_name: str = ""
    model_sha256: str = ""

    @property
    def has_ranges(self) -> bool:
        """Whether there is anything that ranges could come from."""
        return self.source is not None or self.table is not None


def no_data(precision: str) -> UsageError:
    """The error for a calibration without data."""
    return needs_data(
        f"--precision {precision}",
        "to calibrate the ranges of tensors",
        "--table FILE of an earlier run, or --random-data to try without (marked so)",
    )


_HELD_SAMPLES = 32
_AT_ONCE = 8
_OUTPUT_REMEDY = (
    "take that sample out of the data, find out why the model overflows on it, or choose a --method "
    "such as max: only auto looks at outputs"
)


def calibrate(
    model: ModelFile, plan: Plan, job: QuantizationJob, given: Scales, method: str
) -> CalibrationTable:
    """The ranges of the plan's tensors over the job's data, by `method` (`auto`: best on held-out samples).

    `given` are scales that the model brought along: the comparison of methods uses them too.
    """
    if (source := job.source) is None:
        raise no_data(job.precision)
    _check_weights(model, plan)
    automatic = method == AUTO and bool(plan.tensors)
    part = Part(source, held=False, every=EVERY if automatic else 0)
    tensors = [name for name in plan.tensors if name not in given.tensors]
    seen = {name: Histogram() for name in tensors}

    def count(name: str, values: NDArray[Any], first: int) -> None:
        try:
            seen[name].add(values)
        except ValueError:
            check_finite(name, values, part.numbers.tolist())
            raise

    samples = observe(model, part, tensors, count)
    amax = {name: all_amax(histogram) for name, histogram in seen.items()}
    scores: tuple[MethodScore, ...] = ()
    held = 0
    if automatic:
        scores, held = _evaluate(model, plan, amax, source, job.qdq, given)
    best = best_of(scores, held, careful=MAX) if scores else MAX if method == AUTO else method
    return CalibrationTable(
        model_sha256=job.model_sha256,
        data_sha256=part.sha256,
        random_data=job.random_data,
        samples=samples + held,
        held=held,
        method=best,
        scores=scores if held else (),  # those of samples that ranges have seen would pass for others
        tensors=chosen(amax, best),
    )


def _evaluate(
    model: ModelFile,
    plan: Plan,
    amax: Mapping[str, Mapping[str, float]],
    source: SampleSource,
    form: QdqFormat,
    given: Scales,
) -> tuple[tuple[MethodScore, ...], int]:
    """Every method's score, the best first; and how many samples were held out, 0 if there were too few."""
    specs = specs_of(model.proto)
    part = Part(source, held=True)
    first = First(part, _HELD_SAMPLES)
    held = [(part.numbers.tolist(), feed) for feed in first.batches(specs, _AT_ONCE)]
    if held:
        observe(
            model,
            first,
            list(amax),
            lambda name, values, _: check_finite(name, values, part.numbers.tolist()),
        )
    reference = open_proto(model, model.proto)
    with passing(model) as spooling:
        quantized, names = _with_open_scales(spooling, plan, form, given)
    scales = {}
    for method in METHODS:
        shared = by_group({name: row[method] for name, row in amax.items()}, plan.groups)
        scales[method] = {names[name]: form.scale(value) for name, value in shared.items()}
    found: dict[str, dict[str, Deviation]] = {method: {} for method in METHODS}
    for numbers, feed in held or [_first(source.batches(specs, _AT_ONCE), specs)]:
        wanted = {name: array for name, array in reference.run(feed).items() if is_float(array)}
        for name, array in wanted.items():
            check_finite(name, array, numbers, _OUTPUT_REMEDY)
        for method, outputs in found.items():
            made = quantized.run({**feed, **scales[method]})
            for name, array in wanted.items():
                if array.shape == made[name].shape:
                    outputs.setdefault(name, Deviation(name)).add(array, made[name])
    scores = [_score(method, outputs.values()) for method, outputs in found.items()]
    ranked = tuple(sorted(scores, key=lambda item: -item.sqnr_db))
    return ranked, sum(samples_in(feed, specs) for _, feed in held)


def _score(method: str, outputs: Iterable[Deviation]) -> MethodScore:
    """Signal-to-noise, averaged over the outputs."""
    ratios = [decibels(item.result()) for item in outputs]
    return MethodScore(method=method, sqnr_db=round(float(np.mean(ratios)) if ratios else 0.0, 3))


def _first(feeds: Iterator[Arrays], inputs: Sequence[TensorSpec]) -> tuple[list[int], Arrays]:
    feed = next(feeds)
    return list(range(samples_in(feed, inputs))), feed


def _check_weights(model: ModelFile, plan: Plan) -> None:
    """Before the data runs: else what is wrong with a weight would be put down to a sample."""
    graph = model.proto.graph
    nodes = {node.name: node for node in graph.node}
    maker = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for place in plan.weights:
        name = nodes[place.node].input[place.index]
        while name not in constants:  # Identity and Transpose may stand in front
            name = maker[name].input[0]
        check_weight(array_of(constants[name], model.folder), name, place.node)


def copy_model(model: ModelFile) -> ModelFile:
    """A copy to write into; large weights are shared."""
    return replace(model, proto=deepcopy(model.proto))


def _with_open_scales(
    model: ModelFile, plan: Plan, form: QdqFormat, given: Scales
) -> tuple[Unoptimised, dict[str, str]]:
    """The quantised model with the scales of calibrated tensors as inputs: one session for all methods."""
    trial = copy_model(model)
    calibrated = [name for name in plan.tensors if name not in given.tensors]
    tensors = {**given.tensors, **plan.fixed, **dict.fromkeys(calibrated, 1.0)}
    names = write(trial, plan, replace(given, tensors=tensors), replace(form, stored=False))
    names = {name: names[name] for name in calibrated}
    graph, opened_up = trial.proto.graph, set(names.values())
    kept = [item for item in graph.initializer if item.name not in opened_up]
    refill(graph.initializer, kept)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in names.values()
    )
    trial = with_weights_dequantized(trial)
    return open_proto(trial, trial.proto), names
