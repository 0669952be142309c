"""SmoothQuant: outlying channels of an activation are made smaller and the weights' rows larger.

For y = LayerNorm(x)·W: LayerNorm's γ and β are divided, and the rows of every W that reads it multiplied,
by s_j = max|x_j|^α / max|W_j|^(1−α), so that the product stays what it is and x quantises better. What else
reads the LayerNorm, as the residual of BERT's blocks does, reads it times s: one multiplication that can fuse
with the addition behind it. Source: Xiao et al. 2022, arXiv:2211.10438, equation 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxmodel.model_file import ModelFile, array_of
from trtopt.precision.emission.write import drop_unread
from trtopt.precision.placement.view import Node, Use, View, attribute, is_op
from trtopt.precision.placement.weighted import Weighted, weighted

_NORMS = ("LayerNormalization", "RMSNormalization")
_LEAST = 1e-5


@dataclass(frozen=True)
class Smoothed:
    """A normalisation whose scale can be shared with the layers that read it; `others` must not notice."""

    norm: Node
    readers: tuple[Weighted, ...]
    others: tuple[Use, ...]

    @property
    def tensor(self) -> str:
        """The activation between them."""
        return str(self.norm.output[0])


def find(view: View) -> tuple[list[Smoothed], list[str]]:
    """Where smoothing is exact, and for each other normalisation why it is not."""
    found, declined = [], []
    for norm in view.nodes:
        if not is_op(norm, *_NORMS):
            continue
        readers, others = _readers(view, norm)
        if why_not := _why_not(view, norm, readers, others):
            declined.append(f"{norm.name}: {why_not}")
        else:
            found.append(Smoothed(norm, tuple(readers), tuple(others)))
    return found, declined


def _readers(view: View, norm: Node) -> tuple[list[Weighted], list[Use]]:
    """The layers whose weights can take the factor, and whoever else reads the normalisation."""
    readers, others = [], []
    for use in view.uses(norm.output[0]):
        item = weighted(view, use.node) if use.index == 0 and is_op(use.node, "MatMul", "Gemm") else None
        plain = item is not None and item.weight == 1 and use.node.input[1] in view.constants
        if item is not None and plain and not attribute(use.node, "transA"):
            readers.append(item)
        else:
            others.append(use)
    return readers, others


def _why_not(view: View, norm: Node, readers: list[Weighted], others: list[Use]) -> str | None:
    if norm.output[0] in view.outputs:
        return "its result is an output"
    inside = next((use.node for use in others if use.index < 0), None)
    if inside is not None:
        return f"the subgraph of {inside.name} ({inside.op_type}) reads it too"
    axis = attribute(norm, "axis", -1)
    shape = view.shape(norm.input[1])
    if not readers or (axis not in (-1,) and (view.shape(norm.input[0]) or ())[axis + 1 :] != ()):
        return "no layer with weights reads it, or it normalises several axes"
    if any(name not in view.constants for name in norm.input[1:] if name) or shape is None or len(shape) != 1:
        return "its scale is not one constant a channel"
    return None


def smooth(
    model: ModelFile, places: list[Smoothed], peaks: Mapping[str, NDArray[np.float32]], alpha: float
) -> None:
    """Move the factors, in place; `peaks` is the largest |x| of each channel of each place's tensor."""
    for place in places:
        rows = [_by_row(model, item) for item in place.readers]
        weight = np.max([np.abs(matrix).max(axis=1) for matrix in rows], axis=0)
        factor = np.maximum(peaks[place.tensor], _LEAST) ** alpha / np.maximum(weight, _LEAST) ** (1 - alpha)
        for index in (1, 2):
            if len(place.norm.input) > index and place.norm.input[index]:
                _replace(model, place.norm, index, 1 / factor)
        for item in place.readers:
            across = factor[None, :] if _is_transposed(item) else factor[:, None]
            _replace(model, item.node, item.weight, across)
        if place.others:
            _undo_for(model, place, factor)
    drop_unread(model.proto)


def _undo_for(model: ModelFile, place: Smoothed, factor: NDArray[Any]) -> None:
    """Let those that have no weight to take the factor read the normalisation times it."""
    graph, whole = model.proto.graph, f"{place.tensor}_unsmoothed"
    kind = onnx.helper.tensor_dtype_to_np_dtype(_entry(model, place.norm.input[1]).data_type)
    values = onnx.numpy_helper.from_array(factor.astype(kind), f"{whole}_factor")
    graph.initializer.append(values)
    for use in place.others:
        use.node.input[use.index] = whole
    name = f"{place.norm.name}_unsmoothed"
    position = next(index for index, node in enumerate(graph.node) if node.name == place.norm.name)
    graph.node.insert(position + 1, onnx.helper.make_node("Mul", [place.tensor, values.name], [whole], name))
    for declared in [item for item in graph.value_info if item.name == place.tensor]:
        graph.value_info.add().CopyFrom(declared)
        graph.value_info[-1].name = whole


def _is_transposed(item: Weighted) -> bool:
    return is_op(item.node, "Gemm") and bool(attribute(item.node, "transB"))


def _by_row(model: ModelFile, item: Weighted) -> NDArray[Any]:
    """The weight as [K, N]."""
    values = _constant(model, item.node.input[item.weight])
    return values.T if _is_transposed(item) else values


def _constant(model: ModelFile, name: str) -> NDArray[Any]:
    return array_of(_entry(model, name), model.folder)


def _entry(model: ModelFile, name: str) -> onnx.TensorProto:
    weights: Iterable[onnx.TensorProto] = model.proto.graph.initializer
    return next(item for item in weights if item.name == name)


def _replace(model: ModelFile, node: Node, index: int, factor: NDArray[Any]) -> None:
    """Give the node a constant of its own, times `factor`: others may read the old one."""
    old = _constant(model, node.input[index])
    name = f"{node.input[index]}_smoothed_{node.name}"
    values = (old.astype(np.float64) * factor).astype(old.dtype)
    model.proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    node.input[index] = name
