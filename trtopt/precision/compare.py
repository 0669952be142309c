"""How far a model's tensors lie from their reference: cosine, SQNR, largest error, top-1 agreement.

SQNR = 10·log10(Σ r² / Σ (r - x)²) in dB, r the reference; cosine = Σ r·x / √(Σ r² · Σ x²). Both are taken
over all elements of all samples, so that batches can be added up as they come. Booleans and integers of 32
bits or more are indices, flags and counts, and each is taken as a one-hot vector: the cosine is the share of
them that is equal. Smaller integers are pixels and quantised values, which are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.element_types import gaps
from trtopt.onnxio.graph_walk import data_dependent_outputs
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOATS
from trtopt.precision.observe import float_tensors, shards_of
from trtopt.precision.running import open_proto, part_of, passing, with_weights_dequantized
from trtopt.records import TensorSpec
from trtopt.records.precision import LayerDifference, OutputDifference

_TEXTS = "OSU"
_FEWEST_CLASSES = 2
_SAFE_EXPONENT = 400
"""Squares of numbers up to 2^this, and of the largest of them from 2^-this on, add up in FP64."""
_LEAST_DB, _MOST_DB = -999.0, 200.0


def _dot(first: NDArray[np.float64], second: NDArray[np.float64]) -> Decimal:
    """Σ x·y, also where products leave FP64's range; extended precision has no other on some systems."""
    exponents = [int(np.frexp(np.abs(values).max(initial=0.0))[1]) for values in (first, second)]
    if max(map(abs, exponents)) <= _SAFE_EXPONENT:
        return Decimal(float(first @ second))
    left, right = (np.ldexp(one, -power) for one, power in zip((first, second), exponents, strict=True))
    return Decimal(float(left @ right)) * Decimal(2) ** sum(exponents)


