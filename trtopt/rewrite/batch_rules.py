"""Which operators keep the samples of a batch apart, and along which axes: `RULES`. No other operator does.

The samples lie along one axis of a tensor that grows with the batch. N samples have `outer` × N × some
elements along it, in this order. A rule gets a node with such inputs and says where the batch lies in its
outputs, or why the node mixes samples. What is patched to keep them apart is asked of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from trtopt.onnxio.graph_walk import ELEMENTWISE, REDUCTIONS, attribute
from trtopt.rewrite.match import FAR

Array = np.ndarray[Any, Any]
Length: TypeAlias = int | str
"""How long an axis is at the fixed batch: a number, or names, such as `4*seq`, for one that is not known."""
Shape: TypeAlias = tuple[Length, ...]


@dataclass(frozen=True)
class PerSample:
    """A number that is so many times the number of samples."""

    times: int


Number: TypeAlias = int | PerSample | None
"""None: what stands there now."""


@dataclass(frozen=True)
class Rows:
    """A tensor that grows: its shape, where the batch lies in it, and how often all of it recurs there."""

    shape: Shape
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


class MixesError(Exception):
    """Why a node does not keep samples apart."""


@dataclass(frozen=True)
class Patch:
    """What a node must read in place of an input: numbers or values, or the input expanded to numbers."""

    position: int
    value: tuple[Number, ...] | Array
    kind: Literal["read", "expanded"] = "read"


@dataclass
class Step:
    """A node, what it reads, and the shapes of its outputs at the fixed batch; the patches that it needs."""

    node: onnx.NodeProto
    opset: int
    batch: int
    rows: dict[int, Rows]
    """The inputs that grow, by position."""
    inputs: tuple[Shape | None, ...]
    shapes: tuple[Shape | None, ...]
    constant: Callable[[int], Array | None]
    """The values of an input that is a constant."""
    choose: Callable[[object, list[Rows]], Rows]
    """One of several ways to read the graph, all of which are right."""
    patches: list[Patch] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        """The first output's."""
        if self.shapes[0] is None:
            raise MixesError("has an output of unknown shape")
        return self.shapes[0]

    def is_given(self, position: int) -> bool:
        """Whether the node has such an input."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def shape_at(self, position: int) -> Shape:
        """The shape of a given input."""
        shape = self.inputs[position]
        if shape is None:
            raise MixesError("reads a tensor of unknown shape")
        return shape

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        return attribute(self.node, name, default)

    def numbers(self, name: str, position: int) -> list[int] | None:
        """Numbers that older opsets keep in an attribute and newer ones in an input; None if not given."""
        values = self.attribute(name)
        if values is None and self.is_given(position):
            values = self.constant(position)
            if values is None:
                raise MixesError(f"computes its {name}")
        return None if values is None else [int(number) for number in np.ravel(values)]

    def axes(self, name: str, position: int, rank: int) -> list[int] | None:
        """Axes of a tensor of `rank`, counted from the first; None if not given."""
        found = self.numbers(name, position)
        return None if found is None else [axis % rank for axis in found]

    def check_fixed(self, *growing: int) -> None:
        """See that no input grows but those at the positions `growing`."""
        for position in self.rows:
            if position not in growing:
                raise MixesError(f"takes its input {position} from the samples")

    def only_input(self) -> Rows:
        """The first input, which alone may grow."""
        self.check_fixed(0)
        return self.rows[0]

    def common(self) -> Rows:
        """Where the batch lies in all inputs that grow: the same place."""
        first, *others = self.rows.values()
        if any(other.axis != first.axis or not first.shares_rows_with(other) for other in others):
            raise MixesError("joins every sample with every other")
        return first

    def shares_a_row(self, position: int, axis: int, rows: Rows) -> bool:
        """Whether a fixed input is one row for all samples; where it repeats that for each, it is patched."""
        shape = self.shape_at(position)
        if not 0 <= axis < len(shape) or shape[axis] == 1:
            return True
        values = self.constant(position) if shape[axis] == rows.length else None
        if values is None:
            return False
        row = values.take([0], axis)
        if not np.array_equal(values, np.broadcast_to(row, values.shape), equal_nan=values.dtype.kind == "f"):
            return False
        self.patches.append(Patch(position, row))
        return True


Rule: TypeAlias = Callable[[Step], list[Rows]]
"""Where the batch lies in each output."""


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
    for part in (part for length in lengths for part in str(length).split("*")):
        if part.isdigit():
            number *= int(part)
        else:
            names.append(part)
    return number, names


def name_of_axis(tensor: str, place: int) -> str:
    """What stands for the length of an axis that has no name: it is no number and no product."""
    return f"axis {place} of {tensor}".replace("*", "×")


def _per_sample(rows: Rows, batch: int) -> PerSample | None:
    """How long the batch's axis is; None if that is not known."""
    times = ratio((rows.length,), (batch,))
    return PerSample(times) if isinstance(times, int) else None


