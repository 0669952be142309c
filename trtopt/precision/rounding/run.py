"""Rounding the INT4 weights of a planned model by what their layers read on the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.onnxio.model_file import ModelFile, array_of, spooled
from trtopt.precision.calibration.collect import ROWS_AT_ONCE, Products, SecondMoments
from trtopt.precision.observe import observe
from trtopt.precision.placement.plan import Plan
from trtopt.precision.placement.view import Node, View
from trtopt.precision.placement.weighted import BLOCK
from trtopt.precision.qdq.qdq_format import QdqFormat
from trtopt.precision.qdq.quantised_values import weight_scale
from trtopt.precision.rounding.compensate import rounded

MOST_CHANNELS = 8192
"""The second moments of more input channels than this take too much memory: 4 bytes times their square."""
MOMENTS_BYTES = 704 << 20
"""Held at a time while second moments are summed; BERT-base's layers take 639 MiB together."""
WeightScales = dict[tuple[str, int], NDArray[np.float32]]
"""Whole scale arrays by (node, input), as `emission.write.Scales.weights` takes them."""


@dataclass(frozen=True)
class Rounded:
    """The scales of the weights that were moved, over how many samples; how many weights were not."""

    scales: WeightScales
    samples: int
    left: int


@dataclass(frozen=True)
class _Matrix:
    """A constant [channels, N] and the MatMul nodes that have it on their right."""

    name: str
    channels: int
    readers: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The activations in front of it."""
        return tuple(dict.fromkeys(str(node.input[0]) for node in self.readers))


def round_by_data(
    model: ModelFile, plan: Plan, source: SampleSource, form: QdqFormat, most_bytes: int = MOMENTS_BYTES
) -> Rounded:
    """Move the plan's INT4 weights to their grids, in place, so that what their layers compute errs little.

    The data runs once for as many layers as second moments fit into `most_bytes`, one sample at a time, so
    that the result does not depend on how many these are. Layers that read the same tensor share its moments.

    Raises:
        DataError, ModelError: see `observe`.
    """
    weights = {item.name: item for item in model.proto.graph.initializer}
    matrices = _matrices(View(model.proto), plan)
    scales: WeightScales = {}
    samples = 0
    for shard in _shards(matrices, most_bytes):
        seen = Products()
        inputs = {name for item in shard for name in item.inputs}
        samples = observe(model, source, inputs, seen.visit, at_once=1).samples
        for item in shard:
            moments = seen.together(item.inputs)
            if np.isfinite(moments.mean).all():  # squares of what FP32 holds may exceed it
                steps = _moved(model, item, weights[item.name], moments, form)
                scales |= {(node.name, 1): steps for node in item.readers}
    return Rounded(scales, samples, left=len(plan.weights) - len(scales))


def _matrices(view: View, plan: Plan) -> list[_Matrix]:
    """The plan's constants that are read as they stand and have not too many rows, in the graph's order."""
    nodes = {node.name: node for node in view.nodes}
    readers: dict[str, list[Node]] = {}
    for place in plan.weights:
        name = nodes[place.node].input[place.index]
        if name in view.constants and view.constants[name].dims[0] <= MOST_CHANNELS:
            readers.setdefault(name, []).append(nodes[place.node])
    return [_Matrix(name, view.constants[name].dims[0], tuple(found)) for name, found in readers.items()]


def _shards(matrices: Iterable[_Matrix], most_bytes: int) -> list[list[_Matrix]]:
    """Runs of weights whose inputs' second moments fit into `most_bytes` together, one weight's at least."""
    shards: list[list[_Matrix]] = []
    held: set[str] = set()
    room = 0
    for item in matrices:
        size = 4 * item.channels * (item.channels + ROWS_AT_ONCE)
        if not shards or size * len(set(item.inputs) - held) > room:
            shards.append([])
            held, room = set(), most_bytes
        shards[-1].append(item)
        room -= size * len(set(item.inputs) - held)
        held |= set(item.inputs)
    return shards


def _moved(
    model: ModelFile, item: _Matrix, weight: onnx.TensorProto, seen: SecondMoments, form: QdqFormat
) -> NDArray[np.float32]:
    """Give the readers a constant of their own, on its grid; its scales [blocks, N]."""

    def scale(rows: NDArray[np.float32], importance: NDArray[np.float32]) -> NDArray[np.float32]:
        return form.fit(weight_scale(rows, 0, form.precision, BLOCK, importance)[0])

    values, steps = rounded(array_of(weight, model.folder), seen, form.precision, BLOCK, scale)
    name = f"{item.name}_rounded"
    moved = spooled(values, name, model.spool) if model.spool else onnx.numpy_helper.from_array(values, name)
    model.proto.graph.initializer.append(moved)
    for node in item.readers:
        node.input[1] = name
    return steps