class Deviation:
    """Adds up the difference of one tensor over batches."""

    def __init__(self, name: str, *, classifies: bool = False) -> None:
        self.name = name
        self._classifies = classifies
        self._values = self._mismatched = self._nonfinite = self._agree = self._rows = 0
        self._resized = 0
        self._integer = False
        self._largest = 0.0
        self._reference = self._other = self._dot = self._error = Decimal(0)

    def add(self, reference: NDArray[Any], other: NDArray[Any]) -> None:
        """Take a batch of both, of one shape and any numeric type."""
        if reference.shape != other.shape:
            raise ValueError(f"shapes {reference.shape} and {other.shape}")
        if self._classifies and reference.size:
            same = reference.argmax(-1) == other.argmax(-1)
            self._agree += int(same.sum())
            self._rows += same.size
        self._values += reference.size
        self._integer = is_label(reference.dtype) and is_label(other.dtype)
        gap = self._labels(reference, other) if self._integer else self._numbers(reference, other)
        self._largest = max(self._largest, float(gap.max(initial=0.0)))

    def _labels(self, reference: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
        gap = gaps(reference, other)
        unequal = int(np.count_nonzero(gap))
        self._reference += gap.size
        self._other += gap.size
        self._dot += gap.size - unequal
        self._error += 2 * unequal
        return gap

    def _numbers(self, reference: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
        first, second = (np.asarray(array, np.float64).reshape(-1) for array in (reference, other))
        finite = np.isfinite(first) & np.isfinite(second)
        if not finite.all():
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            self._mismatched += int((~finite & ~same).sum())
            self._nonfinite += int((~np.isfinite(second)).sum())
            first, second = first[finite], second[finite]
        gap = gaps(first, second)
        self._reference += _dot(first, first)
        self._other += _dot(second, second)
        self._dot += _dot(first, second)
        self._error += _dot(gap, gap)
        return gap

    def add_resized(self) -> None:
        """Take a batch of another size, which cannot be compared."""
        self._resized += 1

    @property
    def sqnr_db(self) -> float | None:
        """In dB; None without any error, minus infinity for an error on a reference that is all zero."""
        if not self._error:
            return None
        return float(10 * (self._reference / self._error).log10()) if self._reference else -math.inf

    @property
    def _cosine(self) -> float:
        if not (self._reference and self._other):
            is_unknown = self._resized > 0 and not self._values
            return float(self._reference == self._other and not is_unknown)
        cosine = self._dot / (self._reference.sqrt() * self._other.sqrt())
        return max(-1.0, min(1.0, float(cosine)))

    def result(self) -> OutputDifference:
        """The figures over all batches so far."""
        sqnr = self.sqnr_db
        return OutputDifference(
            output=self.name,
            values=self._values,
            cosine=self._cosine,
            sqnr_db=max(sqnr, _LEAST_DB) if sqnr is not None else None,
            max_abs=self._largest,
            top1=self._agree / self._rows if self._rows else None,
            mismatched=self._mismatched,
            nonfinite=self._nonfinite,
            integer=self._integer,
            resized=self._resized,
        )


def decibels(difference: OutputDifference) -> float:
    """The SQNR as a number to average: 200 dB at most, and the least where one alone is NaN or infinite."""
    if difference.mismatched:
        return -_MOST_DB
    return min(difference.sqnr_db, _MOST_DB) if difference.sqnr_db is not None else _MOST_DB


def is_label(dtype: np.dtype[Any]) -> bool:
    """Whether values of the type are indices, flags or counts."""
    return dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize >= np.dtype(np.int32).itemsize)


def is_classifier(reference: NDArray[Any]) -> bool:
    """Whether an output's values look like scores [samples, classes]: not like embeddings of length 1."""
    if reference.ndim != 2 or reference.shape[1] < _FEWEST_CLASSES or reference.dtype.kind in f"iub{_TEXTS}":
        return False
    wide = np.asarray(reference, np.float64)
    is_unit = bool(np.allclose(np.linalg.norm(wide, axis=1), 1, atol=1e-2))
    is_share = bool((wide >= 0).all()) and bool(np.allclose(wide.sum(1), 1, atol=1e-2))
    return is_share or not is_unit


def open_model(model: ModelFile) -> Unoptimised:
    """The model, its 16-bit arithmetic emulated if it has any."""
    # ONNX Runtime reads weights that are mapped from files, also once these have no name any more.
    with passing(model) as spooling:
        wide = in_fp32(with_weights_dequantized(spooling))
        return open_proto(wide, wide.proto)


def compare_outputs(pairs: Iterable[tuple[Arrays, Arrays]], model: ModelFile) -> tuple[OutputDifference, ...]:
    """How far every output of `model` lies from that of the reference; `pairs` are its inputs and outputs.

    Sequences are left out of both.
    """
    found: dict[str, Deviation] = {}
    sized, other = data_dependent_outputs(model.proto.graph), open_model(model)
    for feed, wanted in pairs:
        add_outputs(found, _arrays(wanted), _arrays(other.run(other.fit(feed))), sized)
    return tuple(item.result() for item in found.values())


def add_outputs(found: dict[str, Deviation], wanted: Arrays, got: Arrays, sized: Container[str] = ()) -> None:
    """Add a batch's outputs, by name; sequences are left out. Those of `sized` may differ in size."""
    _check_names(wanted, got)
    for name, value in _arrays(wanted).items():
        other = got[name]
        if name not in found:
            found[name] = Deviation(name, classifies=is_classifier(value))
        if value.shape == other.shape:
            found[name].add(*_numbered(value, other))
        elif name in sized and value.ndim == other.ndim:
            found[name].add_resized()
        else:
            raise ModelError(
                f"output {name!r} has shape {other.shape}, the reference's {value.shape}",
                "check that both are versions of one model",
            )


def _arrays(outputs: Arrays) -> Arrays:
    return {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}


def _numbered(value: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Texts as integers: equal where the texts are, else farther apart than any bound on errors."""
    if value.dtype.kind not in _TEXTS and other.dtype.kind not in _TEXTS:
        return value, other
    differs = np.asarray(value.astype(object) != other.astype(object), np.int64)
    return np.zeros_like(differs), differs * np.iinfo(np.int64).max


def _check_names(wanted: Arrays, got: Arrays) -> None:
    lacking, more = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    differences = [f"lacks {', '.join(map(repr, lacking))}"] if lacking else []
    differences += [f"also has {', '.join(map(repr, more))}"] if more else []
    if differences:
        raise ModelError(
            f"the model has other outputs than the reference: it {' and '.join(differences)}",
            "compare it with the model that it was made from, with the same outputs",
        )


def without_padding(array: NDArray[Any], like: NDArray[Any] | None, samples: int) -> NDArray[Any]:
    """What belongs to the samples that were there before the engine's batch was filled up."""
    if like is None or array.shape == like.shape or array.ndim != like.ndim:
        return array
    longer = [axis for axis in range(array.ndim) if array.shape[axis] != like.shape[axis]]
    if longer == [0]:
        return array[: len(like)]
    if len(longer) == 1 and like.shape[longer[0]] == samples < array.shape[longer[0]]:
        return array.take(range(samples), longer[0])
    return array


class First(SampleSource):
    """The first samples of a source, `most` of them or up to a batch more."""

    def __init__(self, source: SampleSource, most: int) -> None:
        super().__init__(source.name, [])
        self._source, self._most = source, most

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """As the source's."""
        seen = 0
        for feed in self._source.batches(inputs, size):
            yield feed
            seen += samples_in(feed, inputs)
            if seen >= self._most:
                return


_LAYER_SAMPLES = 16


def layer_differences(
    reference: ModelFile, other: ModelFile, source: SampleSource
) -> tuple[LayerDifference, ...]:
    """The tensors that both have, the one whose node added most error first; on the first samples only.

    What a node adds is the error's share of the energy in what it makes, less the largest such share among
    the tensors that it reads.
    """
    made = {name: node for node in other.proto.graph.node for name in node.output}
    names = [name for name in float_tensors(reference, FLOATS) if name in made]
    found = {name: Deviation(name) for name in names}
    specs, both = specs_of(reference.proto), [in_fp32(model) for model in (reference, other)]
    for shard in shards_of(reference, source, names) if names else ():
        sessions = [part_of(model, shard) for model in both]
        for feed in First(source, _LAYER_SAMPLES).batches(specs, 1):
            wanted, got = (session.run(session.fit(feed)) for session in sessions)
            for name in shard:
                if wanted[name].shape == got[name].shape:
                    found[name].add(wanted[name], got[name])
    return ranked(made, {name: item.sqnr_db for name, item in found.items()})


def ranked(
    made: Mapping[str, onnx.NodeProto], sqnr: Mapping[str, float | None]
) -> tuple[LayerDifference, ...]:
    """The tensors of `sqnr` (None: no error) by what their nodes, in `made`, added; pure arithmetic."""
    share = {name: 0.0 if db is None else 10 ** (-db / 10) for name, db in sqnr.items()}
    rows = []
    for name in sqnr:
        node = made[name]
        before = max((share[item] for item in _sources(node.input, made, share)), default=0.0)
        rows.append(
            LayerDifference(
                tensor=name,
                node=node.name,
                op=node.op_type,
                sqnr_db=sqnr[name],
                added=max(0.0, share[name] - before),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.added))


def _sources(
    names: Iterable[str], made: Mapping[str, onnx.NodeProto], known: Mapping[str, float]
) -> set[str]:
    """The nearest known tensors that `names` come from, past nodes that only one model has."""
    found: set[str] = set()
    left, seen = list(names), set()
    while left:
        name = left.pop()
        if name in known:
            found.add(name)
        elif name in made and name not in seen:
            seen.add(name)
            left.extend(made[name].input)
    return found
