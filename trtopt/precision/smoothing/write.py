"""Factors moved from activations into the weights that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.row_parts import constant_of_parts, runs_of_rows
from trtopt.precision.placement.view import Node, attribute, is_op
from trtopt.precision.placement.weighted import Weighted
from trtopt.precision.qdq.write import drop_unread
from trtopt.precision.smoothing.factors import spread
from trtopt.precision.smoothing.places import Place


def by_row(model: ModelFile, item: Weighted) -> NDArray[Any]:
    """A layer's weight as [K, N]."""
    values = _constant(model, item.node.input[item.weight])
    return values.T if _is_transposed(item) else values


def smooth(model: ModelFile, places: Iterable[Place], factors: Mapping[str, Mapping[int, float]]) -> None:
    """Move the factors of each place's tensor, in place."""
    for place in places:
        factor = spread(factors[place.tensor], place.readers[0].k)
        for item in place.readers:
            across = factor[None, :] if _is_transposed(item) else factor[:, None]
            _replace(model, item.node, item.weight, across)
        if not place.is_norm:
            divided = _multiplied(model, place, "smoothed", 1 / factor)
            for item in place.readers:
                item.node.input[item.activation] = divided
            continue
        for index in (1, 2):
            if len(place.maker.input) > index and place.maker.input[index]:
                _replace(model, place.maker, index, 1 / factor)
        if place.others:
            whole = _multiplied(model, place, "unsmoothed", factor)
            for use in place.others:
                use.node.input[use.index] = whole
    drop_unread(model.proto)


def _multiplied(model: ModelFile, place: Place, suffix: str, factor: NDArray[Any]) -> str:
    """The place's tensor times `factor`, by a node behind the one that makes it."""
    graph, product = model.proto.graph, f"{place.tensor}_{suffix}"
    kind = onnx.helper.tensor_dtype_to_np_dtype(_entry(model, place.readers[0].node.input[1]).data_type)
    values = onnx.numpy_helper.from_array(factor.astype(kind), f"{product}_factor")
    graph.initializer.append(values)
    name = f"{place.maker.name}_{suffix}"
    position = next(index for index, node in enumerate(graph.node) if node.name == place.maker.name)
    graph.node.insert(
        position + 1, onnx.helper.make_node("Mul", [place.tensor, values.name], [product], name)
    )
    for declared in [item for item in graph.value_info if item.name == place.tensor]:
        graph.value_info.add().CopyFrom(declared)
        graph.value_info[-1].name = product
    return product


def _is_transposed(item: Weighted) -> bool:
    return is_op(item.node, "Gemm") and bool(attribute(item.node, "transB"))


def _constant(model: ModelFile, name: str) -> NDArray[Any]:
    return array_of(_entry(model, name), model.folder)


def _entry(model: ModelFile, name: str) -> onnx.TensorProto:
    weights: Iterable[onnx.TensorProto] = model.proto.graph.initializer
    return next(item for item in weights if item.name == name)


def _replace(model: ModelFile, node: Node, index: int, factor: NDArray[Any]) -> None:
    """Give the node a constant of its own, times `factor`: others may read the old one."""
    old = _constant(model, node.input[index])
    name = f"{node.input[index]}_smoothed_{node.name}"
    factors = np.broadcast_to(factor, old.shape)
    parts = ((old[run].astype(np.float64) * factors[run]).astype(old.dtype) for run in runs_of_rows(old))
    model.proto.graph.initializer.append(constant_of_parts(parts, old.dtype, old.shape, name, model.spool))
    node.input[index] = name
