"""Which operators keep the samples of a batch apart, and along which axes: `RULES`. No other operator does.

The samples lie along one axis of a tensor that grows with the batch. N samples have `outer` × N × some
elements along it, in this order. A rule gets a node with such inputs and says where the batch lies in its
outputs, or why the node mixes samples. What is patched to keep them apart is asked of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import onnx

from trtopt.rewrite.match import FAR, REDUCTIONS

Length: TypeAlias = int | str
"""How long an axis is at the fixed batch: a number, or names, such as `4*seq`, for one that is not known."""


@dataclass(frozen=True)
class PerSample:
    """A number that is so many times the number of samples; None: one that depends on it otherwise."""

    times: int | None


Number: TypeAlias = int | str | PerSample


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor: its shape at the fixed batch, where the batch lies in it, its numbers."""

    shape: tuple[Length, ...] | None
    axis: int | None = None
    outer: Length = 1
    numbers: tuple[Number, ...] | None = None
    element: int = onnx.TensorProto.UNDEFINED

    @property
    def depends(self) -> bool:
        """Whether another batch gives another tensor."""
        return self.axis is not None or any(isinstance(number, PerSample) for number in self.numbers or ())


@dataclass(frozen=True)
class Rows:
    """A tensor that grows: its shape, where the batch lies in it, and how often all of it recurs there."""

    shape: tuple[Length, ...]
    axis: int
    outer: Length = 1

    @property
    def back(self) -> int:
        """The axis, counted from the last."""
        return self.axis - len(self.shape)

    @property
    def length(self) -> Length:
        """How long the axis is."""
        return self.shape[self.axis]

    def shares_rows_with(self, other: Rows) -> bool:
        """Whether both have the same samples along axes of one length."""
        return (self.length, self.outer) == (other.length, other.outer)


Shape: TypeAlias = tuple[Length, ...]
Ways: TypeAlias = list[Rows | None]


class MixesError(Exception):
    """Why a node does not keep samples apart."""


@dataclass(frozen=True)
class Patch:
    """What a node must read in place of an input: such numbers, or the input expanded to such a shape.

    A number that has but a name stays what it is in the input.
    """

    position: int
    numbers: tuple[Number, ...]
    kind: Literal["numbers", "expanded"] = "numbers"


@dataclass
class Step:
    """A node, its operands, and the shape of its outputs at the fixed batch; the patches that it needs."""

    node: onnx.NodeProto
    opset: int
    batch: int
    inputs: tuple[Tensor | None, ...]
    shapes: tuple[Shape | None, ...]
    floats: Callable[[int], list[float] | None]
    """The numbers of a constant."""
    choose: Callable[[object, Ways], Rows | None]
    """One of several ways to read the graph, all of which are right."""
    patches: list[Patch] = field(default_factory=list)

    @property
    def rows(self) -> list[tuple[int, Rows]]:
        """The inputs that grow, and their positions."""
        return [
            (place, Rows(item.shape, item.axis, item.outer))
            for place, item in enumerate(self.inputs)
            if item is not None and item.axis is not None and item.shape is not None
        ]

    @property
    def shape(self) -> Shape:
        """The first output's."""
        if not self.shapes or self.shapes[0] is None:
            raise MixesError("has an output of unknown shape")
        return self.shapes[0]

    def at(self, position: int) -> Tensor | None:
        """An input; None if it is not given."""
        return self.inputs[position] if position < len(self.inputs) else None

    def shape_at(self, position: int) -> Shape:
        """The shape of a given input."""
        item = self.at(position)
        if item is None or item.shape is None:
            raise MixesError("reads a tensor of unknown shape")
        return item.shape

    def number(self, attribute: str, default: int) -> int:
        """An attribute that is a whole number."""
        return next((int(item.i) for item in self.node.attribute if item.name == attribute), default)

    def text(self, attribute: str, default: str) -> str:
        """An attribute that is a text."""
        return next((item.s.decode() for item in self.node.attribute if item.name == attribute), default)

    def numbers(self, attribute: str, position: int) -> tuple[Number, ...] | None:
        """Numbers that older opsets keep in an attribute and newer ones in an input; None if not given."""
        for item in self.node.attribute:
            if item.name == attribute:
                return tuple(int(number) for number in item.ints) or (int(item.i),)
        operand = self.at(position)
        if operand is None:
            return None
        if operand.numbers is None:
            raise MixesError(f"computes its {attribute}")
        return operand.numbers

    def axes(self, attribute: str, position: int, rank: int) -> list[int] | None:
        """Axes of a tensor of `rank`, counted from the first; None if not given."""
        found = self.numbers(attribute, position)
        if found is None:
            return None
        return [axis % rank for axis in found if isinstance(axis, int)]


