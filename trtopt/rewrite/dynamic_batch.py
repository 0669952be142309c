"""A dynamic batch axis for a model that was exported with a fixed one.

What such a model computes of the number of its samples is a constant, and stays what it was: shapes are
folded first. The batch is then followed from the inputs, node by node, as `batch_rules` says. A Reshape
keeps the order of the elements. As many of them precede the batch as before, which gives the axis. With a
batch of 1 it may lie at the end of one axis or at the start of the next: the second is taken, and the first
if the rest of the model then does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import FixedBatchError
from trtopt.onnxio import shape_inference
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    attribute,
    graphs_of,
    name_of,
    names_in,
    opset_of,
    reads_of,
    subgraphs_of,
    take_name,
    unused_name,
)
from trtopt.onnxio.model_file import ModelFile, is_external
from trtopt.rewrite import equivalence
from trtopt.rewrite.batch_rules import (
    RULES,
    Array,
    Length,
    MixesError,
    Number,
    Patch,
    PerSample,
    Rows,
    Shape,
    Step,
    name_of_axis,
)

NAME = "batch"


def fixed_batch(model: onnx.ModelProto) -> int:
    """The batch size that every input has as its first axis; scalars have none, and serve all samples."""
    sizes = {}
    for item in feeds.inputs_of(model):
        axes = item.type.tensor_type.shape.dim
        if axes or not item.type.tensor_type.HasField("shape"):
            sizes[item.name] = axes[0].dim_value if axes and axes[0].HasField("dim_value") else 0
    if not sizes:
        raise FixedBatchError("no input has a batch axis", "build the model unchanged")
    opened = [name for name, size in sizes.items() if not size]
    if opened:
        raise FixedBatchError(
            f"the batch axis of input {opened[0]!r} is dynamic already", "build the model unchanged"
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise FixedBatchError(
            f"the inputs do not share their first axis ({listed})", "export with a dynamic batch axis"
        )
    return int(next(iter(sizes.values())))


# ── where the batch lies in each tensor ─────────────────────────────────────────────────────────────────────


_MOST_TRIALS = 64


@dataclass
class Path:
    """What grows in the main graph, and what its nodes, by index, must read instead."""

    grown: dict[str, Rows] = field(default_factory=dict)
    patches: list[tuple[int, Patch]] = field(default_factory=list)


class _Refused(Exception):
    """A node that cannot be followed, and why."""

    def __init__(self, node: onnx.NodeProto, why: str) -> None:
        super().__init__(f"node {name_of(node)!r} ({node.op_type}) {why}")


def follow(model: onnx.ModelProto, batch: int) -> Path:
    """How the tensors of a prepared model grow with the batch."""
    walk = _Walk(model, batch)
    first: _Refused | None = None
    for _ in range(_MOST_TRIALS):
        try:
            return walk.whole()
        except _Refused as refused:
            first = first or refused
            if not walk.take_other_ways():
                break
    raise FixedBatchError(
        str(first),
        f"build it at the batch that it has, --batch {batch}; or change that node, and export the model with "
        "a dynamic batch axis",
    )


class _Walk:
    """Ways through the graph; where a node may be read in several, `_ways` holds them, the first is taken."""

    def __init__(self, model: onnx.ModelProto, batch: int) -> None:
        self._graph, self._batch, self._opset = model.graph, batch, opset_of(model)
        known = shape_inference.inferred(shape_inference.skeleton_at(model, {}))
        self._shapes = _shapes_of(shape_inference.tensor_types(known))
        self._constants = {item.name: item for item in model.graph.initializer if not is_external(item)}
        self._ways: dict[object, list[Rows]] = {}
        self._path = Path()
        self._counts: dict[str, tuple[Number, ...]] = {}
        """What Shapes of tensors that grow give, as far as it must stay what it is at the fixed batch."""
        self._learned: dict[Length, Length] = {}
        """Lengths of axes that inference has but a name for."""

    def take_other_ways(self) -> bool:
        """Take the next way at the last node that has one left."""
        while self._ways and len(list(self._ways.values())[-1]) == 1:
            self._ways.popitem()
        if not self._ways:
            return False
        list(self._ways.values())[-1].pop(0)
        return True

    def whole(self) -> Path:
        """The path through the main graph."""
        self._path, self._counts, self._learned = Path(), {}, {}
        grown = self._path.grown
        for item in self._graph.input:
            shape = self._shapes.get(item.name)
            if shape:
                grown[item.name] = Rows(shape, 0)
        for index, node in enumerate(self._graph.node):
            try:
                made = self._follow_node(index, node)
            except MixesError as error:
                raise _Refused(node, str(error)) from None
            grown |= {name: rows for name, rows in zip(node.output, made, strict=False) if name}
        for node in self._graph.node:
            for name in {item.name for item in self._graph.output} & {*node.output}:
                if name in self._counts or (name in grown and grown[name].outer != 1):
                    raise _Refused(node, f"gives output {name!r} rows that belong to no single sample")
        return self._path

    def _follow_node(self, index: int, node: onnx.NodeProto) -> Sequence[Rows]:
        """Those of a node's outputs that grow."""
        grown = self._path.grown
        rows = {place: grown[name] for place, name in enumerate(node.input) if name in grown}
        growing = grown.keys() | self._counts.keys()
        is_around = any(subgraphs_of(node)) and not reads_of(node).isdisjoint(growing)
        if is_around or (rows and node.domain not in OWN_DOMAINS):
            raise MixesError("is not known to keep samples apart")
        if rows and node.op_type == "Shape":
            self._count(node, rows[0])
            return []
        self._path.patches += [(index, patch) for patch in self._fix_counts(node)]
        if not rows:
            return []
        rule = RULES.get(node.op_type)
        if rule is None:
            raise MixesError("is not known to keep samples apart")
        step = Step(
            node,
            self._opset,
            self._batch,
            rows,
            tuple(grown[name].shape if name in grown else self._shape_of(name) for name in node.input),
            tuple(map(self._shape_of, node.output)),
            lambda position: self._value(node.input[position]),
            lambda key, ways: self._ways.setdefault((index, key), ways)[0],
        )
        made = rule(step)
        self._path.patches += [(index, patch) for patch in step.patches]
        for shape, found in zip(step.shapes, made, strict=True):
            self._learned |= {
                old: new for old, new in zip(shape or (), found.shape, strict=False) if isinstance(old, str)
            }
        return made

    def _shape_of(self, name: str) -> Shape | None:
        known = self._shapes.get(name)
        return None if known is None else tuple(self._learned.get(length, length) for length in known)

    def _count(self, node: onnx.NodeProto, rows: Rows) -> None:
        """Note what a Shape gives that could not be folded: the batch's axis keeps its fixed length."""
        if not isinstance(rows.length, int):
            raise MixesError("computes with the number of samples")
        numbers: list[Number] = [None] * len(rows.shape)
        numbers[rows.axis] = rows.length
        start, end = attribute(node, "start", 0), attribute(node, "end")
        self._counts[node.output[0]] = tuple(numbers[start:end])

    def _fix_counts(self, node: onnx.NodeProto) -> Iterable[Patch]:
        """Patches of what reads such numbers, but for a Reshape or Expand of samples, patched anyway."""
        patched = node.op_type in ("Reshape", "Expand") and node.input[0] in self._path.grown
        for position, name in enumerate(node.input):
            numbers = self._counts.get(name)
            if numbers is None or patched:
                continue
            places = self._value(node.input[1]) if node.op_type == "Gather" else None
            if places is None or any(numbers[place] is not None for place in places.reshape(-1)):
                yield Patch(position, numbers)

    def _value(self, name: str) -> Array | None:
        held = self._constants.get(name)
        return None if held is None else onnx.numpy_helper.to_array(held)


