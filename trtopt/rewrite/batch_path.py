"""Where the batch lies in each tensor of a model that was exported with a fixed one, and what is patched.

It is followed from the inputs, node by node, as `batch_rules` says. A Reshape to a constant shape keeps the
order of the elements. As many of them precede the batch as before, which gives the axis. With a batch of 1 it
may lie at the end of one axis or at the start of the next: the second is taken, and the first if the rest of
the model then does not fit.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx

from trtopt.errors import FixedBatchError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, name_of, opset_of, reads_of, subgraphs_of
from trtopt.onnxio.model_file import is_external
from trtopt.onnxio.shape_inference import LARGE_BYTES
from trtopt.rewrite.batch_rules import (
    RULES,
    TAKES_NUMBERS,
    MixesError,
    Number,
    Patch,
    PerSample,
    Rows,
    Shape,
    Step,
    Tensor,
    Ways,
    find_repetitions,
    ratio,
)

_MOST_TRIALS = 64
_MOST_NUMBERS = 64
"""Shapes are no longer; other integers need not be known."""
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@dataclass(frozen=True)
class Patched:
    """A node of a part of the model, and what it must read instead."""

    part: onnx.GraphProto
    index: int
    patch: Patch


@dataclass
class Path:
    """What grows in the main graph, what must be patched, and where subgraphs declare the batch's axis."""

    grown: dict[str, Rows] = field(default_factory=dict)
    patches: list[Patched] = field(default_factory=list)
    ends: list[tuple[onnx.ValueInfoProto, int]] = field(default_factory=list)


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
        self._model, self._batch = model, batch
        self._opset = opset_of(model)
        self._imports = [onnx.helper.make_opsetid("", self._opset)]
        self._constants: ChainMap[str, onnx.TensorProto] = ChainMap()
        self._ways: dict[object, Ways] = {}
        self._inferred: dict[object, Mapping[str, onnx.TypeProto] | None] = {}
        self._path = Path()
        self._unknown = 0

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
        self._path, self._unknown = Path(), 0
        self._constants = ChainMap()
        graph = self._model.graph
        given: dict[str, Tensor] = {}
        for item in graph.input:
            shape = self._shape_of(item.type, item.name)
            axis = 0 if shape else None
            given[item.name] = Tensor(shape, axis, element=item.type.tensor_type.elem_type)
        scope = self._part(graph, ChainMap(given))
        for item in graph.output:
            found = scope[item.name]
            if found.depends and (found.axis is None or found.outer != 1):
                maker = next(node for node in graph.node if item.name in node.output)
                raise _Refused(maker, f"gives output {item.name!r} rows that belong to no single sample")
        self._path.grown = {name: rows for name, item in scope.items() if (rows := _rows(item)) is not None}
        return self._path

    def _part(self, part: onnx.GraphProto, scope: ChainMap[str, Tensor]) -> ChainMap[str, Tensor]:
        """All tensors of a graph or subgraph, the given ones included."""
        self._constants = self._constants.new_child({item.name: item for item in part.initializer})
        for item in part.initializer:
            numbers = _numbers(item) if not is_external(item) else None
            scope[item.name] = Tensor(tuple(item.dims), numbers=numbers, element=item.data_type)
        for item in part.sparse_initializer:
            scope[item.values.name] = Tensor(tuple(item.dims), element=item.values.data_type)
        for index, node in enumerate(part.node):
            try:
                made = self._follow_node(part, index, node, scope)
            except MixesError as error:
                raise _Refused(node, str(error)) from None
            scope.update({name: item for name, item in zip(node.output, made, strict=False) if name})
        self._constants = self._constants.parents
        return scope

    def _follow_node(
        self, part: onnx.GraphProto, index: int, node: onnx.NodeProto, scope: ChainMap[str, Tensor]
    ) -> Sequence[Tensor]:
        """A node's outputs."""
        if any(subgraphs_of(node)):
            return self._enter(node, scope)
        inputs = tuple(scope[name] if name else None for name in node.input)
        depends = any(item is not None and item.depends for item in inputs)
        given = (
            node.output[0],
            *((item.shape, item.element, item.numbers) if item else None for item in inputs),
        )
        if given not in self._inferred:  # most nodes are the same on every way
            self._inferred[given] = self._types(node, inputs)
        types = self._inferred[given]
        if types is None and depends:
            raise MixesError("does not take the shapes that it gets")
        types = types or {}
        shapes = tuple(self._shape_of(types.get(name), name) for name in node.output)
        elements = [types[name].tensor_type.elem_type if name in types else 0 for name in node.output]
        own = node.domain in OWN_DOMAINS
        step = Step(
            node,
            self._opset,
            self._batch,
            inputs,
            shapes,
            lambda position: self._floats(node, position),
            lambda key, ways: self._ways.setdefault((index, node.output[0], key), ways)[0],
        )
        numbers = compute_numbers(step) if own else None
        if numbers is not None:
            return [Tensor(shapes[0], numbers=numbers, element=elements[0])]
        if not depends:
            rows = self._find_repeated(step) if own and node.op_type == "Expand" else None
            if rows is None:
                return [Tensor(shape, element=kind) for shape, kind in zip(shapes, elements, strict=True)]
            made: Sequence[Rows] = [rows]
        else:
            made = self._by_rule(step)
            if not made:
                return [Tensor(shape, element=kind) for shape, kind in zip(shapes, elements, strict=True)]
        self._path.patches += [Patched(part, index, patch) for patch in step.patches]
        return [
            Tensor(rows.shape, rows.axis, rows.outer, element=kind)
            for rows, kind in zip(made, elements, strict=False)
        ]

    def _by_rule(self, step: Step) -> Sequence[Rows]:
        node = step.node
        rule = RULES.get(node.op_type) if node.domain in OWN_DOMAINS else None
        if rule is None:
            raise MixesError("is not known to keep samples apart")
        counts = any(item is not None and item.axis is None and item.depends for item in step.inputs)
        if counts and node.op_type not in TAKES_NUMBERS:
            raise MixesError("computes with the number of samples")
        return rule(step)

    def _find_repeated(self, step: Step) -> Rows | None:
        """A constant's Expand to the batch, if it is read as one row a sample."""
        ways = find_repetitions(step)
        rows = step.choose("repeated", ways) if ways else None
        if rows is not None:
            step.patches.append(Patch(1, (PerSample(1), *(step.numbers("shape", 1) or ())[1:])))
        return rows

    def _types(
        self, node: onnx.NodeProto, inputs: Sequence[Tensor | None]
    ) -> Mapping[str, onnx.TypeProto] | None:
        """The outputs' types at the fixed batch, as far as ONNX infers them; None if inputs do not fit."""
        if node.domain not in OWN_DOMAINS or not onnx.defs.has(node.op_type, self._opset, ""):
            return {}
        known, data = {}, {}
        for name, item in zip(node.input, inputs, strict=True):
            if item is None:
                continue
            known[name] = _type_of(item)
            constant = self._constants.get(name)
            if constant is not None and not is_external(constant) and constant.ByteSize() < LARGE_BYTES:
                data[name] = constant
            elif (at_batch := _at_batch(item, self._batch)) is not None:
                data[name] = onnx.numpy_helper.from_array(at_batch, name)
        schema = onnx.defs.get_schema(node.op_type, self._opset, "")
        found: Mapping[str, onnx.TypeProto]
        try:
            if not schema.has_type_and_shape_inference_function:  # that of a function, such as LessOrEqual
                return self._types_of_function(node, known)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, known, data, opset_imports=self._imports
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
            return None
        return found

    def _types_of_function(
        self, node: onnx.NodeProto, known: Mapping[str, onnx.TypeProto]
    ) -> dict[str, onnx.TypeProto]:
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [onnx.helper.make_value_info(name, kind) for name, kind in known.items()],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output],
        )
        model = onnx.helper.make_model(graph, opset_imports=self._imports)
        return {item.name: item.type for item in onnx.shape_inference.infer_shapes(model).graph.output}

    def _floats(self, node: onnx.NodeProto, position: int) -> list[float] | None:
        name = node.input[position] if position < len(node.input) else ""
        held = self._constants.get(name)
        if held is None or is_external(held) or prod(held.dims) > _MOST_NUMBERS:
            return None
        return [float(number) for number in onnx.numpy_helper.to_array(held).reshape(-1)]

    def _shape_of(self, kind: onnx.TypeProto | None, name: str) -> Shape | None:
        """A type's shape, unknown lengths by names of their own."""
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        self._unknown += 1
        return tuple(
            axis.dim_value
            if axis.HasField("dim_value")
            else _name(axis.dim_param or f"axis {place} of {name}, {self._unknown}")
            for place, axis in enumerate(kind.tensor_type.shape.dim)
        )

    # ── subgraphs ───────────────────────────────────────────────────────────────────────────────────────

    def _enter(self, node: onnx.NodeProto, scope: ChainMap[str, Tensor]) -> Sequence[Tensor]:
        """The outputs of a node with subgraphs: of the two branches of an If, no other is followed into."""
        if not any(scope[name].depends for name in reads_of(node) if name in scope):
            return [Tensor(None) for _ in node.output]
        if node.domain not in OWN_DOMAINS or node.op_type != "If":
            raise MixesError("is not known to keep samples apart")
        if scope[node.input[0]].depends:
            raise MixesError("takes one branch for all samples, as one of them decides")
        ends = [self._inside(inner, scope) for inner in subgraphs_of(node)]
        return [_join_branches(items) for items in zip(*ends, strict=True)]

    def _inside(self, branch: onnx.GraphProto, scope: ChainMap[str, Tensor]) -> list[Tensor]:
        """The outputs of a branch."""
        own = self._part(branch, scope.new_child())
        found = [own[item.name] for item in branch.output]
        self._path.ends += [
            (item, one.axis) for item, one in zip(branch.output, found, strict=True) if one.axis is not None
        ]
        return found


