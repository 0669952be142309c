"""Shapes of a graph whose inputs have known shapes: what its nodes compute about shapes is computed.

ONNX's inference follows such values through a few operators only. What it does not follow stays open, with
every shape after it; exported transformers compute masks and reshapes that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

_LARGEST = 4096
"""Elements of what still counts as a shape, or an index of positions."""
_ROUNDS = 100
_STANDARD = ("", "ai.onnx")


def infer_concrete(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with all types and shapes that are found; nodes whose values are, are initializers there.

    Raises:
        onnx.shape_inference.InferenceError: they contradict each other.
    """
    from onnx import numpy_helper

    from trtopt.onnxio.shape_inference import infer_shapes

    found = infer_shapes(model)
    for _ in range(_ROUNDS):
        values = dict(_computed(found))
        if not values:
            break
        kept = [node for node in found.graph.node if not set(node.output) <= values.keys()]
        del found.graph.node[:]
        found.graph.node.extend(kept)
        made = [numpy_helper.from_array(array, name) for name, array in values.items()]
        found.graph.initializer.extend(made)
        others = [value for value in found.graph.value_info if value.name not in values]
        del found.graph.value_info[:]
        found.graph.value_info.extend(others)
        found = infer_shapes(found)
    return found


def _computed(model: onnx.ModelProto) -> Iterator[tuple[str, NDArray[Any]]]:
    """Values of whole numbers and booleans that follow from shapes and from constants."""
    from onnx import helper, numpy_helper

    known = {
        item.name: numpy_helper.to_array(item)
        for item in model.graph.initializer
        if item.data_location != item.EXTERNAL
        and np.prod(item.dims) <= _LARGEST
        and helper.tensor_dtype_to_np_dtype(item.data_type).kind in "iub"
    }
    shapes = _shapes(model)
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        if node.domain not in _STANDARD or outputs & set(node.output):
            continue
        arrays = _results(node, known, shapes, model)
        if arrays is None or any(one.dtype.kind not in "iub" or one.size > _LARGEST for one in arrays):
            continue
        for name, array in zip(node.output, arrays, strict=True):
            known[name] = array
            yield name, array


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    found = {}
    for value in (*model.graph.input, *model.graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(axis.HasField("dim_value") for axis in tensor.shape.dim):
            found[value.name] = tuple(axis.dim_value for axis in tensor.shape.dim)
    return found | {item.name: tuple(item.dims) for item in model.graph.initializer}


def _results(
    node: onnx.NodeProto,
    known: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    model: onnx.ModelProto,
) -> list[NDArray[Any]] | None:
    """What a node computes; None where its inputs, or how, are not known."""
    from onnx.reference import ReferenceEvaluator

    inputs = {name for name in node.input if name}
    if node.op_type in ("Shape", "Size"):
        if node.input[0] not in shapes:
            return None
        # only the shape is read: no memory stands behind it
        feeds = {node.input[0]: np.broadcast_to(np.int8(0), shapes[node.input[0]])}
    elif not inputs <= known.keys() or any(item.HasField("g") for item in node.attribute):
        return None
    else:
        feeds = {name: known[name] for name in inputs}
    versions = {item.domain: item.version for item in model.opset_import}
    try:
        return [np.asarray(one) for one in ReferenceEvaluator(node, opsets=versions).run(None, feeds)]
    except Exception:  # noqa: BLE001  (operators of the reference raise whatever they run into)
        return None
