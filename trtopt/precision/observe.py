"""What values the tensors inside a model take: every one of them is handed to a visitor, in bounded memory.

The model runs on ONNX Runtime, unoptimised, with its inner tensors as further outputs. How many samples run
at once is chosen so that all tensors of a run fit into a limit. Where those of one sample do not, the model
is cut into stages: each hands on what the next ones read, and its other tensors are gone before those run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import inputs_of, specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays
from trtopt.device.ort.reference import crash_context
from trtopt.errors import DataError
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile, array_of, spooled
from trtopt.onnxio.shape_inference import inferred, skeleton_at, tensor_types, types_of
from trtopt.precision.running import cut, open_proto, passing, with_weights_dequantized

LIMIT_BYTES = 512 << 20
"""The most that the observed tensors of one run may take together, by their inferred shapes."""
_MOST_AT_ONCE = 32
Visitor = Callable[[str, NDArray[Any], int], None]
"""Is called with a tensor's name, its values (samples along the first axis), the first sample's number."""


def float_tensors(model: ModelFile, kinds: Collection[int] = (onnx.TensorProto.FLOAT,)) -> tuple[str, ...]:
    """The inputs of a model and outputs of its nodes that are of these types, in the order of the graph."""
    typed = types_of(model.proto)  # also behind operators that ONNX's inference does not know
    names = [spec.name for spec in specs_of(model.proto)]
    names += [name for node in model.proto.graph.node for name in node.output if name]
    return tuple(name for name in names if typed.get(name) in kinds)


def observe(
    model: ModelFile,
    source: SampleSource,
    names: Collection[str],
    visit: Visitor,
    *,
    at_once: int = _MOST_AT_ONCE,
) -> int:
    """Run `source` through the model and hand every tensor in `names`, batch after batch, to `visit`.

    Returns how many samples there were.

    Each tensor is visited once for every batch, in the order of the samples; tensors inside subgraphs cannot
    be observed. The model runs once over the data, at most `at_once` samples at a time. The memory that is
    bounded is that of the observed tensors; ONNX Runtime also needs that of one run, which includes what
    stages pass on, and weights are mapped from their file.
    """
    specs = specs_of(model.proto)
    first = next(source.batches(specs, 1))
    batch, shards = _plan(model, first, names, at_once)
    stages = cut(model.proto, shards, types_of(model.proto))
    sessions = [open_proto(model, stage.proto) if stage.proto.graph.output else None for stage in stages]
    samples = 0
    for feed in source.batches(specs, batch):
        held = feed
        for stage, session in zip(stages, sessions, strict=True):
            if session is not None:
                with crash_context(f"samples {samples} to {samples + samples_in(feed, specs) - 1}"):
                    held = held | session.run({name: held[name] for name in held.keys() & stage.reads})
            for name in stage.names:
                visit(name, held[name], samples)
            held = feed | {name: held[name] for name in stage.later}
        samples += samples_in(feed, specs)
    return samples


def shards_of(model: ModelFile, source: SampleSource, names: Collection[str]) -> list[list[str]]:
    """`names` in runs whose tensors fit into the limit together, for one sample at a time."""
    return _plan(model, next(source.batches(specs_of(model.proto), 1)), names, 1)[1]


def _plan(
    model: ModelFile, first: Arrays, names: Collection[str], at_once: int
) -> tuple[int, list[list[str]]]:
    """How many samples at once, and which tensors in which stage, by the shapes that one sample gives."""
    sizes, graph = _sizes(model.proto, first, names), model.proto.graph
    order = [item.name for item in (*graph.input, *graph.initializer)]
    order += [name for node in graph.node for name in node.output]
    shards: list[list[str]] = [[]]
    room = LIMIT_BYTES
    for name in filter(sizes.__contains__, order):
        if sizes[name] > room and shards[-1]:
            shards.append([])
            room = LIMIT_BYTES
        shards[-1].append(name)
        room -= sizes[name]
    together = sum(sizes.values())
    batch = 1 if len(shards) > 1 else max(1, min(at_once, LIMIT_BYTES // max(together, 1)))
    return batch, shards


def _sizes(model: onnx.ModelProto, feed: Arrays, names: Collection[str]) -> dict[str, int]:
    """Bytes of each tensor for the shapes in `feed`; where a shape is unknown, as many as the largest."""
    types = tensor_types(inferred(skeleton_at(model, {name: array.shape for name, array in feed.items()})))
    known = {
        name: 4 * math.prod(axis.dim_value for axis in types[name].shape.dim)
        for name in types.keys() & names
        if types[name].HasField("shape") and all(axis.HasField("dim_value") for axis in types[name].shape.dim)
    }
    largest = max(known.values(), default=1)
    return {name: known.get(name, largest) for name in names}


# What one pass over the data adds up of tensors' channels.


@dataclass(frozen=True)
class ChannelValues:
    """What the channels of a tensor take on: the largest |x| of each, and the mean of its x²."""

    peaks: NDArray[np.float32]
    mean_squares: NDArray[np.float64]


class PerChannel:
    """What each channel along the last axis takes on, by tensor. Memory: some numbers a channel."""

    def __init__(self) -> None:
        self._peaks: dict[str, NDArray[np.float32]] = {}
        self._squares: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[str, int] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`."""
        rows = values.reshape(-1, values.shape[-1])
        peaks = np.abs(rows).max(axis=0, initial=0).astype(np.float32)
        if not np.isfinite(peaks).all():
            check_finite(name, values, range(first, first + len(values)))
        squares = np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
        self._peaks[name] = np.maximum(self._peaks.get(name, 0), peaks)
        self._squares[name] = self._squares.get(name, 0) + squares
        self._rows[name] = self._rows.get(name, 0) + len(rows)

    def values(self, name: str) -> ChannelValues:
        """Of one tensor, over all batches."""
        return ChannelValues(self._peaks[name], self._squares[name] / max(self._rows[name], 1))


