"""A model cast in memory: what its tensors take on, and 16 bits where they may stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import inputs_of
from trtopt.data.readers import Arrays
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import graphs_of
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile, array_of, spooled
from trtopt.onnxio.shape_inference import check, types_of
from trtopt.precision.casting.convert import convert
from trtopt.precision.casting.decide import HEAVY, CastDecider, CastOptions, Decision
from trtopt.precision.casting.rules import check_patterns
from trtopt.precision.observe import float_tensors, observe
from trtopt.precision.running import passing, with_weights_dequantised
from trtopt.precision.subgraph_peaks import NOT_RUN, with_subgraph_peaks


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


def cast_graph(
    model: ModelFile, ranges: Mapping[str, float], cast_options: CastOptions, *, cast_io: bool = False
) -> tuple[ModelFile, Decision]:
    """Cast a prepared model in memory; its spool takes large weights. `ranges`: the largest |x| by tensor."""
    check_patterns(model.proto, cast_options.keep, cast_options.keep_op, cast_options.include)
    types = types_of(model.proto)
    decision = CastDecider(model, types, ranges, cast_options, cast_io=cast_io).decide()
    result = convert(model, types, decision.places, cast_options.low, cast_io=cast_io)
    check(result.proto)
    return result, decision


def check_worthwhile(model: ModelFile, decision: Decision, precision: str) -> None:
    """Something heavy must have become 16-bit if only the opset stands in the way."""
    operators = {node.name: node.op_type for part in graphs_of(model.proto.graph) for node in part.node}
    if HEAVY & {operators[name] for name in decision.places}:
        return
    for kept in decision.kept:
        if kept.rule == "opset" and kept.op in HEAVY:
            raise ModelError(
                f"nothing heavy can be {precision.upper()}: {kept.reason} (node {kept.node!r})",
                "export with a newer opset (BF16 convolutions need 22), or use --precision fp16",
            )


def measured(
    model: ModelFile, samples: SampleSource, reference: Reference | None = None
) -> tuple[dict[str, float], int]:
    """The largest finite |x| of every FP32 tensor, and over how many samples; `reference` keeps its share.

    Tensors of subgraphs are in it if a sample ran them.
    """
    with passing(model) as spooling:
        return _measured(model, with_weights_dequantised(spooling), samples, reference)


def _measured(
    model: ModelFile, folded: ModelFile, samples: SampleSource, reference: Reference | None
) -> tuple[dict[str, float], int]:
    """As `measured`; `folded` is the model with constants in place of its weights' Q/DQ."""
    peaks = dict.fromkeys(float_tensors(folded), 0.0)
    inner: dict[str, float] = {}
    watched = with_subgraph_peaks(folded)

    def visit(name: str, values: NDArray[Any], first: int) -> None:
        if reference is not None:
            reference.visit(name, values, first)
        if name in peaks:
            peaks[name] = max(peaks[name], _peak(values))
        if name in watched.tensors:
            for tensor, peak in zip(watched.tensors[name], values, strict=True):
                if peak != NOT_RUN:
                    inner[tensor] = max(inner.get(tensor, 0.0), float(peak))

    names = {*peaks, *watched.tensors, *(reference.names if reference is not None else ())}
    seen = observe(in_fp32(watched.model), samples, names, visit, at_once=_AT_ONCE)
    weights = set(float_tensors(model)) - peaks.keys()
    constants = {item.name: item for item in folded.proto.graph.initializer}
    of_weights = {name: _peak(array_of(constants[name], folded.folder)) for name in weights}
    return peaks | inner | of_weights, seen.samples


def _peak(values: NDArray[np.float32]) -> float:
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    if not np.isfinite(high - low):  # masks may be infinite on purpose
        finite = values[np.isfinite(values)]
        high, low = float(finite.max(initial=0.0)), float(finite.min(initial=0.0))
    return max(high, -low)
