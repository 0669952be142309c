"""Numbers that a model computes of its tensors' shapes, and how they change with the number of samples."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from trtopt.rewrite.batch_rules import MixesError, Number, PerSample, Step, Tensor, ratio

_MOVES = ("Squeeze", "Unsqueeze", "Reshape", "Identity")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Equal")
_WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def counted(step: Step) -> tuple[Number, ...] | None:
    """The numbers that a node computes, of at most one axis; None if they are not known."""
    source, operator = step.at(0), step.node.op_type
    if source is None or step.shapes[0] is None or len(step.shapes[0]) > 1:
        return None
    if operator in ("Shape", "Size"):
        return _lengths(step, source)
    if operator == "Slice":
        return None if source.numbers is None else _cut(step, source.numbers)
    known = [item.numbers for item in step.inputs if item is not None and item.numbers is not None]
    if source.numbers is None or (operator not in _MOVES and len(known) < len(step.inputs)):
        return None
    if operator in _MOVES:
        return source.numbers
    if operator == "Cast":
        return source.numbers if step.number("to", 0) in _WHOLE else None
    if operator == "Gather":
        return _picked(*known) if source.shape != () else None
    if operator == "Concat":
        return tuple(number for each in known for number in each)
    if operator == "ReduceProd":
        return _product(source.numbers)
    if operator == "Where":
        return _selected(*known)
    return _paired(operator, *known) if operator in _ARITHMETIC else None


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


def _cut(step: Step, numbers: Sequence[Number]) -> tuple[Number, ...] | None:
    try:
        start, end, _, by = (step.numbers(n, p) for p, n in enumerate(("starts", "ends", "axes", "steps"), 1))
    except MixesError:
        return None
    bounds = [each[0] for each in (start or ("",), end or ("",), by or (1,))]
    first, last, pace = (each if isinstance(each, int) else None for each in bounds)
    return (
        None if first is None or last is None or pace is None or pace < 1 else tuple(numbers[first:last:pace])
    )


def _picked(numbers: Sequence[Number], places: Sequence[Number]) -> tuple[Number, ...] | None:
    known = [place for place in places if isinstance(place, int) and -len(numbers) <= place < len(numbers)]
    return tuple(numbers[place] for place in known) if len(known) == len(places) else None


def _selected(
    condition: Sequence[Number], one: Sequence[Number], other: Sequence[Number]
) -> tuple[Number, ...] | None:
    length = max(len(condition), len(one), len(other))
    rows = [each if len(each) == length else [*each] * length for each in (condition, one, other)]
    return tuple(a if chosen else b for chosen, a, b in zip(*rows, strict=True))


def _product(numbers: Sequence[Number]) -> tuple[Number]:
    product: Number = 1
    for number in numbers:
        product = _combined("Mul", product, number) or 0
    return (product,)


def _paired(operator: str, first: Sequence[Number], second: Sequence[Number]) -> tuple[Number, ...] | None:
    length = max(len(first), len(second))
    rows = [each if len(each) == length else [*each] * length for each in (first, second)]
    found = [_combined(operator, one, other) for one, other in zip(*rows, strict=True)]
    known = tuple(number for number in found if number is not None)
    return known if len(known) == length else None


def _combined(operator: str, one: Number, other: Number) -> Number | None:
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
