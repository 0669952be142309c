"""Lengths for dynamic axes: one for each name, also where a name is a sum or product of other names.

Exporters name an axis after what it depends on: a mask over a cache and the new token is `past + 1` long.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence

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
            for part in _names(formulas[name]):
                lengths.setdefault(part, length)
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


def _names(tree: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _value(tree: ast.expr, lengths: dict[str, int]) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)](_value(tree.left, lengths), _value(tree.right, lengths))
    if isinstance(tree, ast.Name):
        return lengths[tree.id]
    assert isinstance(tree, ast.Constant)
    assert isinstance(tree.value, int)
    return tree.value
