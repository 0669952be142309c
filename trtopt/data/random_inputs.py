"""Random inputs: lengths for dynamic axes, and values of every type."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Shape, TensorSpec

# Lengths for dynamic axes: one for each name, also where a name is a sum or product of other names.
#
# Exporters name an axis after what it depends on: a mask over a cache and the new token is `past + 1` long.


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
}


def lengths_of(axes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """A length for each name.

    Args:
        axes: names in the order of the inputs, each with the length that suits its place. A plain name gets
            the first of them. A formula (`past + 1`, `2*width`) gets its value once every name in it that is
            no axis itself has got the length that the formula's place suggests.
    """
    wanted = list(axes)
    lengths: dict[str, int] = {}
    formulas = {name: tree for name, _ in wanted if (tree := _formula(name)) is not None}
    for name, length in wanted:
        if name not in formulas:
            lengths.setdefault(name, length)
    for name, length in wanted:
        if name in formulas:
            for part in ast.walk(formulas[name]):
                if isinstance(part, ast.Name):
                    lengths.setdefault(part.id, length)
            value = _value(formulas[name], lengths)
            lengths.setdefault(name, value if value > 0 else length)
    return lengths


def is_state(shape: Sequence[int | str]) -> bool:
    """Whether an input is shaped like a recurrent layer's state: (layers, ?, hidden), `?` the batch."""
    return len(shape) == 3 and shape[1] == "?" and isinstance(shape[0], int) and isinstance(shape[2], int)


def _formula(name: str) -> ast.expr | None:
    """The name as an expression, if it is more than a name and all of it is understood."""
    if re.search(r"\w-\w", name):
        return None  # a hyphen: formulas are written with spaces
    try:
        tree = ast.parse(name, mode="eval").body
    except SyntaxError:
        return None
    return tree if not isinstance(tree, ast.Name) and _is_known(tree) else None


def _is_known(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        divides = isinstance(tree.op, ast.FloorDiv)
        whole = isinstance(tree.right, ast.Constant) and tree.right.value != 0
        return (
            type(tree.op) in _OPERATIONS
            and _is_known(tree.left)
            and _is_known(tree.right)
            and (whole or not divides)
        )
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


def _value(tree: ast.expr, lengths: dict[str, int]) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)](_value(tree.left, lengths), _value(tree.right, lengths))
    if isinstance(tree, ast.Name):
        return lengths[tree.id]
    assert isinstance(tree, ast.Constant)
    assert isinstance(tree.value, int)
    return tree.value


# Seeded random input data.


Arrays = dict[str, NDArray[np.generic]]


def integer_range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Where random integers start, and where they end, exclusive: pixels and quantised values use it all.

    Wider integers stay small because they may be indices into tables of unknown length.
    """
    if dtype in (np.dtype(np.uint8), np.dtype(np.int8)):
        limits = np.iinfo(dtype.name)
        return int(limits.min), int(limits.max) + 1
    return 0, 2


def random_batch(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape]) -> Arrays:
    """Seeded values: floats from a standard normal, integers as in `integer_range`, booleans from {0, 1}.

    Zeros would hide faults and can run faster than real data.
    """
    generator = np.random.default_rng(0)
    batch: Arrays = {}
    for spec in inputs:
        dtype, shape = numpy_dtype(spec.dtype), shapes[spec.name]
        if dtype.kind in "iub":
            batch[spec.name] = generator.integers(*integer_range(dtype), shape).astype(dtype)
        else:
            batch[spec.name] = generator.standard_normal(shape, dtype=np.float32).astype(dtype)
    return batch
