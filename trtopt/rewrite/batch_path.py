"""Where the batch lies in each tensor of a model that was exported with a fixed one.

It is followed from the inputs, node by node: ONNX's inference shows how an output grows at twice the batch.
A Reshape to a constant shape keeps the order of the elements. As many of them precede the batch as before,
which gives the axis. With a batch of 1 it may lie at the end of one axis or at the start of the next: the
second is taken, and the first if the rest of the model then does not fit. If nothing fits, the result is
empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx

from trtopt.onnxio import prepare
from trtopt.onnxio.graph_walk import OWN_DOMAINS, opset_of, subgraphs_of
from trtopt.onnxio.model_file import is_external
from trtopt.onnxio.skeleton import LARGE_BYTES

_IN_ORDER = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_MOST_TRIALS = 64

Shape = tuple[int, ...]


class _DoesNotFitError(Exception):
    """The node does not take the shapes that it gets at twice the batch."""


@dataclass(frozen=True)
class Grown:
    """A shape at the old batch, the axis that the batch is part of, and how often all of it recurs there."""

    shape: Shape
    axis: int
    outer: int = 1

    @property
    def twice(self) -> Shape:
        """The shape at twice the batch."""
        return tuple(2 * size if place == self.axis else size for place, size in enumerate(self.shape))

    @property
    def before(self) -> int:
        """How many times the batch recurs in all of the tensor."""
        return prod(self.shape[: self.axis]) * self.outer


def followed(model: onnx.ModelProto, batch: int, *, as_far_as_it_goes: bool = False) -> dict[str, Grown]:
    """How the tensors of the main graph grow with the batch, as far as that is known, by name.

    Empty for a graph that does not fit together at twice the batch. With `as_far_as_it_goes`, the part
    before the nodes that do not fit.
    """
    types = _types_of(model)
    if as_far_as_it_goes:
        return _Walk(model, batch, types, {}).all(passing=True)
    choices: dict[tuple[Shape, int, int, Shape], list[Grown]] = {}
    for _ in range(_MOST_TRIALS):
        walk = _Walk(model, batch, types, choices)
        try:
            return walk.all()
        except _DoesNotFitError:
            while choices and len(list(choices.values())[-1]) == 1:
                choices.popitem()
            if not choices:
                break
            list(choices.values())[-1].pop(0)
    return {}


def _types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The type of every tensor whose lengths are all known."""
    graph = prepare.inferred(model).graph
    found = {
        item.name: onnx.helper.make_tensor_type_proto(item.data_type, list(item.dims))
        for item in model.graph.initializer
    }
    for item in (*graph.input, *graph.value_info, *graph.output):
        axes = item.type.tensor_type.shape.dim
        if item.type.tensor_type.HasField("shape") and all(axis.HasField("dim_value") for axis in axes):
            found.setdefault(item.name, item.type)
    return found


def _shape(kind: onnx.TypeProto) -> Shape:
    return tuple(axis.dim_value for axis in kind.tensor_type.shape.dim)


