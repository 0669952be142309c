"""Opening models on ONNX Runtime as the references and candidates of a comparison."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np

from trtopt.data import SampleSource
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import data_dependent_outputs
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.deviation import Deviation, is_classifier
from trtopt.precision.stages import open_proto
from trtopt.precision.temporary_disk import passing
from trtopt.precision.weight_folding import with_weights_dequantised
from trtopt.records import TensorSpec
from trtopt.records.precision import OutputDifference


def open_model(model: ModelFile) -> Unoptimised:
    """The model, its 16-bit arithmetic emulated if it has any."""
    # ONNX Runtime reads weights that are mapped from files, also once these have no name any more.
    with passing(model) as spooling:
        wide = in_fp32(with_weights_dequantised(spooling))
        return open_proto(wide, wide.proto)


def compared(pairs: Iterable[tuple[Arrays, Arrays]], model: ModelFile) -> tuple[OutputDifference, ...]:
    """How far every output of `model` lies from that of the reference; `pairs` are its inputs and outputs.

    Texts and sequences are left out of both.
    """
    found: dict[str, Deviation] = {}
    sized, other = data_dependent_outputs(model.proto.graph), open_model(model)
    for feed, wanted in pairs:
        made = other.run(other.fitted(feed))
        add_outputs(found, wanted, {name: made[name] for name in made if _is_numeric(made[name])}, sized)
    return tuple(item.result() for item in found.values())


def add_outputs(found: dict[str, Deviation], wanted: Arrays, got: Arrays, sized: Container[str] = ()) -> None:
    """Add a batch's outputs, by name; what is no number is left out. Those of `sized` may differ in size."""
    _check_names(wanted, got)
    for name, value in wanted.items():
        if not _is_numeric(value):
            continue
        if name not in found:
            found[name] = Deviation(name, classifies=is_classifier(value))
        if value.shape == got[name].shape:
            found[name].add(value, got[name])
        elif name in sized and value.ndim == got[name].ndim:
            found[name].add_resized()
        else:
            raise ModelError(
                f"output {name!r} has shape {got[name].shape}, the reference's {value.shape}",
                "check that both are versions of one model",
            )


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OSU"


def _check_names(wanted: Arrays, got: Arrays) -> None:
    lacking, more = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    differences = [f"lacks {', '.join(map(repr, lacking))}"] if lacking else []
    differences += [f"also has {', '.join(map(repr, more))}"] if more else []
    if differences:
        raise ModelError(
            f"the model has other outputs than the reference: it {' and '.join(differences)}",
            "compare it with the model that it was made from, with the same outputs",
        )


class First(SampleSource):
    """The first samples of a source, `most` of them or up to a batch more."""

    def __init__(self, source: SampleSource, most: int) -> None:
        super().__init__(source.name, [])
        self._source, self._most = source, most

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """As the source's."""
        return at_most(self._source.batches(inputs, size), self._most, inputs)


def at_most(feeds: Iterable[Arrays], samples: int, inputs: Sequence[TensorSpec]) -> Iterator[Arrays]:
    """The first batches, until they hold as many samples."""
    seen = 0
    for feed in feeds:
        yield feed
        seen += samples_in(feed, inputs)
        if seen >= samples:
            return