Rule: TypeAlias = Callable[[Step], list[Rows]]
"""Where the batch lies in each output; nothing if it lies in none."""


def ratio(lengths: Iterable[Length], others: Iterable[Length]) -> Length | None:
    """The product of lengths over that of others; None if it is no whole number."""
    number, names = _factors(lengths)
    over, gone = _factors(others)
    left = Counter(names)
    left.subtract(gone)
    if not over or number % over or min(left.values(), default=0) < 0:
        return None
    rest = sorted(left.elements())
    return "*".join([*([str(number // over)] if number != over else []), *rest]) if rest else number // over


def _factors(lengths: Iterable[Length]) -> tuple[int, list[str]]:
    """The product of all numbers, and all names."""
    number = 1
    names: list[str] = []
    for length in lengths:
        if isinstance(length, int):
            number *= length
            continue
        for part in length.split("*"):
            if part.isdigit():
                number *= int(part)
            else:
                names.append(part)
    return number, names


def _place(step: Step, rows: Rows, axis: int) -> list[Rows]:
    """All outputs, the batch at `axis` of each, as in `rows`."""
    made = []
    for name, shape in zip(step.node.output, step.shapes, strict=True):
        if not name:
            made.append(rows)
            continue
        if shape is None or axis >= len(shape):
            raise MixesError("has an output of unknown shape")
        if isinstance(shape[axis], int) and isinstance(rows.length, int) and shape[axis] != rows.length:
            raise MixesError(f"makes {shape[axis]} rows of the batch's {rows.length}")
        made.append(Rows((*shape[:axis], rows.length, *shape[axis + 1 :]), axis, rows.outer))
    return made


def _check_fixed(step: Step, *growing: int) -> None:
    """See that no input grows but those at the positions `growing`."""
    for position, _ in step.rows:
        if position not in growing:
            raise MixesError(f"takes its input {position} from the samples")


def _only_input(step: Step) -> Rows:
    """The first input, which alone may grow."""
    _check_fixed(step, 0)
    return step.rows[0][1]


# ── element by element ──────────────────────────────────────────────────────────────────────────────────


def _align(rows: Sequence[Rows], fixed: Iterable[Tensor]) -> Rows:
    """What tensors that are broadcast to one another have as their batch."""
    first = rows[0]
    for other in rows[1:]:
        if other.back != first.back or not first.shares_rows_with(other):
            raise MixesError("joins every sample with every other")
    for tensor in fixed:
        if tensor.shape is None:
            raise MixesError("reads a tensor of unknown shape")
        if len(tensor.shape) >= -first.back and tensor.shape[first.back] != 1:
            raise MixesError(f"joins the batch with {tensor.shape[first.back]} fixed rows")
    return first


def _elementwise(step: Step) -> list[Rows]:
    fixed = [item for item in step.inputs if item is not None and item.axis is None]
    rows = _align([rows for _, rows in step.rows], fixed)
    return _place(step, rows, len(step.shape) + rows.back)


def _cast_like(step: Step) -> list[Rows]:
    if step.rows[0][0]:
        return []  # it takes the samples' type alone
    return _place(step, step.rows[0][1], step.rows[0][1].axis)


def _quantize(step: Step) -> list[Rows]:
    rows = _only_input(step)
    scales = step.shape_at(1)
    axis = step.number("axis", 1) % len(rows.shape)
    if len(scales) > 1 or (scales not in ((), (1,)) and axis == rows.axis):
        raise MixesError(f"has {scales[-1]} scales along the batch")
    return _place(step, rows, rows.axis)


def _dropout(step: Step) -> list[Rows]:
    trains = step.number("is_test", step.opset >= 7) != 1 or (
        step.at(2) is not None and step.floats(2) != [0.0]
    )
    if trains and step.floats(1) != [0.0]:
        raise MixesError("draws random numbers")
    _check_fixed(step, 0)
    return _elementwise(step)


# ── along axes ──────────────────────────────────────────────────────────────────────────────────────────


def _find_common(step: Step) -> Rows:
    """Where the batch lies in all inputs that grow: the same place."""
    first = step.rows[0][1]
    if any(other.axis != first.axis or not first.shares_rows_with(other) for _, other in step.rows):
        raise MixesError("joins every sample with every other")
    return first


def _keep_apart(step: Step, axes: Collection[int]) -> Rows:
    """The common batch, which none of `axes` may be."""
    rows = _find_common(step)
    if rows.axis in axes:
        raise MixesError("works across the samples of a batch")
    return rows


def _work_along(step: Step, axes: Collection[int]) -> list[Rows]:
    """All outputs, the batch where it was, of what works along `axes`."""
    rows = _keep_apart(step, axes)
    return _place(step, rows, rows.axis)


def _along(step: Step, default: int | None = -1, *, growing: Sequence[int] = (0,)) -> list[Rows]:
    """Along the axis `axis`: an attribute, or (for no default) the input at position 1."""
    _check_fixed(step, *growing)
    rank = len(step.rows[0][1].shape)
    axes = step.axes("axis", 1, rank) if default is None else [step.number("axis", default) % rank]
    return _work_along(step, axes or range(rank))


def _together(step: Step) -> list[Rows]:
    """Along an axis of several inputs, all of which must grow."""
    if len(step.rows) < len(step.inputs):
        raise MixesError("joins samples with fixed rows")
    return _along(step, 0, growing=range(len(step.inputs)))


def _softmax(step: Step) -> list[Rows]:
    if step.opset >= 13:
        return _along(step)
    rank = len(step.rows[0][1].shape)
    return _work_along(step, range(step.number("axis", 1) % rank, rank))  # they are one


def _trailing(step: Step, default: int | None = None) -> list[Rows]:
    """On all axes from `axis` on, or on the last two."""
    rank = len(_only_input(step).shape)
    rows = _keep_apart(step, range((-2 if default is None else step.number("axis", default)) % rank, rank))
    _align([rows], [item for item in step.inputs[1:] if item is not None])
    return _place(step, rows, rows.axis)


def _batch_norm(step: Step) -> list[Rows]:
    _check_fixed(step, 0)
    if (
        step.number("training_mode", 0)
        or not step.number("is_test", step.opset >= 7)
        or len(step.node.output) > 1
    ):
        raise MixesError("works across the samples of a batch: it is in training mode")
    return _work_along(step, (1,))


def _reduce_over(step: Step, axes: Collection[int]) -> list[Rows]:
    rows = _keep_apart(step, axes)
    gone = 0 if step.number("keepdims", 1) else sum(axis < rows.axis for axis in axes)
    return _place(step, rows, rows.axis - gone)


def _reduce(step: Step) -> list[Rows]:
    rank = len(_only_input(step).shape)
    axes = step.axes("axes", 1, rank)
    if not axes and step.number("noop_with_empty_axes", 0):
        return _elementwise(step)
    return _reduce_over(step, axes or range(rank))


def _arg_extreme(step: Step) -> list[Rows]:
    return _reduce_over(step, [step.number("axis", 0) % len(step.rows[0][1].shape)])


# ── rows and their numbers ──────────────────────────────────────────────────────────────────────────────


def _list(numbers: Iterable[Number]) -> str:
    shown = ["N" if isinstance(number, PerSample) else str(number) for number in numbers]
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")


def _concat(step: Step) -> list[Rows]:
    rows = _find_common(step)
    if step.number("axis", 1) % len(rows.shape) == rows.axis and len(step.inputs) > 1:
        raise MixesError("adds rows to the batch")
    for position, item in enumerate(step.inputs):
        if item is not None and item.axis is None:
            length = step.shape_at(position)[rows.axis]
            if length != 1:
                raise MixesError(f"joins the batch with {length} fixed rows")
            wanted = [1] * len(rows.shape)
            step.patches.append(Patch(position, _with_rows(wanted, rows, step.batch), "expanded"))
    return _place(step, rows, rows.axis)


def _split(step: Step) -> list[Rows]:
    rows = _find_common(step)
    if step.number("axis", 0) % len(rows.shape) == rows.axis:
        raise MixesError("splits the batch")
    return _along(step, 0)


def _gather(step: Step) -> list[Rows]:
    rows = dict(step.rows)
    axis = step.number("axis", 0) % len(step.shape_at(0))
    if 0 in rows and 1 in rows:
        raise MixesError("lets samples choose among all samples")
    if 1 in rows:
        return _place(step, rows[1], axis + rows[1].axis)
    if axis == rows[0].axis:
        operand = step.at(1)
        found = () if operand is None or operand.numbers is None else operand.numbers
        raise MixesError(f"takes rows of the batch{': ' if found else ''}{_list(found)}")
    width = len(step.shape_at(1))
    return _place(step, rows[0], rows[0].axis + (width - 1 if axis < rows[0].axis else 0))


def _gather_nd(step: Step) -> list[Rows]:
    rows, alike = dict(step.rows), step.number("batch_dims", 0)
    deep = step.shape_at(1)[-1]
    if 0 in rows and 1 in rows:
        common = _find_common(step)
        if common.axis < alike:
            return _place(step, common, common.axis)
    elif 1 in rows and alike <= rows[1].axis < len(rows[1].shape) - 1:
        return _place(step, rows[1], rows[1].axis)
    elif 0 in rows and isinstance(deep, int) and rows[0].axis >= alike + deep:
        return _place(step, rows[0], len(step.shape_at(1)) - 1 + rows[0].axis - alike - deep)
    raise MixesError("takes rows of the batch")


def _scatter_nd(step: Step) -> list[Rows]:
    _check_fixed(step, 0, 2)
    rows, deep = dict(step.rows), step.shape_at(1)[-1]
    if len(rows) < 2 or not isinstance(deep, int) or rows[0].axis < deep:
        raise MixesError("replaces rows of the batch")
    if rows[2].axis != len(step.shape_at(1)) - 1 + rows[0].axis - deep:
        raise MixesError("joins every sample with every other")
    if not rows[0].shares_rows_with(rows[2]):
        raise MixesError("joins every sample with every other")
    return _place(step, rows[0], rows[0].axis)


def _one_hot(step: Step) -> list[Rows]:
    rows = _only_input(step)
    axis = step.number("axis", -1) % (len(rows.shape) + 1)
    return _place(step, rows, rows.axis + (axis <= rows.axis))


def _slice(step: Step) -> list[Rows]:
    rows = _only_input(step)
    rank = len(rows.shape)
    axes = step.axes("axes", 3, rank)
    counts = [step.at(position) for position in (1, 2)]
    if axes is None:
        known = next((item.shape for item in counts if item is not None and item.shape is not None), None)
        count = known[0] if known else len(step.numbers("starts", 1) or ())
        axes = list(range(count if isinstance(count, int) else rank))
    if rows.axis in axes:
        starts, ends, steps = (
            step.numbers(name, position) for name, position in (("starts", 1), ("ends", 2), ("steps", 4))
        )
        place = axes.index(rows.axis)
        start, end = (starts or ())[place], (ends or ())[place]
        is_all = end == _per_sample(rows, step.batch) or (isinstance(end, int) and end >= FAR)
        if start != 0 or not is_all or (steps is not None and steps[place] != 1):
            raise MixesError(f"takes rows of the batch: from {_list([start])} to {_list([end])}")
    _refuse_counts(step, {1: axes, 2: axes}, rows.axis)
    return _place(step, rows, rows.axis)


def _refuse_counts(step: Step, operands: dict[int, Sequence[int]], allowed: int | None) -> None:
    """See that no number depends on the batch but that of its axis."""
    for position, axes in operands.items():
        item = step.at(position)
        for axis, number in zip(axes, (item.numbers or ()) if item else (), strict=False):
            if isinstance(number, PerSample) and axis != allowed:
                raise MixesError("computes with the number of samples")


def _pad(step: Step) -> list[Rows]:
    rows = _only_input(step)
    rank = len(rows.shape)
    axes = step.axes("axes", 3, rank) or list(range(rank))
    pads = step.numbers("pads", 1) or step.numbers("paddings", 1) or ()
    added = [
        pads[place + end] for end in (0, len(axes)) for place in range(len(axes)) if axes[place] == rows.axis
    ]
    if any(number != 0 for number in added):
        raise MixesError(f"adds {_list(added)} rows to the batch")
    return _place(step, rows, rows.axis)


def _tile(step: Step) -> list[Rows]:
    times = step.numbers("repeats", 1) or ()
    if not step.rows:
        return [_find_counted_axis(step, step.shape_at(0), times)]
    rows = _only_input(step)
    if times[rows.axis] != 1:
        raise MixesError(f"repeats the batch {_list([times[rows.axis]])} times")
    return _place(step, rows, rows.axis)


def _find_counted_axis(step: Step, shape: Sequence[Length], numbers: Sequence[Number]) -> Rows:
    """A constant in as many rows as numbers say: where one counts the samples, and there is one row."""
    places = [place for place, number in enumerate(numbers) if isinstance(number, PerSample)]
    lengths = (1,) * (len(numbers) - len(shape)) + tuple(shape)
    place = places[0]
    number = numbers[place]
    if len(places) > 1 or not isinstance(number, PerSample) or number.times is None or lengths[place] != 1:
        raise MixesError("computes with the number of samples")
    return Rows((*step.shape[:place], number.times * step.batch, *step.shape[place + 1 :]), place)


def _constant_of_shape(step: Step) -> list[Rows]:
    numbers = step.numbers("shape", 0) or ()
    return [_find_counted_axis(step, (1,) * len(numbers), numbers)]


# ── matrices ────────────────────────────────────────────────────────────────────────────────────────────


def _matmul(step: Step) -> list[Rows]:
    found = dict(step.rows)
    left, right = found.get(0), found.get(1)
    is_vector = [len(step.shape_at(position)) == 1 for position in (0, 1)]
    contracted = (left and left.back == -1) or (right and right.back == (-1 if is_vector[1] else -2))
    is_row, is_column = left is not None and left.back == -2, right is not None and right.back == -1
    if contracted or (left and right and (is_row or is_column)):
        raise MixesError("adds samples up")
    rank = len(step.shape)
    if left is not None and is_row:
        return _place(step, left, rank - (1 if is_vector[1] else 2))
    if right is not None and is_column:
        return _place(step, right, rank - 1)
    fixed = [item for item in step.inputs if item is not None and item.axis is None]
    stacked = [item for item in fixed if item.shape is None or len(item.shape) > 2]
    rows = _align([rows for rows in (left, right) if rows], stacked)
    return _place(step, rows, rank + rows.back + sum(is_vector))


def _gemm(step: Step) -> list[Rows]:
    rows = dict(step.rows)
    left, right, added = (rows.get(position) for position in (0, 1, 2))
    if (left and left.axis != step.number("transA", 0)) or (right and right.axis == step.number("transB", 0)):
        raise MixesError("adds samples up")
    if left and right:
        raise MixesError("joins every sample with every other")
    product = left or right
    if product is None:
        raise MixesError("joins samples with fixed rows")
    axis = 0 if left else 1
    whole = [Rows(step.shape, axis, product.outer), *([added] if added else [])]
    _align(whole, [item for item in [step.at(2)] if item is not None and item.axis is None])
    return _place(step, product, axis)


def _einsum(step: Step) -> list[Rows]:
    left, arrow, right = step.text("equation", "").replace(" ", "").partition("->")
    terms = [_labels(term, len(step.shape_at(place))) for place, term in enumerate(left.split(","))]
    out = _labels(right, len(step.shape)) if arrow else _imply(terms)
    rows = dict(step.rows)
    labels = {terms[place][own.axis] for place, own in rows.items()}
    first = next(iter(rows.values()))
    label = labels.pop()
    if labels or any(not first.shares_rows_with(own) for own in rows.values()):
        raise MixesError("joins every sample with every other")
    for place, term in enumerate(terms):
        if term.count(label) > (place in rows) and (
            place in rows or step.shape_at(place)[term.index(label)] != 1 or not label.startswith("…")
        ):
            raise MixesError("joins the batch with other rows")
    if label not in out:
        raise MixesError("adds samples up")
    return _place(step, first, out.index(label))


def _labels(term: str, rank: int) -> list[str]:
    """The label of every axis; those that an ellipsis stands for are counted from the last."""
    before, dots, after = term.partition("...")
    hidden = range(rank - len(before) - len(after), 0, -1) if dots else ()
    return [*before, *(f"…{place}" for place in hidden), *after]


def _imply(terms: Sequence[Sequence[str]]) -> list[str]:
    every = [label for term in terms for label in term]
    hidden = sorted({label for label in every if label.startswith("…")}, reverse=True)
    return [*hidden, *sorted(label for label in every if every.count(label) == 1 and label not in hidden)]


# ── sample by sample ────────────────────────────────────────────────────────────────────────────────────


def _by_sample(step: Step, growing: Sequence[int] = (0,), *, free: Sequence[int] = ()) -> list[Rows]:
    """One sample after another along axis 0: inputs `growing` have it, `free` ones may, others may not."""
    _check_fixed(step, *growing, *free)
    rows = _find_common(step)
    found = dict(step.rows)
    if rows.axis or any(step.at(place) is not None and place not in found for place in growing):
        raise MixesError("works across the samples of a batch")
    if step.number("storage_order", 0) or (step.node.op_type == "MaxPool" and len(step.node.output) > 1):
        raise MixesError("counts elements through all samples")
    return _place(step, rows, 0)


def _attention(step: Step) -> list[Rows]:
    mask = step.at(3)
    if mask is not None and mask.shape is not None and len(mask.shape) < 4 and mask.axis is not None:
        raise MixesError("joins every sample with every other")
    if mask is not None and mask.axis is None and (mask.shape is None or mask.shape[:-3] not in ((), (1,))):
        raise MixesError("joins the batch with fixed rows")
    return _by_sample(step, (0, 1, 2, 4, 5, 6), free=(3,))


def _recurrent(step: Step) -> list[Rows]:
    """Along the second axis, or, with another layout, the first: lengths and states have the batch too."""
    _check_fixed(step, 0, 4, 5, 6)
    is_first = bool(step.number("layout", 0))
    rows = dict(step.rows)
    places = {0: 0 if is_first else 1, 4: 0, 5: 0 if is_first else 1, 6: 0 if is_first else 1}
    for position, axis in places.items():
        own = rows.get(position)
        if own is None and step.at(position) is not None:
            raise MixesError("has lengths or a state for each row of the fixed batch")
        if own is not None and (own.axis != axis or not own.shares_rows_with(rows.get(0, own))):
            raise MixesError("works across the samples of a batch")
    axes = [0, 0, 0] if is_first else [2, 1, 1]
    return [
        Rows((*shape[:axis], rows[0].length, *shape[axis + 1 :]), axis, rows[0].outer) if shape else rows[0]
        for shape, axis in zip(step.shapes, axes, strict=False)
    ]


# ── axes moved, merged and resized ──────────────────────────────────────────────────────────────────────


def _per_sample(rows: Rows, batch: int) -> PerSample:
    """How long the batch's axis is."""
    times = ratio((rows.length,), (batch,))
    return PerSample(times if isinstance(times, int) else None)


def _with_rows(numbers: Sequence[int], rows: Rows, batch: int) -> tuple[int | PerSample, ...]:
    return (*numbers[: rows.axis], _per_sample(rows, batch), *numbers[rows.axis + 1 :])


def _transpose(step: Step) -> list[Rows]:
    rows = step.rows[0][1]
    order = next((list(item.ints) for item in step.node.attribute if item.name == "perm"), None)
    return _place(step, rows, (order or list(range(len(rows.shape)))[::-1]).index(rows.axis))


def _unsqueeze(step: Step) -> list[Rows]:
    rows = step.rows[0][1]
    added = step.axes("axes", 1, len(step.shape)) or []
    kept = [place for place in range(len(step.shape)) if place not in added]
    return _place(step, rows, kept[rows.axis])


def _squeeze(step: Step) -> list[Rows]:
    rows = step.rows[0][1]
    gone = step.axes("axes", 1, len(rows.shape))
    if gone is None:
        if any(isinstance(length, str) for length in rows.shape):
            raise MixesError("removes axes that may be 1 long")
        gone = [place for place, length in enumerate(rows.shape) if length == 1]
        if not gone or step.opset < 13:
            raise MixesError("removes the batch's axis where it is 1 long")
        step.patches.append(Patch(1, tuple(gone)))
    if rows.axis in gone:
        raise MixesError("removes the batch's axis")
    return _place(step, rows, rows.axis - sum(place < rows.axis for place in gone))


def _flatten(step: Step) -> list[Rows]:
    rows = step.rows[0][1]
    first = step.number("axis", 1)
    axis = int(rows.axis >= (first if first >= 0 else first + len(rows.shape)))
    outer = ratio((*rows.shape[: rows.axis], rows.outer), step.shape[:axis])
    if outer is None:
        raise MixesError("merges axes of unknown length")
    return [Rows(step.shape, axis, outer)]


def _reshape(step: Step) -> list[Rows]:
    _check_fixed(step, 0)
    if not step.rows:
        raise MixesError("computes with the number of samples")
    rows, target = step.rows[0][1], step.numbers("shape", 1) or ()
    out = _reshape_to(rows, target, step.shapes[0], step.batch)
    if 0 in (*rows.shape, *out) or (0 in target and step.number("allowzero", 0)):
        raise MixesError("has a shape without elements")
    ways = _ways(rows, out, target, step.batch)
    ways = [way for way in ways if _open(target, way, rows, step.batch)]
    if not ways:
        raise MixesError(f"gives the batch the fixed shape {_list(target)}")
    chosen = step.choose((rows, target, out), list(ways))
    assert chosen is not None
    new = _open(target, chosen, rows, step.batch)
    if new is not None and new != target:
        step.patches.append(Patch(1, new))
    return [chosen]


def _reshape_to(rows: Rows, target: Sequence[Number], inferred: Shape | None, batch: int) -> Shape:
    """The shape at the fixed batch: a number, or the name of what the target or the input has there."""
    found: list[Length] = []
    for place, number in enumerate(target):
        known: Length = inferred[place] if inferred is not None else f"{place} of {target}"
        if isinstance(number, PerSample):
            known = known if number.times is None else number.times * batch
        elif isinstance(number, str) or number > 0:
            known = number
        elif number == 0 and place < len(rows.shape):
            known = rows.shape[place]
        found.append(known)
    if -1 in target:
        place = target.index(-1)
        found[place] = ratio(rows.shape, [*found[:place], *found[place + 1 :]]) or found[place]
    return tuple(found)


def _ways(rows: Rows, out: Shape, target: Sequence[Number], batch: int) -> list[Rows]:
    """The axes of `out` in which the batch may lie: where one begins, where it lay before, as long as it.

    A shape that is computed of the number of samples says itself where.
    """
    counted = [place for place, number in enumerate(target) if isinstance(number, PerSample)]
    found = []
    for axis, length in enumerate(out):
        outer = ratio((*rows.shape[: rows.axis], rows.outer), out[:axis])
        fits = outer is not None and ratio((length,), (outer, batch)) is not None
        if outer is not None and fits and counted in ([], [axis]):
            found.append(Rows(out, axis, outer))

    def moves(way: Rows) -> bool:
        return way.axis != rows.axis or out[: way.axis] != rows.shape[: way.axis]

    found.sort(key=lambda way: (way.outer != 1, str(way.outer), moves(way), way.length != batch))
    return found


def _open(target: Sequence[Number], way: Rows, rows: Rows, batch: int) -> tuple[Number, ...] | None:
    """The target with the batch's axis left open; None if it cannot be."""
    copies = way.axis == rows.axis and way.length == rows.length
    here, moved = target[way.axis], 0 in target[rows.axis : rows.axis + 1] and not copies
    if isinstance(here, PerSample) and (here.times is None or moved):
        return None
    if isinstance(here, PerSample) or (here == -1 and not moved) or (here == 0 and copies):
        return tuple(target)
    new: list[Number] = []
    for place, length in enumerate(way.shape):
        is_kept = rows.shape[place : place + 1] == (length,) and place != rows.axis
        new.append(length if isinstance(length, int) else 0 if is_kept else -1)
    new[way.axis] = 1
    new[way.axis] = -1 if -1 not in new else 0 if copies else _per_sample(way, batch)
    return tuple(new) if new.count(-1) <= 1 and new[way.axis] != PerSample(None) else None


def _expand(step: Step) -> list[Rows]:
    _check_fixed(step, 0)
    target = step.numbers("shape", 1) or ()
    if not step.rows:
        return [_find_counted_axis(step, step.shape_at(0), target)]
    rows = step.rows[0][1]
    axis = len(step.shape) + rows.back
    place = len(target) + rows.back
    _refuse_counts(step, {1: range(len(step.shape) - len(target), len(step.shape))}, axis)
    if place >= 0 and target[place] not in (1, _per_sample(rows, step.batch)):
        if target[place] != rows.length:
            raise MixesError(f"repeats the batch in {_list(target)}")
        step.patches.append(Patch(1, (*target[:place], 1, *target[place + 1 :])))
    return _place(step, rows, axis)


def find_repetitions(step: Step) -> Ways:
    """How a constant that is expanded may be read: as one row for each sample, or as what it is."""
    target = () if step.at(1) is None else (step.numbers("shape", 1) or ())
    own = step.shape_at(0)
    if step.batch == 1 or target[:1] != (step.batch,):
        return []
    first = own[0] if len(own) == len(target) else 1
    return [Rows((step.batch, *step.shape[1:]), 0), None] if first == 1 else []


def _resize(step: Step) -> list[Rows]:
    rows = _only_input(step)
    axes = [
        axis % len(rows.shape) for item in step.node.attribute if item.name == "axes" for axis in item.ints
    ] or list(range(len(rows.shape)))
    if rows.axis in axes:
        policy = step.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch" or step.text("coordinate_transformation_mode", "") == "tf_crop_and_resize":
            raise MixesError("resizes the batch")
        _resize_rows(step, rows, axes)
    _refuse_counts(step, {3: axes}, rows.axis)
    return _place(step, rows, rows.axis)


def _resize_rows(step: Step, rows: Rows, axes: Sequence[int]) -> None:
    """See that the batch keeps its length; a fixed size that it has is patched."""
    place = axes.index(rows.axis)
    sizes = step.numbers("sizes", 3)
    if not sizes:
        position = 1 if step.opset < 11 else 2
        given = [list(item.floats) for item in step.node.attribute if item.name == "scales"]
        scales = given[0] if given else step.floats(position)
        if scales is None or scales[place] != 1.0:
            raise MixesError("resizes the batch")
        return
    if sizes[place] != _per_sample(rows, step.batch):
        if sizes[place] != rows.length:
            raise MixesError("resizes the batch")
        counted = _per_sample(rows, step.batch)
        step.patches.append(Patch(3, (*sizes[:place], counted, *sizes[place + 1 :])))


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────

_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish",
    "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
_BY_SAMPLE = (
    "AveragePool", "Col2Im", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool",
    "MaxPool", "STFT", "SpaceToDepth",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BY_SAMPLE, _by_sample),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_extreme),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("CumSum", "CumProd"), partial(_along, default=None)),
    **dict.fromkeys(("GatherElements", "ScatterElements", "Scatter"), _together),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), partial(_trailing, default=-1)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantize),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Attention": _attention,
    "BatchNormalization": _batch_norm,
    "CastLike": _cast_like,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DeformConv": partial(_by_sample, growing=(0, 2, 4)),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": partial(_by_sample, growing=(0, 1)),
    "LpNormalization": _along,
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _along,
    "Transpose": _transpose,
    "Trilu": _trailing,
    "Unsqueeze": _unsqueeze,
}
"""By operator of ONNX's own domain. If is followed into; Shape and Size are numbers."""

TAKES_NUMBERS = frozenset(("Reshape", "Expand", "ConstantOfShape", "Slice", "Resize", "Tile"))
"""Operators that may read the number of samples, each as its rule says."""
