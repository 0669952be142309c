"""Opening models on ONNX Runtime as the references and candidates of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import onnx

from trtopt.data import SampleSource
from trtopt.data.reader import Arrays, samples_in
from trtopt.device.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxmodel.model_file import ModelFile, runnable, size_in_bytes
from trtopt.precision.casting.places import types_of
from trtopt.precision.deviation import Deviation, is_classifier
from trtopt.precision.emulate import emulated, has_low
from trtopt.precision.observe import PREPACK_BYTES
from trtopt.records import TensorSpec
from trtopt.records.checking import OutputDifference


def open_model(model: ModelFile) -> Unoptimised:
    """The model, its 16-bit arithmetic emulated if it has any.

    Raises:
        ModelError: ONNX Runtime cannot load it.
    """
    types = types_of(model.proto)
    proto = emulated(model.proto, types) if has_low(types) else model.proto
    return open_proto(model, proto)


def open_proto(model: ModelFile, proto: onnx.ModelProto) -> Unoptimised:
    """`proto` with the large weights of `model`."""
    prepack = sum(map(size_in_bytes, proto.graph.initializer)) <= PREPACK_BYTES
    return Unoptimised(*runnable(replace(model, proto=proto)), prepack=prepack)


def compared(
    reference: Unoptimised, other: Unoptimised, feeds: Iterable[Arrays]
) -> tuple[tuple[OutputDifference, ...], int]:
    """How far every output of `other` lies from that of `reference`, and over how many samples.

    Raises:
        ModelError: one of them fails.
    """
    found: dict[str, Deviation] = {}
    samples = 0
    for feed in feeds:
        wanted = reference.run(feed)
        got = other.run(other.fitted(feed))
        add_outputs(found, wanted, got)
        samples += samples_in(feed)
    return tuple(item.result() for item in found.values()), samples


def add_outputs(found: dict[str, Deviation], wanted: Arrays, got: Arrays) -> None:
    """Add a batch's outputs, by name; what is no number is left out.

    Raises:
        ModelError: their shapes differ.
    """
    for name, value in wanted.items():
        if value.dtype.kind in "OSU" or name not in got:
            continue
        if name not in found:
            found[name] = Deviation(name, classifies=is_classifier(value))
        if value.shape != got[name].shape:
            raise ModelError(
                f"output {name!r} has shape {got[name].shape}, the reference's {value.shape}",
                "are they the same model?",
            )
        found[name].add(value, got[name])


class First(SampleSource):
    """The first samples of a source, `most` of them or up to a batch more."""

    def __init__(self, source: SampleSource, most: int) -> None:
        super().__init__(source.name, [])
        self._source, self._most = source, most

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """As the source's."""
        return at_most(self._source.batches(inputs, size), self._most)


def at_most(feeds: Iterable[Arrays], samples: int) -> Iterator[Arrays]:
    """The first batches, until they hold as many samples."""
    seen = 0
    for feed in feeds:
        yield feed
        seen += samples_in(feed)
        if seen >= samples:
            return
