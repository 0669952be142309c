"""The largest |x| of every tensor over the samples, by which casts are decided; and outputs on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import inputs_of
from trtopt.data.readers import Arrays
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile, array_of, spooled
from trtopt.precision.observe import float_tensors, observe
from trtopt.precision.running import passing, with_weights_dequantized


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
        """Keep what belongs to a batch that begins among the first samples; see `observe.Visitor`."""
        if name not in self.names or first >= self._samples:
            return
        if values.dtype.kind not in "OSU":
            self._batches.setdefault(first, {})[name] = spooled(values, name, self._folder)
        elif name in self._inputs:
            self._texts.setdefault(first, {})[name] = values

    def pairs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and outputs by name, a batch at a time, mapped from the files."""
        for first, kept in self._batches.items():
            arrays = {name: array_of(tensor, self._folder) for name, tensor in kept.items()}
            yield (
                {name: array for name, array in arrays.items() if name in self._inputs}
                | self._texts.get(first, {}),
                {name: arrays[name] for name in self._outputs if name in arrays},
            )


_AT_ONCE = 8


def measured(
    model: ModelFile, samples: SampleSource, reference: Reference | None = None
) -> tuple[dict[str, float], int]:
    """The largest finite |x| of every FP32 tensor, and over how many samples; `reference` keeps its share.

    Values inside subgraphs are not seen.
    """
    with passing(model) as spooling:
        return _measured(model, with_weights_dequantized(spooling), samples, reference)


def _measured(
    model: ModelFile, folded: ModelFile, samples: SampleSource, reference: Reference | None
) -> tuple[dict[str, float], int]:
    """As `measured`; `folded` is the model with constants in place of its weights' Q/DQ."""
    peaks = dict.fromkeys(float_tensors(folded), 0.0)

    def visit(name: str, values: NDArray[Any], first: int) -> None:
        if reference is not None:
            reference.visit(name, values, first)
        if name in peaks:
            peaks[name] = max(peaks[name], _peak(values))

    names = {*peaks, *(reference.names if reference is not None else ())}
    seen = observe(in_fp32(folded), samples, names, visit, at_once=_AT_ONCE)
    weights = set(float_tensors(model)) - peaks.keys()
    constants = {item.name: item for item in folded.proto.graph.initializer}
    of_weights = {name: _peak(array_of(constants[name], folded.folder)) for name in weights}
    return peaks | of_weights, seen.samples


def _peak(values: NDArray[np.float32]) -> float:
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    if not np.isfinite(high - low):  # masks may be infinite on purpose
        finite = values[np.isfinite(values)]
        high, low = float(finite.max(initial=0.0)), float(finite.min(initial=0.0))
    return max(high, -low)
