"""Smoothing a model before it is quantised: outlying channels of activations made smaller, weights larger.

x·W = (x/s)·(s·W) for any s > 0: what is hard to quantise can be shared between the two, exactly. Behind a
normalisation, γ and β take the division; what reads it and has no such weights, as the residual of BERT's
blocks, reads it times s: one multiplication that can fuse with the addition behind it. In front of
attention's projection the weights of V take the division, behind a gated product those of its linear side.
Nothing is put between GELU and its Q: it would keep GELU out of its product's kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.errors import ArtifactError
from trtopt.onnxio.graph_walk import attribute, names_in, unused_name
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.weights import constant_of_parts, runs_of_rows
from trtopt.precision.observe import ChannelValues, PerChannel, observe
from trtopt.precision.placement.draft import NORMS, Dims, Node, PlacementOptions, Use, View, is_op
from trtopt.precision.placement.place import place
from trtopt.precision.placement.products import Weighted, weighted
from trtopt.precision.qdq import drop_unread
from trtopt.printable import counted

Factors: TypeAlias = "dict[int, float]"
"""What a channel is divided by; those that are not in it stay."""
Matrices: TypeAlias = "Sequence[NDArray[Any]]"
_STEPS = 20
"""Caps that are tried, a quarter of an octave apart."""
WORTHWHILE = 0.5
"""The largest share of the estimated error that may be left: less than halving it is not worth the change."""


def by_error(seen: ChannelValues, weights: Matrices) -> tuple[Factors, float] | None:
    """The channels above a cap divided down to it, with the cap at which INT8 is expected to err least.

    And the share of the error that is expected to remain; None if that is more than `WORTHWHILE`.
    """
    peaks = seen.peaks.astype(np.float64)
    if not peaks.any():
        return None
    trials = [np.maximum(1.0, peaks / (peaks.max() * 2 ** (-step / 4))) for step in range(_STEPS + 1)]
    errors = [_error(seen, weights, factors) for factors in trials]
    best = int(np.argmin(errors))
    left = errors[best] / errors[0] if errors[0] else 1.0
    return (_as_factors(trials[best]), left) if left <= WORTHWHILE else None


def _error(seen: ChannelValues, weights: Matrices, factors: NDArray[np.float64]) -> float:
    """Expected squared error of (x/s)·(s·W) in INT8, up to a factor that does not depend on s.

    Rounding to steps of a/127 errs by (a/127)²/12 on average; a is max|x/s| for the activation, the largest
    of its column for a weight. Errors of the activation pass through the weights, those of weights through
    the activation's mean squares.
    """
    step = float(np.max(seen.peaks / factors)) ** 2
    signal = float(np.sum(seen.mean_squares / factors**2))
    found = 0.0
    for matrix in weights:
        scaled = np.abs(matrix) * factors[:, None].astype(np.float32)
        found += step * float(np.vdot(scaled, scaled)) + signal * float(np.sum(scaled.max(axis=0) ** 2))
    return found


def _as_factors(factors: NDArray[Any]) -> Factors:
    """Four digits, as the calibration table keeps them, of those that are not 1."""
    return {int(index): float(f"{factors[index]:.4g}") for index in np.flatnonzero(factors != 1)}


def spread(factors: Mapping[int, float], channels: int) -> NDArray[np.float64]:
    """One factor for each channel."""
    whole = np.ones(channels)
    whole[list(factors)] = list(factors.values())
    return whole


@dataclass(frozen=True)
class Place:
    """An activation that layers with weights read; `others` read it too and must not notice.

    `folds` are the constants that make its channels, by node and input: the division goes into them.
    """

    maker: Node
    folds: tuple[tuple[Node, int], ...]
    readers: tuple[Weighted, ...]
    others: tuple[Use, ...]

    @property
    def tensor(self) -> str:
        """The activation."""
        return str(self.maker.output[0])


def find(view: View) -> list[Place]:
    """Where smoothing is exact."""
    found = []
    for node in view.nodes:
        is_norm = is_op(node, *NORMS)
        if not is_norm and not is_op(node, "Reshape", "Mul"):
            continue
        readers, others = _readers(view, node)
        if not is_norm:
            folds = _linear_makers(view, node.output[0], readers[0].k) if readers and not others else []
            if folds:
                found.append(Place(node, tuple(folds), tuple(readers), ()))
        elif readers and _takes_division(view, node, others):
            weights = [(node, index) for index in (1, 2) if len(node.input) > index and node.input[index]]
            found.append(Place(node, tuple(weights), tuple(readers), tuple(others)))
    return found


def _linear_makers(view: View, tensor: str, channels: int, heads: int = 0) -> list[tuple[Node, int]]:
    """The weight and the bias that the tensor's channels are proportional to; empty if there are none.

    The way leads through attention's second product, whose channels are V's, and one side of a gated product.
    `heads` is the axis that counts heads where channels are split into them, 0 where they are not.
    """
    node = view.maker.get(tensor)
    if node is None or not view.outputs.isdisjoint(node.output):
        return []
    computed = view.computed_inputs(node)
    item = weighted(view, node)
    if item is not None:
        is_whole = not heads and item.n == channels and _takes_factors(view, item)
        biases = [index for index in range(2, len(node.input)) if node.input[index]]
        if not is_whole or any(view.shape(node.input[index]) != (channels,) for index in biases):
            return []
        return [(node, index) for index in (item.weight, *biases)]
    if is_op(node, "Add") and len(computed) == 1 and not heads:
        constant = 1 - computed[0]
        behind = _linear_behind(view, node, computed[0], channels, 0)
        is_bias = view.shape(node.input[constant]) == (channels,)
        return [(node, constant), *behind] if behind and is_bias else []
    if is_op(node, "Reshape"):
        split = [_are_heads(view.shape(name), channels) for name in (node.input[0], tensor)]
        is_passed = split[0] != split[1] and heads == (2 if split[1] else 0)
        return _linear_behind(view, node, 0, channels, 2 * split[0]) if is_passed else []
    if is_op(node, "Transpose") and heads:
        is_swap = attribute(node, "perm") == [0, 2, 1, 3]
        return _linear_behind(view, node, 0, channels, 3 - heads) if is_swap else []
    if len(computed) == 2 and is_op(node, "MatMul") and heads != 2:
        return _linear_behind(view, node, 1, channels, heads)
    if len(computed) == 2 and is_op(node, "Mul") and not heads:
        sides = (_linear_behind(view, node, index, channels, 0) for index in (0, 1))
        return next(filter(None, sides), [])
    return []


def _linear_behind(view: View, node: Node, index: int, channels: int, heads: int) -> list[tuple[Node, int]]:
    tensor = node.input[index]
    return _linear_makers(view, tensor, channels, heads) if view.only_use(tensor) is not None else []


def _are_heads(shape: Dims | None, channels: int) -> bool:
    """Whether the last two of four axes are channels, split."""
    return shape is not None and len(shape) == 4 and (shape[2] or 0) * (shape[3] or 0) == channels


def _readers(view: View, maker: Node) -> tuple[list[Weighted], list[Use]]:
    """The layers whose weights can take the factor, and the other readers of the activation."""
    readers, others = [], []
    for use in view.uses(maker.output[0]):
        item = weighted(view, use.node) if use.index == 0 and is_op(use.node, "MatMul", "Gemm") else None
        if item is not None and _takes_factors(view, item):
            readers.append(item)
        else:
            others.append(use)
    return readers, others


def _takes_factors(view: View, item: Weighted) -> bool:
    """Whether its weight is a constant matrix on the right whose rows are the activation's channels."""
    weight = view.constants.get(item.node.input[1]) if item.weight == 1 else None
    return weight is not None and len(weight.dims) == 2 and not attribute(item.node, "transA")