def _shapes_of(types: Mapping[str, onnx.TypeProto.Tensor]) -> dict[str, Shape]:
    """Shapes by name, unknown lengths by names of their own."""
    return {
        name: tuple(
            axis.dim_value
            if axis.HasField("dim_value")
            else f"axis {axis.dim_param}".replace("*", "×")
            if axis.dim_param
            else name_of_axis(name, place)
            for place, axis in enumerate(tensor.shape.dim)
        )
        for name, tensor in types.items()
        if tensor.HasField("shape")
    }


# ── what nodes read instead ─────────────────────────────────────────────────────────────────────────────────


class _Patches:
    """Writes what nodes read instead: constants, and numbers that are computed of the batch at run time."""

    def __init__(self, graph: onnx.GraphProto, source: str) -> None:
        self._graph, self._source, self._taken = graph, source, names_in(graph)
        self._made: dict[tuple[object, ...], str] = {}
        self._head: list[onnx.NodeProto] = []

    def apply(self, patches: Sequence[tuple[int, Patch]]) -> list[str]:
        """Patch the nodes, in place; the names of what they read before."""
        before: list[tuple[int, onnx.NodeProto]] = []
        names = set()
        for index, patch in patches:
            node = self._graph.node[index]
            node.input.extend([""] * (patch.position + 1 - len(node.input)))
            old = node.input[patch.position]
            names.add(old or node.name)
            if isinstance(patch.value, np.ndarray):
                node.input[patch.position] = self._constant(patch.value)
                continue
            made, numbers = self._numbers(patch.value, old)
            if patch.kind == "expanded":
                made.append(self._new("Expand", [old, numbers]))
            node.input[patch.position] = made[-1].output[0] if made else numbers
            before += [(index, each) for each in made]
            for item in node.attribute:  # the one 0 that may be there now is a copy
                if item.name == "allowzero":
                    item.i = 0
        for index, each in reversed(before):  # those behind first: an index stays right
            self._graph.node.insert(index, each)
        for node in reversed(self._head):
            self._graph.node.insert(0, node)
        return sorted(names)

    def _numbers(self, numbers: Sequence[Number], old: str) -> tuple[list[onnx.NodeProto], str]:
        """A tensor of these numbers, and the nodes that make it of the `old` one, if any do."""
        parts, made = [], []
        for kind, run in groupby(enumerate(numbers), lambda each: type(each[1])):
            found = list(run)
            if kind is int:
                parts.append(self._constant(np.array([number for _, number in found], np.int64)))
            elif kind is PerSample:
                parts += [self._samples(number.times) for _, number in found if isinstance(number, PerSample)]
            else:
                places = self._constant(np.array([place for place, _ in found], np.int64))
                made.append(self._new("Gather", [old, places]))
                parts.append(made[-1].output[0])
        if len(parts) == 1:
            return made, parts[0]
        if not made:
            return [], self._shared("Concat", parts)
        made.append(self._new("Concat", parts))
        return made, made[-1].output[0]

    def _constant(self, values: Array) -> str:
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._made:
            self._made[key] = take_name(f"{NAME}/numbers", self._taken)
            self._graph.initializer.append(onnx.numpy_helper.from_array(values, self._made[key]))
        return self._made[key]

    def _samples(self, times: int) -> str:
        """So many times the batch, as an input has it."""
        shape = self._shared("Shape", [self._source])
        rows = self._shared("Gather", [shape, self._constant(np.zeros(1, np.int64))])
        if times == 1:
            return rows
        return self._shared("Mul", [rows, self._constant(np.array([times], np.int64))])

    def _shared(self, operator: str, inputs: list[str]) -> str:
        key = (operator, *inputs)
        if key not in self._made:
            self._head.append(self._new(operator, inputs))
            self._made[key] = self._head[-1].output[0]
        return self._made[key]

    def _new(self, operator: str, inputs: list[str]) -> onnx.NodeProto:
        name = take_name(f"{NAME}/{operator}", self._taken)
        axis: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
        return onnx.helper.make_node(operator, inputs, [name], name, **axis)


