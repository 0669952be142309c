"""INT4 weights on a grid, so that what a layer computes on the data errs little rather than its weights.

Source: Frantar et al. 2022, arXiv:2210.17323 (GPTQ): input channel after input channel is rounded, and those
behind it take up its error as far as the channels move together, x·W being what counts.

With H = E[xᵀx] = R·Rᵀ, R upper triangular, and E = W − Ŵ the expected squared error of x·W is ‖Rᵀ·E‖², whose
row i is R[i, i]·(E[i] + Σ A[i, j]·E[j], j < i), A[i, j] = R[j, i]/R[i, i]. So row i is rounded from
W[i] + Σ A[i, j]·E[j]. That is the paper's update through the Cholesky factor of H⁻¹, without the inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.onnxio.graph_walk import names_in, unused_name
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant
from trtopt.precision.observe import ROWS_AT_ONCE, Products, SecondMoments, observe
from trtopt.precision.placement.draft import Node, Plan, Precision, View
from trtopt.precision.placement.products import BLOCK
from trtopt.precision.qdq import RANGE, QdqFormat, weight_scale

FindScale: TypeAlias = "Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]"
"""The scale of each column [N] for rows [≤ block, N], whose errors count by a weight each [≤ block]."""
DAMPING = 0.01
"""Added to H's diagonal, as a share of its mean."""
PER_CHANNEL = 0.3
"""Added besides, times channels a row: what moves together in few rows may not elsewhere."""


def rounded(
    weight: NDArray[Any], seen: SecondMoments, precision: Precision, block: int, scale: FindScale
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`weight` [K, N] moved to its grid for inputs with the second moments [K, K]; and the grid's steps.

    `scale` is called at the beginning of each `block` rows for the scales of its columns, with the rows as
    the errors of those before leave them. Returns the new weight [K, N] and the scales [⌈K/block⌉, N].
    """
    pull, importance = _triangle(seen)
    old = weight.astype(np.float32)
    error = np.zeros_like(old)
    low, high = RANGE[precision]
    scales = []
    for first in range(0, len(old), block):
        end = min(first + block, len(old))
        rows = old[first:end] + pull[first:end, :first] @ error[:first]
        steps = scale(rows, importance[first:end])
        for i, row in enumerate(rows, first):
            wanted = row + pull[i, first:i] @ error[first:i]
            error[i] = old[i] - np.clip(np.rint(wanted / steps), low, high) * steps
        scales.append(steps)
    return old - error, np.stack(scales)


def _triangle(seen: SecondMoments) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A below its diagonal [K, K], and by how much the squared error of each row counts [K].

    Channels that are always zero neither take up errors nor hand any on.
    """
    damped = seen.mean.astype(np.float64)
    mean = damped.diagonal().mean() or 1.0
    damping = DAMPING + PER_CHANNEL * len(damped) / seen.rows
    damped[np.diag_indices_from(damped)] += damping * mean
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    diagonal = upper.diagonal()
    pull = np.ascontiguousarray((upper / diagonal).T, np.float32)
    return pull, np.asarray(np.square(diagonal / diagonal.max()), np.float32)


MOST_CHANNELS = 8192
"""The second moments of more input channels than this take too much memory: 4 bytes times their square."""
MOMENTS_BYTES = 704 << 20
"""Held at a time while second moments are summed; BERT-base's layers take 639 MiB together."""
WeightScales = dict[tuple[str, int], NDArray[np.float32]]
"""Whole scale arrays by (node, input), as `qdq.Scales.weights` takes them."""


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


def round_by_data(model: ModelFile, plan: Plan, source: SampleSource, form: QdqFormat) -> Rounded:
    """Move the plan's INT4 weights to their grids, in place, so that what their layers compute errs little.

    The data runs once for as many layers as second moments fit into `MOMENTS_BYTES`, one sample at a time, so
    that the result does not depend on how many these are. Layers that read the same tensor share its moments.
    """
    weights = {item.name: item for item in model.proto.graph.initializer}
    matrices = _matrices(View(model.proto), plan)
    scales: WeightScales = {}
    samples = 0
    for shard in _shards(matrices):
        seen = Products()
        inputs = {name for item in shard for name in item.inputs}
        samples = observe(model, source, inputs, seen.visit, at_once=1)
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


def _shards(matrices: Iterable[_Matrix]) -> list[list[_Matrix]]:
    """Runs of weights whose inputs' second moments fit into `MOMENTS_BYTES`, one weight's at least."""
    shards: list[list[_Matrix]] = []
    held: set[str] = set()
    room = 0
    for item in matrices:
        size = 4 * item.channels * (item.channels + ROWS_AT_ONCE)
        if not shards or size * len(set(item.inputs) - held) > room:
            shards.append([])
            held, room = set(), MOMENTS_BYTES
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
    name = unused_name(f"{item.name}_rounded", names_in(model.proto.graph))
    model.proto.graph.initializer.append(constant(values, name, model.spool))
    for node in item.readers:
        node.input[1] = name
    return steps