@dataclass(frozen=True)
class SecondMoments:
    """The mean of xᵀ·x [K, K] over `rows` rows x of an activation."""

    mean: NDArray[np.float32]
    rows: int


ROWS_AT_ONCE = 512
"""Of an activation in one product: a sample's 128 alone would spend most of the time on adding up."""


class Products:
    """How channels along the last axis move together, by tensor: the same bits however rows come in batches.

    Memory: 4·K·(K + `ROWS_AT_ONCE`) bytes for K channels. Sums beyond FP32's range become infinite or NaN.
    """

    def __init__(self) -> None:
        self._sums: dict[str, NDArray[np.float32]] = {}
        self._rows: dict[str, int] = {}
        self._waiting: dict[str, NDArray[np.float32]] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Take in one batch of a tensor; its first sample is number `first`."""
        check_finite(name, values, range(first, first + len(values)))
        rows = values.reshape(-1, values.shape[-1])
        if name not in self._waiting:
            self._waiting[name] = np.empty((ROWS_AT_ONCE, rows.shape[1]), np.float32)
            self._rows[name] = 0
        waiting = self._waiting[name]
        while len(rows):
            place = self._rows[name] % ROWS_AT_ONCE
            taken, rows = np.split(rows, [ROWS_AT_ONCE - place])
            waiting[place : place + len(taken)] = taken
            self._rows[name] += len(taken)
            if place + len(taken) == ROWS_AT_ONCE:
                self._sums[name] = self._with(name, waiting)

    def _with(self, name: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            product: NDArray[np.float32] = rows.T @ rows
            if name in self._sums:
                product += self._sums[name]
        return product

    def together(self, names: Sequence[str]) -> SecondMoments:
        """Over all batches of these tensors, which have as many channels as one another."""
        rows = sum(self._rows[name] for name in names)
        whole, *others = (
            self._with(name, self._waiting[name][: self._rows[name] % ROWS_AT_ONCE]) for name in names
        )
        whole /= np.float32(rows)
        for other in others:
            whole += other / np.float32(rows)
        return SecondMoments(whole, rows)


_REMEDY = "take that sample out of the data, or find out why the model overflows on it"


def check_finite(name: str, values: NDArray[Any], samples: Sequence[int], remedy: str = _REMEDY) -> None:
    """Refuse NaN and infinity in one batch of a tensor; `samples` are the numbers of the samples in it."""
    finite = np.atleast_1d(np.isfinite(values))
    if finite.all():
        return
    which = f"sample {samples[0]}"
    if len(finite) == len(samples):
        which = f"sample {samples[int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))]}"
    elif len(samples) > 1:  # the first axis is not that of the samples
        which = f"one of the samples {samples[0]} to {samples[-1]}"
    raise DataError(f"tensor {name!r} is not finite (NaN or infinity) with {which}", remedy)


# The largest |x| of every tensor, by which casts are decided; and the model's outputs on the way.


class Reference:
    """Picks a model's inputs and outputs out of what is observed of it; the files go into `folder`."""

    def __init__(self, model: onnx.ModelProto, folder: Path, samples: int) -> None:
        self._folder, self._samples = folder, samples
        self._inputs = frozenset[str](item.name for item in inputs_of(model))
        self._outputs = [item.name for item in model.graph.output if item.type.HasField("tensor_type")]
        self.names = self._inputs.union(self._outputs)
        """The tensors that must be observed."""
        self._batches: dict[int, dict[str, onnx.TensorProto]] = {}
        self._texts: dict[int, Arrays] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Keep what belongs to a batch that begins among the first samples; see `Visitor`."""
        if name not in self.names or first >= self._samples:
            return
        if values.dtype.kind not in "OSU":
            self._batches.setdefault(first, {})[name] = spooled(values, name, self._folder)
        else:
            self._texts.setdefault(first, {})[name] = values

    def pairs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and outputs by name, a batch at a time, mapped from the files."""
        for first in sorted({*self._batches, *self._texts}):
            kept = self._batches.get(first, {})
            arrays = {name: array_of(tensor, self._folder) for name, tensor in kept.items()}
            arrays |= self._texts.get(first, {})
            yield (
                {name: array for name, array in arrays.items() if name in self._inputs},
                {name: arrays[name] for name in self._outputs if name in arrays},
            )