def _rows(item: Tensor) -> Rows | None:
    return None if item.axis is None or item.shape is None else Rows(item.shape, item.axis, item.outer)


def _join_branches(items: Sequence[Tensor]) -> Tensor:
    """What either of two branches gives: the batch lies in one place."""
    first, *others = items
    places = {(item.axis, item.outer, rows.length if (rows := _rows(item)) else None) for item in items}
    if len(places) > 1 or any(item.depends and item.axis is None for item in items):
        raise MixesError("has the batch elsewhere in each branch")
    alike = all(item.shape == first.shape for item in others)
    if not alike and first.axis is not None:
        raise MixesError("has an output of unknown shape")
    return Tensor(first.shape if alike else None, first.axis, first.outer, element=first.element)


def _name(text: str) -> str:
    """A length's name, which is no number and no product."""
    return f"axis {text}" if text.isdigit() else text.replace("*", "×")


def _type_of(item: Tensor) -> onnx.TypeProto:
    known = item.element != onnx.TensorProto.UNDEFINED
    return onnx.helper.make_tensor_type_proto(item.element, item.shape) if known else onnx.TypeProto()


def _numbers(item: onnx.TensorProto) -> tuple[int, ...] | None:
    if item.data_type not in _INTEGERS or len(item.dims) > 1 or prod(item.dims) > _MOST_NUMBERS:
        return None
    return tuple(int(number) for number in onnx.numpy_helper.to_array(item).reshape(-1))


