"""A dynamic batch axis for a model that was exported with a fixed one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby

import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import FixedBatchError
from trtopt.onnxio import shape_inference
from trtopt.onnxio.graph_walk import graphs_of, names_in, take_name, unused_name
from trtopt.onnxio.model_file import ModelFile
from trtopt.rewrite import equivalence
from trtopt.rewrite.batch_path import Patched, follow
from trtopt.rewrite.batch_rules import Number, PerSample
from trtopt.rewrite.equivalence import Array

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
            self._made[numbers] = take_name(f"{NAME}/numbers", self._taken)
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
        name = take_name(f"{NAME}/{operator}", self._taken)
        node = onnx.helper.make_node(operator, inputs, [name], name)
        if operator == "Concat":
            node.attribute.append(onnx.helper.make_attribute("axis", 0))
        return node


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
    copy = deepcopy(model)
    path = follow(copy, batch)
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


# ── whether it works: a batch gives what its samples give one by one ───────────────────────────────────────


_REMEDY = (
    "build it at the batch that it has; or export the model with a dynamic batch axis: its batch is baked in "
    "where it cannot be patched"
)
_BATCHES = (1, 2, 3, 5, 17)
"""Batches that a model is run at, besides twice its old one: nodes that index rows rarely work at all."""
_MOST_BYTES = 4 << 30
"""What all tensors of a model may take at a batch; of larger models fewer batches are run."""
_LONGEST_S = 120.0
"""How long a batch may be expected to take."""
_HUGE = 1e4
"""Such values, and sums of a few, are finite in FP16."""


def prove(fixed: ModelFile, dynamic: ModelFile, batch: int) -> str:
    """Run the fixed model on inputs and the dynamic one on several batches of them; what was found, in words.

    `batch_rules` refuses what mixes samples; this finds what is wrong with the rules, or with a runtime.

    The dynamic model's outputs are declared as they were seen to grow, in place.
    """
    began = time.perf_counter()
    single = _draw(fixed, 2)
    first, second = equivalence.run(fixed, single)
    spent = time.perf_counter() - began
    got = _run(dynamic, _rows(single, 2 * batch), "twice the batch")
    grown = {name: _axis_of(name, (first, second), value) for name, value in got.items()}
    declare_outputs(dynamic.proto, batch, grown)
    sizes = [size for size in _batches(fixed, batch, spent / 2) if size != 2 * batch]
    many = _draw(fixed, -(-max(sizes) // batch))
    wanted = [*(first, second)[: len(many)], *equivalence.run(fixed, many[2:])]
    for size in sizes:
        found = _run(dynamic, _rows(many, size), f"a batch of {size}")
        for name, value in found.items():
            _compare(name, _expect(name, wanted, grown[name], size, batch), value, f"a batch of {size}")
    beside = _beside_extremes(fixed, dynamic, single, (first, second), grown) if spent < _LONGEST_S else ""
    elsewhere = [f"{name!r} along axis {axis}" for name, axis in grown.items() if axis]
    exceptions = f"; outputs whose batch is not their first axis: {', '.join(elsewhere)}" if elsewhere else ""
    run = ", ".join(map(str, sizes))
    return f"checked at the old batch, at twice that, and at batches of {run}{beside}{exceptions}"


def _draw(fixed: ModelFile, count: int) -> list[feeds.Feed]:
    """Inputs at the old batch; scalars, which serve all samples, are the same in all."""
    drawn = [feeds.seeded(fixed.proto, seed)[0] for seed in range(count)]
    scalars = {name: value for name, value in drawn[0].values.items() if not value.ndim}
    return [replace(feed, values=feed.values | scalars) for feed in drawn]


def _extreme(array: Array) -> dict[str, Array]:
    """Samples that show in others if anything of them reaches those; whole numbers stay among those drawn."""
    if array.dtype.kind in "iub" or not array.size:
        return {"huge values": np.full_like(array, array.max(initial=0)), "NaN": np.zeros_like(array)}
    huge = np.copysign(_HUGE * (1 + abs(array.astype(np.float64))), array.astype(np.float64))
    return {"huge values": huge.astype(array.dtype), "NaN": np.full_like(array, np.nan)}


def _beside_extremes(
    fixed: ModelFile,
    dynamic: ModelFile,
    single: Sequence[feeds.Feed],
    wanted: Sequence[Mapping[str, Array]],
    grown: Mapping[str, int | None],
) -> str:
    """Run samples with extreme ones between them; which, in words."""
    run = []
    interpolates = any(node.op_type in ("Resize", "Upsample") for node in fixed.proto.graph.node)
    for words in ("huge values",) if interpolates else ("huge values", "NaN"):  # 0 * NaN is NaN
        first, second = single
        extreme = {
            name: _extreme(array)[words] if array.ndim else array for name, array in first.values.items()
        }
        rows = _rows([first, feeds.Feed(words, extreme), second], None)
        what = f"beside samples of {words}"
        try:
            found = _run(dynamic, rows, what)
        except FixedBatchError:
            if _runs(fixed, extreme):
                raise
            continue
        for name, value in found.items():
            axis = grown[name]
            for place, part in zip((0, 2), wanted, strict=True):
                count = part[name].shape[axis] if axis is not None else 0
                own = value if axis is None else value.take(range(place * count, (place + 1) * count), axis)
                _compare(name, part[name], own, what)
        run.append(words)
    return f", and beside samples of {' and of '.join(run)}" if run else ""


def _runs(model: ModelFile, values: dict[str, Array]) -> bool:
    try:
        equivalence.run(model, [feeds.Feed("extreme", values)])
    except equivalence.Unrunnable:
        return False
    return True


def _batches(fixed: ModelFile, batch: int, seconds: float) -> list[int]:
    """The batches to run at: the old one and all others but those that would take too much memory or time."""
    graph = shape_inference.inferred(fixed.proto).graph
    shapes = [item.type.tensor_type.shape.dim for item in (*graph.input, *graph.value_info, *graph.output)]
    taken = sum(4 * math.prod(axis.dim_value for axis in shape) for shape in shapes)
    fits = [
        size
        for size in _BATCHES
        if taken * size / batch <= _MOST_BYTES and 2 * seconds * size / batch <= _LONGEST_S
    ]
    return sorted({1, batch, *fits})


def _rows(parts: Sequence[feeds.Feed], rows: int | None) -> dict[str, Array]:
    """The first rows of the inputs, one after the other; a scalar serves all."""
    return {
        name: np.concatenate([part.values[name] for part in parts])[:rows] if value.ndim else value
        for name, value in parts[0].values.items()
    }


def _run(dynamic: ModelFile, values: dict[str, Array], what: str) -> dict[str, Array]:
    try:
        return equivalence.run(dynamic, [feeds.Feed(what, values)])[0]
    except equivalence.Unrunnable as error:
        raise FixedBatchError(f"{what} does not run: {error.problem}", _REMEDY) from None


def _expect(
    name: str, parts: Sequence[Mapping[str, Array]], axis: int | None, size: int, batch: int
) -> Array:
    """What an output must be at a batch of `size`: as many rows as belong to that many samples."""
    if axis is None:
        return parts[0][name]
    joined = np.concatenate([part[name] for part in parts], axis)
    rows = parts[0][name].shape[axis] * size
    if rows % batch:
        raise FixedBatchError(
            f"output {name!r} has {parts[0][name].shape[axis]} rows along axis {axis} for {batch} samples: "
            "they do not belong to one sample each",
            _REMEDY,
        )
    return joined.take(range(rows // batch), axis)


def _axis_of(name: str, single: tuple[Mapping[str, Array], Mapping[str, Array]], both: Array) -> int | None:
    """Along which axis the output for both inputs joins those for each."""
    first, second = (outputs[name] for outputs in single)
    if both.shape == first.shape:
        axis, reference = None, first
        if not np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
            raise FixedBatchError(
                f"output {name!r} has shape {_show(both)} at twice the batch too, and depends on the input",
                _REMEDY,
            )
    else:
        axis = _find_doubled(first, both)
        if axis is None:
            raise FixedBatchError(
                f"output {name!r} of shape {_show(first)} has {_show(both)} at twice the batch: no axis of "
                "it grows with the batch alone",
                _REMEDY,
            )
        reference = np.concatenate([first, second], axis)
    _compare(name, reference, both, "twice the batch")
    return axis


def _compare(name: str, wanted: Array, found: Array, what: str) -> None:
    """Hold an output at several samples against what they give one by one."""
    if found.shape != wanted.shape:
        raise FixedBatchError(
            f"at {what}, output {name!r} has shape {_show(found)} instead of {_show(wanted)}", _REMEDY
        )
    if equivalence.error_between(wanted, found) <= equivalence.bound("N", wanted.dtype):
        return
    if wanted.dtype.kind not in "fiub":
        raise FixedBatchError(f"at {what}, output {name!r} differs", _REMEDY)
    reference, other = wanted.astype(np.float64), found.astype(np.float64)
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        gap = np.abs(reference - other).max()
    raise FixedBatchError(
        f"at {what}, output {name!r} differs by up to {gap:.3g}, where its values reach "
        f"{np.abs(reference).max():.3g}",
        _REMEDY,
    )


def _find_doubled(first: Array, both: Array) -> int | None:
    """The one axis that is twice as long."""
    if first.ndim != both.ndim:
        return None
    grown = [axis for axis in range(first.ndim) if both.shape[axis] != first.shape[axis]]
    return grown[0] if len(grown) == 1 and both.shape[grown[0]] == 2 * first.shape[grown[0]] else None


def _show(array: Array) -> str:
    return "×".join(map(str, array.shape)) or "()"
