"""Which of TensorRT's names trtopt's source spells, read off its syntax tree."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import trtopt.device.tensorrt

SOURCES = sorted(Path(trtopt.device.tensorrt.__path__[0]).glob("*.py"))


def parse(text: str, where: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Every node of a source with its place."""
    for node in ast.walk(ast.parse(text)):
        yield node, f"{where}:{getattr(node, 'lineno', 0)}"


def nodes() -> Iterator[tuple[ast.AST, str]]:
    """Every node of every source with its place."""
    for path in SOURCES:
        yield from parse(path.read_text("utf-8"), path.name)


def is_module(node: ast.AST) -> bool:
    """`trt`, `self._trt`, `library.trt`: how the source names TensorRT's module."""
    return (isinstance(node, ast.Name) and node.id == "trt") or (
        isinstance(node, ast.Attribute) and node.attr in ("trt", "_trt")
    )


def module_names() -> dict[str, str]:
    """`X` and `X.Y` of every `trt.X` and `trt.X.Y`, with one place where it stands."""
    found: dict[str, str] = {}
    for node, place in nodes():
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        if is_module(node.value):
            found[node.attr] = place
        elif isinstance(node.value, ast.Attribute) and is_module(node.value.value):
            found[f"{node.value.attr}.{node.attr}"] = place
    return found


def member_names() -> dict[str, str]:
    """Every attribute of anything but the module, with one place where it stands."""
    return {
        node.attr: place
        for node, place in nodes()
        if isinstance(node, ast.Attribute) and not is_module(node.value)
    }


def names_of_ours(*modules: ModuleType) -> set[str]:
    """The attributes of trtopt's own classes: these may have the same names as TensorRT's."""
    classes = [cls for module in modules for _, cls in inspect.getmembers(module, inspect.isclass)]
    fields = {
        field.name for cls in classes if dataclasses.is_dataclass(cls) for field in dataclasses.fields(cls)
    }
    return fields | {name for cls in classes for name in dir(cls)}


def enum_integers(text: str, where: str = "") -> list[str]:
    """Places where an integer stands for a member of an enum.

    These are `trt.X(3)`, `1 << 3`, `create_network(1)`, and `int(x) == 3` or `x.value == 3`.
    """
    return [place for node, place in parse(text, where) if _is_enum_integer(node)]


def _is_enum_integer(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        literal = any(map(_is_literal, [*node.args, *(keyword.value for keyword in node.keywords)]))
        called = node.func
        takes_enum = isinstance(called, ast.Attribute) and (
            is_module(called.value) or called.attr in ("create_network", "set_flag", "set_tactic_sources")
        )
        return literal and takes_enum
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.LShift) and _is_literal(node.right)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(map(_is_literal, sides)) and any(map(_is_enum_value, sides))
    return False


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_enum_value(node: ast.AST) -> bool:
    converted = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int"
    return converted or (isinstance(node, ast.Attribute) and node.attr == "value")