def _free_the_name(graph: onnx.GraphProto) -> None:
    """Let axes that are called `batch` already, and are not the batch, go by another name."""
    values = [item for inner in graphs_of(graph) for item in (*inner.input, *inner.output, *inner.value_info)]
    axes = [axis for item in values for axis in item.type.tensor_type.shape.dim]
    other = unused_name(NAME, {axis.dim_param for axis in axes} | {NAME})
    for axis in axes:
        if axis.dim_param == NAME:
            axis.dim_param = other


def _declare_outputs(model: onnx.ModelProto, batch: int, axes: Mapping[str, int]) -> None:
    """Declare the outputs, in place: the axis that grows with the batch, no other.

    An axis that was the batch itself is called so; one of several rows a sample becomes unknown.
    """
    for item in model.graph.output:
        dims = item.type.tensor_type.shape.dim
        if (place := axes.get(item.name, len(dims))) < len(dims):
            if dims[place].dim_value == batch:
                dims[place].dim_param = NAME
            else:
                dims[place].ClearField("dim_value")


@dataclass(frozen=True)
class Opened:
    """A model whose batch, once fixed, is dynamic: the axis of each output that grows, and what changed."""

    proto: onnx.ModelProto
    batch: int
    axes: Mapping[str, int]
    patched: Sequence[str]


def make_dynamic(model: onnx.ModelProto) -> Opened:
    """A copy of a prepared model whose batch axis is called `batch`.

    In a Reshape's shape the batch becomes −1, in an Expand's 1; a Resize of all axes reads it from the input,
    and what a Concat joins to it is repeated. Outputs are declared as they grow; what is declared of inner
    tensors is dropped.
    """
    batch = fixed_batch(model)
    copy = deepcopy(model)
    path = follow(copy, batch)
    for inner in graphs_of(copy.graph):
        del inner.value_info[:]
    _free_the_name(copy.graph)
    batched = [item for item in feeds.inputs_of(copy) if item.type.tensor_type.shape.dim]
    for item in batched:
        item.type.tensor_type.shape.dim[0].dim_param = NAME
    axes = {item.name: path.grown[item.name].axis for item in copy.graph.output if item.name in path.grown}
    _declare_outputs(copy, batch, axes)
    patched = _Patches(copy.graph, batched[0].name).apply(path.patches)
    shape_inference.inferred(copy)
    return Opened(copy, batch, axes, patched)


