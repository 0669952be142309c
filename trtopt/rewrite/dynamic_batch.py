"""A dynamic batch axis for a model that was exported with a fixed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import FixedBatchError
from trtopt.onnxio import shape_inference
from trtopt.onnxio.graph_walk import graphs_of, names_in, unused_name
from trtopt.rewrite.batch_path import Patched, followed
from trtopt.rewrite.batch_rules import Number, PerSample

NAME = "batch"


def fixed_batch(model: onnx.ModelProto) -> int:
    """The batch size that every input has as its first axis; scalars have none, and serve all samples."""
    sizes = {}
    for item in feeds.inputs_of(model):
        axes = item.type.tensor_type.shape.dim
        if axes or not item.type.tensor_type.HasField("shape"):
            sizes[item.name] = axes[0].dim_value if axes and axes[0].HasField("dim_value") else 0
    if not sizes:
        raise FixedBatchError("no input has a batch axis", "build the model as it is")
    opened = [name for name, size in sizes.items() if not size]
    if opened:
        raise FixedBatchError(
            f"the batch axis of input {opened[0]!r} is dynamic already", "build the model as it is"
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise FixedBatchError(
            f"the inputs do not share their first axis ({listed})", "export with a dynamic batch axis"
        )
    return int(next(iter(sizes.values())))


class _Patches:
    """Writes what nodes read instead: constants, and numbers that are computed of the batch at run time.

    All of it is made in the main graph: nodes of subgraphs may read that.
    """

    def __init__(self, graph: onnx.GraphProto, source: str) -> None:
        self._graph, self._source, self._taken = graph, source, names_in(graph)
        self._made: dict[tuple[object, ...], str] = {}
        self._head: list[onnx.NodeProto] = []

    def apply(self, patches: Sequence[Patched]) -> list[str]:
        """Patch the nodes, in place; the names of what they read before."""
        before: list[tuple[Patched, onnx.NodeProto]] = []
        names = set()
        for place in patches:
            node, patch = place.part.node[place.index], place.patch
            node.input.extend([""] * (patch.position + 1 - len(node.input)))
            old = node.input[patch.position]
            names.add(old or node.name)
            made, numbers = self._numbers(patch.numbers, old)
            if patch.kind == "expanded":
                made.append(self._new("Expand", [old, numbers]))
            node.input[patch.position] = made[-1].output[0] if made else numbers
            before += [(place, each) for each in made]
            for item in node.attribute:  # the one 0 that may be there now is a copy
                if item.name == "allowzero":
                    item.i = 0
        for place, each in reversed(before):  # those behind first: an index stays right
            place.part.node.insert(place.index, each)
        for node in reversed(self._head):
            self._graph.node.insert(0, node)
        return sorted(names)

    def _numbers(self, numbers: Sequence[Number], old: str) -> tuple[list[onnx.NodeProto], str]:
        """A tensor of these numbers, and the nodes that make it of the `old` one, if any do."""
        parts, made = [], []
        for kind, run in groupby(enumerate(numbers), lambda each: type(each[1])):
            found = list(run)
            if kind is int:
                parts.append(self._constant(tuple(number for _, number in found)))
            elif kind is str:
                made.append(self._new("Gather", [old, self._constant(tuple(place for place, _ in found))]))
                parts.append(made[-1].output[0])
            else:
                parts += [self._samples(number) for _, number in found if isinstance(number, PerSample)]
        if len(parts) == 1:
            return made, parts[0]
        if not made:
            return [], self._shared("Concat", parts)
        made.append(self._new("Concat", parts))
        return made, made[-1].output[0]

    def _constant(self, numbers: tuple[object, ...]) -> str:
        if numbers not in self._made:
            self._made[numbers] = self._unused(f"{NAME}/numbers")
            value = onnx.numpy_helper.from_array(np.array(numbers, np.int64), self._made[numbers])
            self._graph.initializer.append(value)
        return self._made[numbers]

    def _samples(self, number: PerSample) -> str:
        """So many times the batch, as an input has it."""
        shape = self._shared("Shape", [self._source])
        rows = self._shared("Gather", [shape, self._constant((0,))])
        return rows if number.times == 1 else self._shared("Mul", [rows, self._constant((number.times,))])

    def _shared(self, operator: str, inputs: list[str]) -> str:
        key = (operator, *inputs)
        if key not in self._made:
            self._head.append(self._new(operator, inputs))
            self._made[key] = self._head[-1].output[0]
        return self._made[key]

    def _new(self, operator: str, inputs: list[str]) -> onnx.NodeProto:
        name = self._unused(f"{NAME}/{operator}")
        node = onnx.helper.make_node(operator, inputs, [name], name)
        if operator == "Concat":
            node.attribute.append(onnx.helper.make_attribute("axis", 0))
        return node

    def _unused(self, like: str) -> str:
        name = unused_name(like, self._taken)
        self._taken.add(name)
        return name


def _free_the_name(graph: onnx.GraphProto) -> None:
    """Let axes that are called `batch` already, and are not the batch, go by another name."""
    values = [item for inner in graphs_of(graph) for item in (*inner.input, *inner.output, *inner.value_info)]
    axes = [axis for item in values for axis in item.type.tensor_type.shape.dim]
    other = unused_name(NAME, {axis.dim_param for axis in axes} | {NAME})
    for axis in axes:
        if axis.dim_param == NAME:
            axis.dim_param = other


def declare_outputs(model: onnx.ModelProto, batch: int, grown: Mapping[str, int | None]) -> None:
    """Declare the outputs, in place, as they have been seen: the axis that grows with the batch, no other.

    An axis that was the batch itself is called so; one of several rows a sample becomes unknown.
    """
    for item in model.graph.output:
        if item.name not in grown:
            continue
        for place, axis in enumerate(item.type.tensor_type.shape.dim):
            if place != grown[item.name] and axis.dim_param == NAME:
                axis.dim_value = batch
            elif place == grown[item.name] and axis.dim_value == batch:
                axis.dim_param = NAME
            elif place == grown[item.name]:
                axis.ClearField("dim_value")


def make_dynamic(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int, list[str]]:
    """A copy of a prepared model whose batch axis is called `batch`, the old size, the names of what changed.

    The batch is followed through every node, in subgraphs too. In a Reshape's shape it becomes −1, in an
    Expand's 1; a Resize of all axes reads it from the input, and what a Concat joins to it is repeated.
    Outputs are declared as they grow; what is declared of inner tensors is dropped.
    """
    batch = fixed_batch(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    path = followed(copy, batch)
    for inner in graphs_of(copy.graph):
        del inner.value_info[:]
    for item, axis in path.ends:
        if axis < len(item.type.tensor_type.shape.dim):
            item.type.tensor_type.shape.dim[axis].Clear()
    _free_the_name(copy.graph)
    batched = [item for item in feeds.inputs_of(copy) if item.type.tensor_type.shape.dim]
    for item in batched:
        item.type.tensor_type.shape.dim[0].dim_param = NAME
    axes = {item.name: rows.axis for item in copy.graph.output if (rows := path.grown.get(item.name))}
    declare_outputs(copy, batch, axes)
    patched = _Patches(copy.graph, batched[0].name).apply(path.patches)
    shape_inference.inferred(copy)
    return copy, batch, patched