def _at_batch(item: Tensor, batch: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """The numbers of a tensor at the fixed batch, if all are known."""
    found = []
    for number in item.numbers or ():
        if isinstance(number, PerSample) and number.times is not None:
            found.append(number.times * batch)
        elif isinstance(number, int):
            found.append(number)
        else:
            return None
    if item.numbers is None or item.element != onnx.TensorProto.INT64:
        return None
    return np.array(found, np.int64).reshape(() if item.shape == () else (-1,))


# ── numbers that are computed of shapes, and how they change with the number of samples ────────────────────


_MOVES = ("Squeeze", "Unsqueeze", "Reshape", "Identity")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Equal")


def compute_numbers(step: Step) -> tuple[Number, ...] | None:
    """The numbers that a node computes, of at most one axis; None if they are not known."""
    source, operator = step.at(0), step.node.op_type
    if source is None or step.shapes[0] is None or len(step.shapes[0]) > 1:
        return None
    if operator in ("Shape", "Size"):
        return _lengths(step, source)
    if operator == "Slice":
        return None if source.numbers is None else _slice(step, source.numbers)
    known = [item.numbers for item in step.inputs if item is not None and item.numbers is not None]
    if source.numbers is None or (operator not in _MOVES and len(known) < len(step.inputs)):
        return None
    if operator in _MOVES:
        return source.numbers
    if operator == "Cast":
        return source.numbers if step.number("to", 0) in _INTEGERS else None
    if operator == "Gather":
        return _pick(*known) if source.shape != () else None
    if operator == "Concat":
        return tuple(number for each in known for number in each)
    if operator == "ReduceProd":
        return _product(source.numbers)
    if operator == "Where":
        return _select(*known)
    return _pair(operator, *known) if operator in _ARITHMETIC else None


def _lengths(step: Step, source: Tensor) -> tuple[Number, ...] | None:
    """What Shape or Size of a tensor gives."""
    if source.shape is None:
        return None
    numbers: list[Number] = list(source.shape)
    if source.axis is not None:
        length = source.shape[source.axis]
        numbers[source.axis] = PerSample(length // step.batch if isinstance(length, int) else None)
    end = next((item.i for item in step.node.attribute if item.name == "end"), None)
    is_shape = step.node.op_type == "Shape"
    return tuple(numbers[step.number("start", 0) : end]) if is_shape else _product(numbers)


def _slice(step: Step, numbers: Sequence[Number]) -> tuple[Number, ...] | None:
    try:
        start, end, _, by = (step.numbers(n, p) for p, n in enumerate(("starts", "ends", "axes", "steps"), 1))
    except MixesError:
        return None
    bounds = [each[0] for each in (start or ("",), end or ("",), by or (1,))]
    first, last, pace = (each if isinstance(each, int) else None for each in bounds)
    return (
        None if first is None or last is None or pace is None or pace < 1 else tuple(numbers[first:last:pace])
    )


def _pick(numbers: Sequence[Number], places: Sequence[Number]) -> tuple[Number, ...] | None:
    known = [place for place in places if isinstance(place, int) and -len(numbers) <= place < len(numbers)]
    return tuple(numbers[place] for place in known) if len(known) == len(places) else None


def _select(
    condition: Sequence[Number], one: Sequence[Number], other: Sequence[Number]
) -> tuple[Number, ...] | None:
    length = max(len(condition), len(one), len(other))
    rows = [each if len(each) == length else [*each] * length for each in (condition, one, other)]
    return tuple(a if chosen else b for chosen, a, b in zip(*rows, strict=True))


def _product(numbers: Sequence[Number]) -> tuple[Number]:
    product: Number = 1
    for number in numbers:
        product = _combine("Mul", product, number) or 0
    return (product,)


def _pair(operator: str, first: Sequence[Number], second: Sequence[Number]) -> tuple[Number, ...] | None:
    length = max(len(first), len(second))
    rows = [each if len(each) == length else [*each] * length for each in (first, second)]
    found = [_combine(operator, one, other) for one, other in zip(*rows, strict=True)]
    known = tuple(number for number in found if number is not None)
    return known if len(known) == length else None


def _combine(operator: str, one: Number, other: Number) -> Number | None:
    """A sum, difference, product or quotient, or whether two are equal; None if that is not known."""
    if operator == "Equal":
        return _equal(one, other)
    if isinstance(one, int) and isinstance(other, int):
        return _of_integers(operator, one, other)
    neutral = 0 if operator in ("Add", "Sub") else 1
    if other == neutral or (one == neutral and operator in ("Add", "Mul")):
        return one if other == neutral else other
    if isinstance(one, PerSample) or isinstance(other, PerSample):
        return _of_samples(operator, one, other)
    exact = None
    if operator in ("Mul", "Div") and not any(isinstance(each, int) and each < 0 for each in (one, other)):
        exact = ratio((one, other), ()) if operator == "Mul" else ratio((one,), (other,))
    return f"({one} {operator} {other})".replace("*", "·") if exact is None else exact


def _of_integers(operator: str, one: int, other: int) -> int | None:
    if operator == "Div":
        return None if other == 0 or one < 0 or other < 0 else one // other
    return one + other if operator == "Add" else one - other if operator == "Sub" else one * other


def _of_samples(operator: str, one: Number, other: Number) -> Number:
    """What is computed with numbers of which one, at least, is so many times the samples."""
    times = [number.times if isinstance(number, PerSample) else None for number in (one, other)]
    left, right = times
    if left and right:
        if operator == "Div":
            return left // right
        total = {"Add": left + right, "Sub": left - right}.get(operator)
        return 0 if total == 0 else PerSample(total)
    factor = other if isinstance(one, PerSample) else one
    count = left or right
    if count and isinstance(factor, int) and factor > 0:
        if operator == "Mul":
            return PerSample(count * factor)
        if operator == "Div" and left and left % factor == 0:
            return PerSample(left // factor)
    return PerSample(None)


def _equal(one: Number, other: Number) -> int | None:
    if isinstance(one, int) and isinstance(other, int):
        return int(one == other)
    if isinstance(one, int):
        one, other = other, one
    is_length = bool(one.times) if isinstance(one, PerSample) else isinstance(one, str) and "(" not in one
    return 0 if is_length and isinstance(other, int) and other < 0 else None