# ── whether it works: a batch gives what its samples give one by one ────────────────────────────────────────


_REMEDY = (
    "build it at the batch that it has; or export the model with a dynamic batch axis: its batch is baked in "
    "where it cannot be patched"
)
_HUGE = 1e4
"""Such values, and sums of a few, are finite in FP16."""


def prove(fixed: ModelFile, dynamic: ModelFile, opened: Opened) -> str:
    """Run the fixed model on two inputs and the dynamic one on several batches of them; in words, which.

    `batch_rules` refuses what mixes samples; this finds what is wrong with the rules, or with a runtime.
    """
    first, second = single = _draw_two(fixed)
    one, other = equivalence.run(fixed, single)

    def hold(what: str, values: dict[str, Array], *parts: Mapping[str, Array] | None) -> None:
        try:
            (found,) = equivalence.run(dynamic, [feeds.Feed(what, values)])
        except equivalence.Unrunnable as error:
            raise FixedBatchError(f"{what} does not run: {error.problem}", _REMEDY) from None
        for name, value in found.items():
            each = [None if part is None else part[name] for part in parts]
            _hold(f"at {what}, output {name!r}", value, opened.axes.get(name), each)

    hold("twice the batch", _join(single), one, other)
    if opened.batch > 1:
        sample = {name: value[:1] if value.ndim else value for name, value in first.values.items()}
        rows = dict(one)
        for name, axis in opened.axes.items():
            rows[name] = one[name].take(range(one[name].shape[axis] // opened.batch), axis)
        hold("a batch of 1", sample, rows)
    run = []
    interpolates = any(node.op_type in ("Resize", "Upsample") for node in fixed.proto.graph.node)
    for words in ("huge values",) if interpolates else ("huge values", "NaN"):  # 0 * NaN is NaN
        extreme = {name: _extreme(array, words) for name, array in first.values.items()}
        between = feeds.Feed(words, extreme)
        try:
            hold(f"three batches, one of {words}", _join((first, between, second)), one, None, other)
            run.append(words)
        except FixedBatchError:
            with suppress(equivalence.Unrunnable):  # as it is not to be held to what the model refuses
                equivalence.run(fixed, [between])
                raise
    beside = f", and beside samples of {' and of '.join(run)}" if run else ""
    elsewhere = [f"{name!r} along axis {axis}" for name, axis in opened.axes.items() if axis]
    exceptions = f"; outputs whose batch is not their first axis: {', '.join(elsewhere)}" if elsewhere else ""
    alone = "a batch of 1 and " if opened.batch > 1 else ""
    return f"checked at {alone}twice the old batch{beside}{exceptions}"


def _draw_two(fixed: ModelFile) -> list[feeds.Feed]:
    """Inputs at the old batch; scalars, which serve all samples, are the same in both."""
    first, second = (feeds.seeded(fixed.proto, seed)[0] for seed in range(2))
    scalars = {name: value for name, value in first.values.items() if not value.ndim}
    return [first, replace(second, values=second.values | scalars)]


def _join(parts: Sequence[feeds.Feed]) -> dict[str, Array]:
    """The inputs, one after the other; a scalar serves all."""
    return {
        name: np.concatenate([part.values[name] for part in parts]) if value.ndim else value
        for name, value in parts[0].values.items()
    }


def _extreme(array: Array, words: str) -> Array:
    """A sample that shows in others if anything of it reaches those; whole numbers stay among those drawn."""
    if not array.ndim:
        return array
    if array.dtype.kind in "iub" or not array.size:
        return np.full_like(array, array.max(initial=0)) if words == "huge values" else np.zeros_like(array)
    if words == "NaN":
        return np.full_like(array, np.nan)
    huge = np.copysign(_HUGE * (1 + abs(array.astype(np.float64))), array.astype(np.float64))
    return huge.astype(array.dtype)


def _hold(what: str, found: Array, axis: int | None, parts: Sequence[Array | None]) -> None:
    """Hold an output for several inputs against what each gives alone, where that is known."""
    first = next(part for part in parts if part is not None)
    shape = tuple(size * (len(parts) if place == axis else 1) for place, size in enumerate(first.shape))
    if found.shape != shape:
        shown = ["×".join(map(str, each)) or "()" for each in (found.shape, shape)]
        raise FixedBatchError(f"{what} has shape {shown[0]} instead of {shown[1]}", _REMEDY)
    own = [found] * len(parts) if axis is None else np.split(found, len(parts), axis)
    for value, part in zip(own, parts, strict=True):
        error = 0.0 if part is None else equivalence.error_between(part, value)
        if error > equivalence.bound("N", first.dtype):
            raise FixedBatchError(f"{what} differs by a relative error of {error:.3g}", _REMEDY)
