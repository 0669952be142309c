"""Nodes that count or mix the rows of a batch, whatever its size: they are refused by rule.

A check at some sizes does not find a Slice that ends at row 1000, nor on random samples a condition on the
largest value of a batch, which all of them fulfil.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from trtopt.errors import FixedBatchError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, graphs_of, opset_of
from trtopt.onnxio.model_file import is_external
from trtopt.onnxio.skeleton import LARGE_BYTES
from trtopt.rewrite.axes import FAR
from trtopt.rewrite.batch_path import Grown

_ALONG_AN_AXIS = {"ArgMax": 0, "ArgMin": 0, "TopK": -1, "Softmax": -1, "LogSoftmax": -1, "Hardmax": -1}
"""Operators that mix what lies along an axis, and their default."""
_LAST_AXIS = 13
"""The opset from which on the last three work along one axis."""


def refuse_row_indices(model: onnx.ModelProto, grown: Mapping[str, Grown]) -> None:
    """See that no node picks or adds rows of the batch by number; `grown` holds the batch's axis per tensor.

    Raises:
        FixedBatchError: one does, by name.
    """
    known = _Constants(model)
    for part in graphs_of(model.graph):
        for node in part.node:
            source = grown.get(node.input[0]) if node.input and node.domain in OWN_DOMAINS else None
            problem = None if source is None else known.why_not(node, source)
            if problem is not None:
                raise FixedBatchError(
                    f"node {node.name!r} ({node.op_type}) {problem}",
                    "export the model with a dynamic batch axis, and let it treat every sample alike",
                )


class _Constants:
    """What a model knows of its nodes' operands."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._opset = opset_of(model)
        self._held = {
            item.name: item
            for part in graphs_of(model.graph)
            for item in part.initializer
            if not is_external(item) and item.ByteSize() < LARGE_BYTES
        }

    def why_not(self, node: onnx.NodeProto, source: Grown) -> str | None:
        """What the node does to the rows of its first input that no batch of another size can take."""
        rank, axis = len(source.shape), source.axis
        if node.op_type == "Slice":
            return self._cut(node, rank, axis)
        if node.op_type == "Gather" and self._number(node, "axis", 0) % rank == axis:
            rows = self._numbers(node, "indices", 1)
            return None if rows is None else f"takes the rows {_listed(rows)} of the batch"
        if node.op_type == "Split" and self._number(node, "axis", 0) % rank == axis:
            sizes = self._numbers(node, "split", 1)
            return None if sizes is None else f"splits the batch into {_listed(sizes)} rows"
        if self._mixes(node, rank, axis):
            return "works across the samples of a batch"
        if node.op_type == "Pad":
            pads = self._numbers(node, "pads", 1) or []
            added = pads[axis::rank] if len(pads) == 2 * rank else []
            return f"adds {_listed(added)} rows to the batch" if any(added) else None
        return None

    def _mixes(self, node: onnx.NodeProto, rank: int, axis: int) -> bool:
        """Whether it reduces, sorts or normalises over the batch's axis."""
        if node.op_type.startswith("Reduce"):
            axes = self._numbers(node, "axes", 1)
            if axes is None and len(node.input) > 1 and node.input[1]:
                return False  # computed
            skips = not axes and self._number(node, "noop_with_empty_axes", 0)
            return not skips and (not axes or axis in [place % rank for place in axes])
        if node.op_type == "CumSum":
            return axis in [place % rank for place in self._numbers(node, "axis", 1) or []]
        default = _ALONG_AN_AXIS.get(node.op_type)
        if default is None:
            return node.op_type == "DynamicQuantizeLinear"
        if node.op_type.endswith("max") and self._opset < _LAST_AXIS:
            return self._number(node, "axis", 1) % rank <= axis  # all axes from there on are one
        return self._number(node, "axis", default) % rank == axis

    def _cut(self, node: onnx.NodeProto, rank: int, axis: int) -> str | None:
        starts, ends = self._numbers(node, "starts", 1), self._numbers(node, "ends", 2)
        if starts is None or ends is None or self._is_computed(node, 3) or self._is_computed(node, 4):
            return None
        axes = self._numbers(node, "axes", 3) or list(range(len(starts)))
        steps = self._numbers(node, "steps", 4) or [1] * len(starts)
        for place, start, end, step in zip(axes, starts, ends, steps, strict=False):
            if place % rank == axis and (start != 0 or end < FAR or step != 1):
                by = "" if step == 1 else f" by {step}"
                return f"takes the rows from {start} to {end}{by} of the batch"
        return None

    def _number(self, node: onnx.NodeProto, attribute: str, default: int) -> int:
        return next((int(item.i) for item in node.attribute if item.name == attribute), default)

    def _is_computed(self, node: onnx.NodeProto, position: int) -> bool:
        given = node.input[position : position + 1]
        return any(name and name not in self._held for name in given)

    def _numbers(self, node: onnx.NodeProto, attribute: str, position: int) -> list[int] | None:
        """Integers that older opsets keep in an attribute and newer ones in an input; None if not known."""
        for item in node.attribute:
            if item.name == attribute:
                return [int(number) for number in item.ints]
        name = node.input[position] if len(node.input) > position else ""
        held = self._held.get(name)
        if held is None:
            return None
        return [int(number) for number in onnx.numpy_helper.to_array(held).reshape(-1)]


def _listed(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:4]))
    return f"{text}, …" if len(numbers) > 4 else text