def _place(step: Step, rows: Rows, *axes: int) -> list[Rows]:
    """All outputs, the batch at an axis of each, or at one of all, as in `rows`."""
    made = []
    for place, (name, shape) in enumerate(zip(step.node.output, step.shapes, strict=True)):
        axis = axes[place % len(axes)]
        if not name:
            made.append(rows)
            continue
        if shape is None or axis >= len(shape):
            raise MixesError("has an output of unknown shape")
        if isinstance(shape[axis], int) and isinstance(rows.length, int) and shape[axis] != rows.length:
            raise MixesError(f"makes {shape[axis]} rows of the batch's {rows.length}")
        made.append(Rows((*shape[:axis], rows.length, *shape[axis + 1 :]), axis, rows.outer))
    return made


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


# ── element by element ──────────────────────────────────────────────────────────────────────────────────


def _align(step: Step, growing: Sequence[Rows], fixed: Iterable[int]) -> Rows:
    """What tensors that are broadcast to one another have as their batch."""
    first = growing[0]
    for other in growing[1:]:
        if other.back != first.back or not first.shares_rows_with(other):
            raise MixesError("joins every sample with every other")
    for position in filter(step.is_given, fixed):
        axis = len(step.shape_at(position)) + first.back
        if not step.shares_a_row(position, axis, first):
            raise MixesError(f"joins the batch with {step.shape_at(position)[axis]} fixed rows")
    return first


def _elementwise(step: Step) -> list[Rows]:
    fixed = [place for place in range(len(step.inputs)) if place not in step.rows]
    rows = _align(step, list(step.rows.values()), fixed)
    return _place(step, rows, len(step.shape) + rows.back)


# ── along axes ──────────────────────────────────────────────────────────────────────────────────────────


Axes: TypeAlias = Callable[[Step, int], Collection[int]]
"""The axes that a node works along, where its first input has so many."""


def _along(
    axes: Axes, why_not: str = "works across the samples of a batch", *, reduces: bool = False
) -> Rule:
    """All outputs, the batch where it was: none of `axes`, which may go where the node reduces them."""

    def find(step: Step) -> list[Rows]:
        rows = step.only_input()
        try:
            worked = axes(step, len(rows.shape))
        except ValueError:  # of zip: ONNX's checker does not count them
            raise MixesError("has more or fewer numbers than axes") from None
        if rows.axis in worked:
            raise MixesError(why_not)
        is_dropped = reduces and not step.attribute("keepdims", 1)
        return _place(step, rows, rows.axis - sum(axis < rows.axis for axis in worked if is_dropped))

    return find


def _named_axis(default: int) -> Axes:
    """The one that the attribute `axis` names."""
    return lambda step, rank: [step.attribute("axis", default) % rank]


def _softmax_axes(step: Step, rank: int) -> Collection[int]:
    if step.opset >= 13:
        return [step.attribute("axis", -1) % rank]
    return range(step.attribute("axis", 1) % rank, rank)  # they are one


def _reduced_axes(step: Step, rank: int) -> Collection[int]:
    return step.axes("axes", 1, rank) or range(0 if step.attribute("noop_with_empty_axes", 0) else rank)


def _batch_norm_axes(step: Step, rank: int) -> Collection[int]:
    is_trained = step.attribute("training_mode", 0) or not step.attribute("is_test", step.opset >= 7)
    if is_trained or len(step.node.output) > 1:
        raise MixesError("works across the samples of a batch: it is in training mode")
    return (1,)


def _scaled_axes(step: Step, rank: int) -> Collection[int]:
    """Those that have scales of their own."""
    scales = step.shape_at(1)
    if len(scales) > 1:
        return range(rank)
    return [] if scales in ((), (1,)) else [step.attribute("axis", 1) % rank]


def _sliced_axes(step: Step, rank: int) -> Collection[int]:
    axes = step.axes("axes", 3, rank) or range(len(step.numbers("starts", 1) or ()))
    if step.rows[0].axis not in axes:
        return []
    starts, ends = step.numbers("starts", 1) or (), step.numbers("ends", 2) or ()
    by = step.numbers("steps", 4) or [1] * len(axes)
    whole = [start == 0 and end >= FAR and one == 1 for start, end, one in zip(starts, ends, by, strict=True)]
    return [axis for axis, is_whole in zip(axes, whole, strict=True) if not is_whole]