class _Walk:
    """One way through the graph; what a Reshape at batch 1 may do is in `choices`, the first is taken."""

    def __init__(
        self,
        model: onnx.ModelProto,
        batch: int,
        types: Mapping[str, onnx.TypeProto],
        choices: dict[tuple[Shape, int, int, Shape], list[Grown]],
    ) -> None:
        self._model, self._batch, self._types, self._choices = model, batch, types, choices
        self._opset = opset_of(model)
        self._data = {
            item.name: item
            for item in model.graph.initializer
            if not is_external(item) and item.ByteSize() < LARGE_BYTES
        }
        self._fixed = {item.name for item in model.graph.initializer}
        self._grown: dict[str, Grown] = {}

    def all(self, *, passing: bool = False) -> dict[str, Grown]:
        """What grows; `passing` by nodes that do not fit.

        Raises:
            _DoesNotFitError: a node that refuses what it gets.
        """
        for item in self._model.graph.input:
            if item.name not in self._fixed and item.name in self._types:
                self._grown[item.name] = Grown(_shape(self._types[item.name]), 0)
        for node in self._model.graph.node:
            needed = node.input[:1] if node.op_type == "Reshape" else node.input  # its shape may be computed
            if all(name in self._fixed or name in self._grown for name in needed if name):
                try:
                    self._step(node)
                except _DoesNotFitError:
                    if not passing:
                        raise
        return self._grown

    def _step(self, node: onnx.NodeProto) -> None:
        """Note the outputs of a node whose inputs are known; those of one whose growth is unknown are not."""
        if any(name not in self._types for name in node.output if name) or any(subgraphs_of(node)):
            return
        if not any(name in self._grown for name in node.input):
            self._fixed |= set(node.output)
            return
        source = self._grown.get(node.input[0])
        out = _shape(self._types[node.output[0]])
        if node.op_type == "Reshape":
            self._grown[node.output[0]] = self._reshaped(source, out)
        elif node.op_type == "Concat":
            self._grown[node.output[0]] = self._joined(node, out)
        elif source is not None and node.op_type in ("Expand", "Resize") and node.input[-1] in self._fixed:
            axis = len(out) - len(source.shape) + source.axis
            if out[axis] == source.shape[source.axis]:
                self._grown[node.output[0]] = Grown(out, axis, source.outer)
        else:
            self._infer(node)

    def _reshaped(self, source: Grown | None, out: Shape) -> Grown:
        if source is None or 0 in (*source.shape, *out):  # a shape that depends on how long the batch is
            raise _DoesNotFitError
        key = (source.shape, source.axis, source.before, out)
        if key not in self._choices:
            ways = _ways(source, out, self._batch)
            if not ways:
                raise _DoesNotFitError
            self._choices[key] = ways
        return self._choices[key][0]

    def _joined(self, node: onnx.NodeProto, out: Shape) -> Grown:
        """A Concat: of what does not grow the rows are repeated."""
        axis = next(item.i for item in node.attribute if item.name == "axis") % len(out)
        parts = [self._grown[name] for name in node.input if name in self._grown]
        if len({part.axis for part in parts}) > 1 or (parts[0].axis == axis and len(node.input) > 1):
            raise _DoesNotFitError
        return Grown(out, parts[0].axis, parts[0].outer)

    def _infer(self, node: onnx.NodeProto) -> None:
        if node.domain not in OWN_DOMAINS or not onnx.defs.has(node.op_type, self._opset, ""):
            return
        known = {name: self._type(name) for name in node.input if name}
        data = {name: self._data[name] for name in node.input if name in self._data}
        schema = onnx.defs.get_schema(node.op_type, self._opset, "")
        imports = [onnx.helper.make_opsetid("", self._opset)]
        try:
            found = onnx.shape_inference.infer_node_outputs(schema, node, known, data, opset_imports=imports)
        except (onnx.shape_inference.InferenceError, RuntimeError) as error:
            raise _DoesNotFitError from error
        parts = [self._grown[name] for name in node.input if name in self._grown]
        for name in filter(None, node.output):
            self._note(name, found.get(name), parts, is_in_order=node.op_type in _IN_ORDER)

    def _type(self, name: str) -> onnx.TypeProto:
        kind = self._types.get(name)
        if name not in self._grown or kind is None:
            return kind if kind is not None else onnx.TypeProto()
        return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, self._grown[name].twice)

    def _note(
        self, name: str, kind: onnx.TypeProto | None, parts: Sequence[Grown], *, is_in_order: bool
    ) -> None:
        """Note how an output grows: its inferred shape at twice the batch against the one at the batch."""
        old = _shape(self._types[name])
        if (
            kind is None
            or 0 in old
            or not all(axis.HasField("dim_value") for axis in kind.tensor_type.shape.dim)
        ):
            return
        new = _shape(kind)
        places = [place for place, size in enumerate(old) if len(new) == len(old) and new[place] != size]
        if len(places) != 1 or new[places[0]] != 2 * old[places[0]]:
            return
        outer = max(part.outer for part in parts)
        if is_in_order:
            outer = parts[0].before // prod(old[: places[0]])
        self._grown[name] = Grown(old, places[0], outer)


def _ways(source: Grown, out: Shape, batch: int) -> list[Grown]:
    """The axes of `out` in which the batch may lie: where one begins, where it lay before, as long as it."""
    found = []
    for axis, size in enumerate(out):
        outside = prod(out[:axis])
        if source.before % outside == 0 and size % (source.before // outside * batch) == 0:
            found.append(Grown(out, axis, source.before // outside))

    def moves(way: Grown) -> bool:
        return way.axis != source.axis or out[: way.axis] != source.shape[: way.axis]

    found.sort(key=lambda way: (way.outer, moves(way), out[way.axis] != batch))
    return found