_AT_ONCE = 8


def measure_peaks(
    model: ModelFile, samples: SampleSource, reference: Reference | None = None
) -> tuple[dict[str, float], int]:
    """The largest finite |x| of every FP32 tensor, and over how many samples; `reference` keeps its share.

    Values inside subgraphs are not seen.
    """
    peaks: dict[str, float] = {}

    def visit(name: str, values: NDArray[Any], first: int) -> None:
        if reference is not None:
            reference.visit(name, values, first)
        if name in peaks:
            peaks[name] = max(peaks[name], _peak(values))

    with passing(model) as spooling:
        folded = with_weights_dequantized(spooling)
        peaks |= dict.fromkeys(float_tensors(folded), 0.0)
        names = {*peaks, *(reference.names if reference is not None else ())}
        count = observe(in_fp32(folded), samples, names, visit, at_once=_AT_ONCE)
        constants = {item.name: item for item in folded.proto.graph.initializer}
        for name in set(float_tensors(model)) - peaks.keys():  # weights behind Q/DQ
            peaks[name] = _peak(array_of(constants[name], folded.folder))
    return peaks, count


def _peak(values: NDArray[np.float32]) -> float:
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    if not np.isfinite(high - low):  # masks may be infinite on purpose
        finite = values[np.isfinite(values)]
        high, low = float(finite.max(initial=0.0)), float(finite.min(initial=0.0))
    return max(high, -low)