def _padded_axes(step: Step, rank: int) -> Collection[int]:
    axes = [*(step.axes("axes", 3, rank) or range(rank))]
    pads = step.numbers("pads", 1) or step.numbers("paddings", 1) or ()
    return [axis for axis, added in zip(axes * 2, pads, strict=True) if added]


def _repeated_axes(step: Step, rank: int) -> Collection[int]:
    repeats = step.numbers("repeats", 1) or ()
    return [axis for axis, times in zip(range(rank), repeats, strict=True) if times != 1]


def _layer_norm(step: Step) -> list[Rows]:
    made = _along(lambda step, rank: range(step.attribute("axis", -1) % rank, rank))(step)
    _align(step, [step.rows[0]], range(1, len(step.inputs)))
    return made


def _together(step: Step) -> list[Rows]:
    """Along an axis of several inputs, all of which must grow."""
    if len(step.rows) < len(step.inputs):
        raise MixesError("joins samples with fixed rows")
    rows = step.common()
    if rows.axis == step.attribute("axis", 0) % len(rows.shape):
        raise MixesError("works across the samples of a batch")
    return _place(step, rows, rows.axis)


# ── rows and their numbers ──────────────────────────────────────────────────────────────────────────────


def _concat(step: Step) -> list[Rows]:
    rows = step.common()
    if step.attribute("axis", 1) % len(rows.shape) == rows.axis and len(step.inputs) > 1:
        raise MixesError("adds rows to the batch")
    for position in range(len(step.inputs)):
        if position not in step.rows:
            if not step.shares_a_row(position, rows.axis, rows):
                raise MixesError(f"joins the batch with {step.shape_at(position)[rows.axis]} fixed rows")
            wanted: list[Number] = [1] * len(rows.shape)
            wanted[rows.axis] = _per_sample(rows, step.batch)
            if wanted[rows.axis] is None:
                raise MixesError("repeats a constant for rows of unknown number")
            step.patches.append(Patch(position, tuple(wanted), "expanded"))
    return _place(step, rows, rows.axis)


def _gather(step: Step) -> list[Rows]:
    rows = step.rows
    axis = step.attribute("axis", 0) % len(step.shape_at(0))
    if len(rows) > 1:
        raise MixesError("lets samples choose among all samples")
    if 1 in rows:
        return _place(step, rows[1], axis + rows[1].axis)
    if axis == rows[0].axis:
        found = step.constant(1)
        picked = "" if found is None else f": {_list(list(found.reshape(-1)))}"
        raise MixesError(f"takes rows of the batch{picked}")
    width = len(step.shape_at(1))
    return _place(step, rows[0], rows[0].axis + (width - 1 if axis < rows[0].axis else 0))


# ── matrices ────────────────────────────────────────────────────────────────────────────────────────────


def _matmul(step: Step) -> list[Rows]:
    left, right = step.rows.get(0), step.rows.get(1)
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
    stacked = [place for place in (0, 1) if place not in step.rows and len(step.shape_at(place)) > 2]
    rows = _align(step, [rows for rows in (left, right) if rows], stacked)
    return _place(step, rows, rank + rows.back + sum(is_vector))


def _gemm(step: Step) -> list[Rows]:
    left, right, added = (step.rows.get(position) for position in (0, 1, 2))
    if (left and left.axis != step.attribute("transA", 0)) or (
        right and right.axis == step.attribute("transB", 0)
    ):
        raise MixesError("adds samples up")
    if left and right:
        raise MixesError("joins every sample with every other")
    product = left or right
    if product is None:
        raise MixesError("joins samples with fixed rows")
    axis = 0 if left else 1
    whole = Rows((product.length, 1) if left else (1, product.length), axis, product.outer)
    _align(step, [whole, added] if added else [whole], [] if added else [2])
    return _place(step, product, axis)


