"""SmoothQuant: outlying channels of an activation are made smaller and the weights' rows larger.

For y = LayerNorm(x)·W: LayerNorm's γ and β are divided, and the rows of every W that reads it multiplied,
by s_j = max|x_j|^α / max|W_j|^(1−α), so that the product stays what it is and x quantises better. Exact only
where nothing else reads the LayerNorm. Source: Xiao et al. 2022, arXiv:2211.10438, equation 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxmodel.model_file import ModelFile, array_of
from trtopt.precision.emission.write import drop_unread
from trtopt.precision.placement.view import Node, View, attribute, is_op
from trtopt.precision.placement.weighted import Weighted, weighted

_NORMS = ("LayerNormalization", "RMSNormalization")
_LEAST = 1e-5


@dataclass(frozen=True)
class Smoothed:
    """A normalisation whose scale can be shared with the layers that read it."""

    norm: Node
    readers: tuple[Weighted, ...]

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
        why_not, readers = _why_not(view, norm)
        if why_not:
            declined.append(f"{norm.name}: {why_not}")
        else:
            found.append(Smoothed(norm, tuple(readers)))
    return found, declined


def _why_not(view: View, norm: Node) -> tuple[str | None, list[Weighted]]:
    tensor = norm.output[0]
    if tensor in view.outputs:
        return "its result is an output", []
    readers = []
    for use in view.uses(tensor):
        item = weighted(view, use.node) if use.index >= 0 else None
        plain = item is not None and item.weight == 1 and use.node.input[1] in view.constants
        if item is None or not plain or not is_op(use.node, "MatMul", "Gemm") or use.index != 0:
            return (
                f"{use.node.name} ({use.node.op_type}) reads it too, and has no weight to take the factor",
                [],
            )
        if is_op(use.node, "Gemm") and attribute(use.node, "transA"):
            return f"{use.node.name} transposes it", []
        readers.append(item)
    axis = attribute(norm, "axis", -1)
    shape = view.shape(norm.input[1])
    if not readers or (axis not in (-1,) and (view.shape(norm.input[0]) or ())[axis + 1 :] != ()):
        return "no layer with weights reads it, or it normalises several axes", []
    if any(name not in view.constants for name in norm.input[1:] if name) or shape is None or len(shape) != 1:
        return "its scale is not one constant a channel", []
    return None, readers


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
    drop_unread(model.proto)


def _is_transposed(item: Weighted) -> bool:
    return is_op(item.node, "Gemm") and bool(attribute(item.node, "transB"))


def _by_row(model: ModelFile, item: Weighted) -> NDArray[Any]:
    """The weight as [K, N]."""
    values = _constant(model, item.node.input[item.weight])
    return values.T if _is_transposed(item) else values


def _constant(model: ModelFile, name: str) -> NDArray[Any]:
    return array_of(next(item for item in model.proto.graph.initializer if item.name == name), model.folder)


def _replace(model: ModelFile, node: Node, index: int, factor: NDArray[Any]) -> None:
    """Give the node a constant of its own, times `factor`: others may read the old one."""
    old = _constant(model, node.input[index])
    name = f"{node.input[index]}_smoothed_{node.name}"
    values = (old.astype(np.float64) * factor).astype(old.dtype)
    model.proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    node.input[index] = name