def _takes_division(view: View, norm: Node, others: list[Use]) -> bool:
    """Whether nothing but nodes of the graph reads it, and its scale is one constant for each channel."""
    axis = attribute(norm, "axis", -1)
    shape = view.shape(norm.input[1])
    return (
        norm.output[0] not in view.outputs
        and all(use.index >= 0 for use in others)
        and (axis == -1 or (view.shape(norm.input[0]) or ())[axis + 1 :] == ())
        and all(name in view.constants for name in norm.input[1:] if name)
        and shape is not None
        and len(shape) == 1
    )


def by_row(model: ModelFile, item: Weighted) -> NDArray[Any]:
    """A layer's weight as [K, N]."""
    values = _constant(model, item.node.input[item.weight])
    return values.T if _is_transposed(item.node) else values


def smooth(model: ModelFile, places: Iterable[Place], factors: Mapping[str, Mapping[int, float]]) -> None:
    """Move the factors of each place's tensor, in spot."""
    for spot in places:
        factor = spread(factors[spot.tensor], spot.readers[0].k)
        for item in spot.readers:
            across = factor[None, :] if _is_transposed(item.node) else factor[:, None]
            _replace(model, item.node, item.weight, across)
        for node, index in spot.folds:
            _replace(model, node, index, 1 / (factor[:, None] if _is_transposed(node) else factor))
        if spot.others:
            whole = _unsmoothed(model, spot, factor)
            for use in spot.others:
                use.node.input[use.index] = whole
    drop_unread(model.proto)