def _einsum(step: Step) -> list[Rows]:
    left, arrow, right = step.attribute("equation").decode().replace(" ", "").partition("->")
    terms = [_labels(term, len(step.shape_at(place))) for place, term in enumerate(left.split(","))]
    out = _labels(right, len(step.shape)) if arrow else _imply(terms)
    labels = {terms[place][own.axis] for place, own in step.rows.items()}
    first, *others = step.rows.values()
    label = labels.pop()
    if labels or not all(first.shares_rows_with(own) for own in others):
        raise MixesError("joins every sample with every other")
    for place, term in enumerate(terms):
        if term.count(label) > (place in step.rows) and (
            place in step.rows or step.shape_at(place)[term.index(label)] != 1 or not label.startswith("…")
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


def _by_sample(step: Step) -> list[Rows]:
    """One sample after another along axis 0; weights are fixed."""
    rows = step.only_input()
    if rows.axis:
        raise MixesError("works across the samples of a batch")
    if step.attribute("storage_order", 0) or (step.node.op_type == "MaxPool" and len(step.node.output) > 1):
        raise MixesError("counts elements through all samples")
    return _place(step, rows, 0)


def _grid_sample(step: Step) -> list[Rows]:
    if len(step.rows) < 2 or step.common().axis:
        raise MixesError("works across the samples of a batch")
    return _place(step, step.rows[0], 0)


def _recurrent(step: Step) -> list[Rows]:
    """Along the second axis, or, with another layout, the first: lengths and states have the batch too."""
    step.check_fixed(0, 4, 5, 6)
    is_first = bool(step.attribute("layout", 0))
    places = {0: 0 if is_first else 1, 4: 0, 5: 0 if is_first else 1, 6: 0 if is_first else 1}
    for position, axis in places.items():
        own = step.rows.get(position)
        if own is None and step.is_given(position):
            raise MixesError("has lengths or a state for each row of the fixed batch")
        if own is not None and (own.axis != axis or not own.shares_rows_with(step.rows.get(0, own))):
            raise MixesError("works across the samples of a batch")
    return _place(step, step.rows[0], *((0,) if is_first else (2, 1, 1)))


# ── axes moved, merged and resized ──────────────────────────────────────────────────────────────────────


def _transpose(step: Step) -> list[Rows]:
    rows = step.rows[0]
    order = step.attribute("perm") or range(len(rows.shape))[::-1]
    return _place(step, rows, order.index(rows.axis))


def _unsqueeze(step: Step) -> list[Rows]:
    rows = step.rows[0]
    added = step.axes("axes", 1, len(step.shape)) or []
    kept = [place for place in range(len(step.shape)) if place not in added]
    return _place(step, rows, kept[rows.axis])


def _squeeze(step: Step) -> list[Rows]:
    rows = step.rows[0]
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
    rows = step.rows[0]
    first = step.attribute("axis", 1)
    axis = int(rows.axis >= (first if first >= 0 else first + len(rows.shape)))
    outer = ratio((*rows.shape[: rows.axis], rows.outer), step.shape[:axis])
    if outer is None:
        raise MixesError("merges axes of unknown length")
    return [Rows(step.shape, axis, outer)]


def _reshape(step: Step) -> list[Rows]:
    rows, values = step.only_input(), step.constant(1)
    target = None if values is None else [int(number) for number in values]
    out = _solve(rows, step.shape) if target is None else _resolve(rows, target, step.node.output[0])
    if 0 in (*rows.shape, *out) or (0 in (target or ()) and step.attribute("allowzero", 0)):
        raise MixesError("has a shape without elements")
    opened = {
        way: new for way in _ways(rows, out, step.batch) if (new := _open(target, way, rows, step.batch))
    }
    if not opened:
        shown = ", ".join(map(str, out)) if target is None else _list(target)
        raise MixesError(f"gives the batch the fixed shape {shown}")
    chosen = step.choose((rows, out), list(opened))
    if target is None or opened[chosen] != tuple(target):
        step.patches.append(Patch(1, opened[chosen]))
    return [chosen]


def _resolve(rows: Rows, target: Sequence[int], name: str) -> Shape:
    """The shape at the fixed batch that a Reshape's numbers stand for."""
    copied = (*rows.shape, *[0] * len(target))
    found = [number or copied[place] for place, number in enumerate(target)]
    if -1 in target:
        place = target.index(-1)
        found[place] = ratio(rows.shape, [*found[:place], *found[place + 1 :]]) or name_of_axis(name, place)
    return tuple(found)


def _solve(rows: Rows, shape: Shape) -> Shape:
    """The shape that a Reshape computes, with the length that follows from the others for a new name."""
    found = list(shape)
    for place, length in enumerate(shape):
        if isinstance(length, str) and length not in rows.shape:
            found[place] = ratio(rows.shape, [*found[:place], *found[place + 1 :]]) or length
    return tuple(found)


def _ways(rows: Rows, out: Shape, batch: int) -> list[Rows]:
    """The axes of `out` in which the batch may lie: where one begins, where it lay before, as long as it."""
    found = []
    for axis, length in enumerate(out):
        outer = ratio((*rows.shape[: rows.axis], rows.outer), out[:axis])
        if outer is not None and ratio((length,), (outer, batch)) is not None:
            found.append(Rows(out, axis, outer))

    def moves(way: Rows) -> bool:
        return way.axis != rows.axis or out[: way.axis] != rows.shape[: way.axis]

    found.sort(key=lambda way: (way.outer != 1, str(way.outer), moves(way), way.length != batch))
    return found


def _open(target: Sequence[int] | None, way: Rows, rows: Rows, batch: int) -> tuple[Number, ...] | None:
    """The target, where it is known, with the batch's axis left open; None if it cannot be."""
    copies = way.axis == rows.axis and way.length == rows.length
    new: list[Number]
    if target is None:
        new = [length if isinstance(length, int) else None for length in way.shape]
        new[way.axis] = _per_sample(way, batch) or -1
        return tuple(new)
    here, moved = target[way.axis], 0 in target[rows.axis : rows.axis + 1] and not copies
    if (here == -1 and not moved) or (here == 0 and copies):
        return tuple(target)
    new = []
    for place, length in enumerate(way.shape):
        is_kept = rows.shape[place : place + 1] == (length,) and place != rows.axis
        new.append(length if isinstance(length, int) else 0 if is_kept else -1)
    new[way.axis] = 1
    new[way.axis] = -1 if -1 not in new else 0 if copies else _per_sample(way, batch)
    return tuple(new) if new.count(-1) <= 1 and new[way.axis] is not None else None


def _expand(step: Step) -> list[Rows]:
    rows, target = step.only_input(), step.constant(1)
    axis = len(step.shape) + rows.back
    known = step.inputs[1]
    if known is None or not isinstance(known[0], int):
        raise MixesError("computes its shape")
    place = known[0] + rows.back
    if place >= 0 and (target is None or target[place] != 1):
        if step.shape[axis] != rows.length:
            raise MixesError(f"repeats the batch in {', '.join(map(str, step.shape))}")
        ends = step.shape[len(step.shape) - known[0] :]
        new = [length if isinstance(length, int) else None for length in ends]
        step.patches.append(Patch(1, (*new[:place], 1, *new[place + 1 :])))
    return _place(step, rows, axis)


def _resize(step: Step) -> list[Rows]:
    rows = step.only_input()
    rank = len(rows.shape)
    axes = [axis % rank for axis in step.attribute("axes") or range(rank)]
    if rows.axis in axes:
        policy, mode = map(step.attribute, ("keep_aspect_ratio_policy", "coordinate_transformation_mode"))
        if policy not in (None, b"stretch") or mode == b"tf_crop_and_resize":
            raise MixesError("resizes the batch")
        _resize_rows(step, rows, axes.index(rows.axis))
    return _place(step, rows, rows.axis)


def _resize_rows(step: Step, rows: Rows, place: int) -> None:
    """See that the batch keeps its length; a fixed size that it has is patched."""
    sizes = step.numbers("sizes", 3)
    if sizes:
        counted = _per_sample(rows, step.batch)
        if sizes[place] != rows.length or counted is None:
            raise MixesError("resizes the batch")
        step.patches.append(Patch(3, (*sizes[:place], counted, *sizes[place + 1 :])))
        return
    position = 1 if step.opset < 11 else 2
    scales = step.attribute("scales")
    if scales is None and step.is_given(position):
        scales = step.constant(position)
    if scales is None or scales[place] != 1.0:
        raise MixesError("resizes the batch")


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────

_BY_SAMPLE = (
    "AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool", "SpaceToDepth",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BY_SAMPLE, _by_sample),
    **dict.fromkeys(REDUCTIONS, _along(_reduced_axes, reduces=True)),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _along(_softmax_axes)),
    **dict.fromkeys(("ArgMax", "ArgMin"), _along(_named_axis(0), reduces=True)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("GatherElements", "ScatterElements"), _together),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear"), _along(_scaled_axes, "has scales along the batch")
    ),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("LpNormalization", "TopK"), _along(_named_axis(-1))),
    "BatchNormalization": _along(_batch_norm_axes),
    "Concat": _concat,
    "CumSum": _along(lambda step, rank: step.axes("axis", 1, rank) or range(rank)),
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "MatMul": _matmul,
    "Pad": _along(_padded_axes, "adds rows to the batch"),
    "Reshape": _reshape,
    "Slice": _along(_sliced_axes, "takes rows of the batch"),
    "Split": _along(_named_axis(0), "splits the batch"),
    "Squeeze": _squeeze,
    "Tile": _along(_repeated_axes, "repeats the batch"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By operator of ONNX's own domain."""