def _unsmoothed(model: ModelFile, place: Place, factor: NDArray[Any]) -> str:
    """The place's tensor times `factor`, by a node behind the one that makes it."""
    graph = model.proto.graph
    product = unused_name(f"{place.tensor}_unsmoothed", names_in(graph))
    kind = onnx.helper.tensor_dtype_to_np_dtype(_entry(model, place.readers[0].node.input[1]).data_type)
    values = onnx.numpy_helper.from_array(factor.astype(kind), f"{product}_factor")
    graph.initializer.append(values)
    name = f"{place.maker.name}_unsmoothed"
    position = next(index for index, node in enumerate(graph.node) if node.name == place.maker.name)
    graph.node.insert(
        position + 1, onnx.helper.make_node("Mul", [place.tensor, values.name], [product], name)
    )
    for declared in [item for item in graph.value_info if item.name == place.tensor]:
        graph.value_info.add().CopyFrom(declared)
        graph.value_info[-1].name = product
    return product


def _is_transposed(node: Node) -> bool:
    return is_op(node, "Gemm") and bool(attribute(node, "transB"))


def _constant(model: ModelFile, name: str) -> NDArray[Any]:
    return array_of(_entry(model, name), model.folder)


def _entry(model: ModelFile, name: str) -> onnx.TensorProto:
    weights: Iterable[onnx.TensorProto] = model.proto.graph.initializer
    return next(item for item in weights if item.name == name)


def _replace(model: ModelFile, node: Node, index: int, factor: NDArray[Any]) -> None:
    """Give the node a constant of its own, times `factor`: others may read the old one."""
    old = _constant(model, node.input[index])
    name = unused_name(f"{node.input[index]}_smoothed_{node.name}", names_in(model.proto.graph))
    factors = np.broadcast_to(factor, old.shape)
    parts = ((old[run].astype(np.float64) * factors[run]).astype(old.dtype) for run in runs_of_rows(old))
    model.proto.graph.initializer.append(constant_of_parts(parts, old.dtype, old.shape, name, model.spool))
    node.input[index] = name


def smooth_by_data(
    model: ModelFile, source: SampleSource, options: PlacementOptions
) -> tuple[dict[str, Factors], list[str]]:
    """Smooth in place what is to be quantised; the factors by tensor, and what to say.

    Wherever the form allows it and it is expected to halve the error behind it at least. A residual
    in INT8 reads a normalisation unscaled.
    """
    view = View(model.proto)
    quantized = {weight.node for weight in place(view, options).weights}
    adds_nodes = options.forms.smoothing == "everywhere" and options.forms.residual == "none"
    places = [
        item
        for item in find(view)
        if (adds_nodes or not item.others) and quantized & {reader.node.name for reader in item.readers}
    ]
    seen = PerChannel()
    if places:
        observe(model, source, [item.tensor for item in places], seen.visit)
    factors: dict[str, Factors] = {}
    left: dict[str, float] = {}
    for item in places:
        weights = [by_row(model, reader) for reader in item.readers]
        if found := by_error(seen.values(item.tensor), weights):
            factors[item.tensor], left[item.tensor] = found
    smooth(model, [item for item in places if item.tensor in factors], factors)
    return factors, _notes_on(factors, left)


def smooth_by_table(model: ModelFile, factors: Mapping[str, Factors], table: str) -> None:
    """Smooth in place by a table's factors."""
    places = {item.tensor: item for item in find(View(model.proto))}
    for tensor, row in factors.items():
        if tensor not in places or not all(0 <= channel < places[tensor].readers[0].k for channel in row):
            raise ArtifactError(
                f"{table}: channels of {tensor!r} are divided in it, which this model cannot do",
                "the table was made for another model: calibrate again with --data DATA",
            )
    smooth(model, [item for tensor, item in places.items() if tensor in factors], factors)


def _notes_on(factors: Mapping[str, Factors], left: Mapping[str, float]) -> list[str]:
    if not factors:
        return []
    most = max(factors, key=lambda name: max(factors[name].values()))
    best, least = (f"{share(left.values()):.0%}" for share in (min, max))
    return [
        f"outlier channels of {counted(len(factors), 'tensor')} are divided, by "
        f"{max(factors[most].values()):.1f} at most (in {most!r}), and the weights behind "
        "multiplied: the error there is expected to fall to "
        f"{best if best == least else f'between {best} and {least}'} (--forms smoothing=off leaves them)"
    ]
