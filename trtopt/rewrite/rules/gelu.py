"""x·½·(1 + erf(x/√2)) → Gelu(x); ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) → Gelu(x, approximate="tanh").

Both forms keep their kind: erf never becomes tanh or the other way round. Needs opset 20 and a TensorRT with
the activation (10 and later); on 8.6 the decomposed form is the very pattern that its GELU fusion looks for,
so it is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import inputs_either_way, why_not_one_node, with_factor, with_scalar
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope

_CUBIC = 0.044715


def _factors(scope: Scope, node: Any, inner: list[Any]) -> tuple[float, list[Any]]:
    """The scalar and the other factors of a product of Mul (and Div by a scalar) nodes with root `node`."""
    scalar, tensors = 1.0, []
    found = with_factor(scope, node)
    operands = list(node.inputs)
    if found is not None:
        operands, scalar = [found[0]], found[1]
    elif node.op == "Div":
        return 1.0, [node.outputs[0]]
    for tensor in operands:
        maker = scope.producer(tensor, "Mul", "Div")
        divides = maker is not None and maker.op == "Div" and with_factor(scope, maker) is None
        if maker is None or divides or not scope.only_use(tensor):
            tensors.append(tensor)
            continue
        inner.append(maker)
        more, rest = _factors(scope, maker, inner)
        scalar, tensors = scalar * more, tensors + rest
    return scalar, tensors


def _is_scaled(scope: Scope, tensor: Any, source: Any, factor: float, inner: list[Any]) -> bool:
    """Whether `tensor` is factor·source."""
    node = scope.producer(tensor, "Mul", "Div")
    found = None if node is None else with_factor(scope, node)
    if found is None or found[0] is not source:
        return False
    inner.append(node)
    return abs(found[1] / factor - 1) < 1e-4


def _is_cube(scope: Scope, tensor: Any, source: Any, inner: list[Any]) -> bool:
    node = scope.producer(tensor, "Pow", "Mul")
    if node is None:
        return False
    inner.append(node)
    if node.op == "Pow":
        return node.inputs[0] is source and scope.scalar(node.inputs[1]) == 3
    for square, other in inputs_either_way(node):
        maker = scope.producer(square, "Mul", "Pow")
        if maker is not None and other is source and maker.inputs[0] is source:
            inner.append(maker)
            return maker.inputs[1] is source if maker.op == "Mul" else scope.scalar(maker.inputs[1]) == 2
    return False


def _is_tanh_argument(scope: Scope, tensor: Any, source: Any, inner: list[Any]) -> bool:
    """Whether `tensor` is √(2/π)·(x + 0.044715·x³), or √(2/π)·x·(1 + 0.044715·x²)."""
    outer = scope.producer(tensor, "Mul")
    if outer is not None and _is_factored_argument(scope, outer, source, inner):
        return True
    found = None if outer is None else with_scalar(scope, outer, math.sqrt(2 / math.pi))
    plus = None if found is None else scope.producer(found[0], "Add")
    if plus is None:
        return False
    inner += [outer, plus]
    for own, other in inputs_either_way(plus):
        cubic = scope.producer(other, "Mul")
        scaled = None if cubic is None else with_scalar(scope, cubic, _CUBIC)
        if own is source and cubic is not None and scaled is not None:
            inner.append(cubic)
            return _is_cube(scope, scaled[0], source, inner)
    return False


def _is_factored_argument(scope: Scope, outer: Any, source: Any, inner: list[Any]) -> bool:
    """Whether the node `outer` is √(2/π)·x·(1 + 0.044715·x²)."""
    nodes = [outer]
    scalar, tensors = _factors(scope, outer, nodes)
    others = [tensor for tensor in tensors if tensor is not source]
    plus = scope.producer(others[0], "Add") if len(tensors) == 2 and len(others) == 1 else None
    found = None if plus is None else with_scalar(scope, plus, 1.0, 0.0)
    product = None if found is None else scope.producer(found[0], "Mul")
    if plus is None or product is None or abs(scalar / math.sqrt(2 / math.pi) - 1) > 1e-4:
        return False
    nodes += [plus, product]
    cubic, squared = _factors(scope, product, nodes)
    inner += nodes
    return abs(cubic / _CUBIC - 1) < 1e-4 and len(squared) == 2 and all(item is source for item in squared)


def _kind(scope: Scope, tensor: Any, source: Any, inner: list[Any]) -> str | None:
    """`none` or `tanh`, as Gelu's attribute has it, if `tensor` is 1 + the right function of source."""
    plus = scope.producer(tensor, "Add")
    found = None if plus is None else with_scalar(scope, plus, 1.0, 0.0)
    curve = None if found is None else scope.producer(found[0], "Erf", "Tanh")
    if plus is None or curve is None:
        return None
    inner += [plus, curve]
    if curve.op == "Erf":
        return "none" if _is_scaled(scope, curve.inputs[0], source, math.sqrt(0.5), inner) else None
    return "tanh" if _is_tanh_argument(scope, curve.inputs[0], source, inner) else None


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Mul", "Div"):
        inner: list[Any] = []
        scalar, tensors = _factors(scope, node, inner)
        if len(tensors) != 2 or abs(scalar - 0.5) > 1e-4:
            continue
        for source, curve in (tensors, tensors[::-1]):
            found = list(inner)
            kind = _kind(scope, curve, source, found)
            if kind is not None:
                yield Match(node, {"source": source, "kind": kind, "inner": found})
                break


def _check(scope: Scope, match: Match) -> str | None:
    if not scope.target.gelu:
        return f"TensorRT {scope.target.name} looks for the decomposed form, which is kept"
    if scope.opset < 20:
        return f"Gelu needs opset 20, the model has {scope.opset}: export it at 20"
    return why_not_one_node(scope, match.parts["source"], match.node, match.parts["inner"])


def _apply(scope: Scope, match: Match) -> None:
    scope.replace(match.node, "Gelu", [match.parts["source"]], {"approximate": match.parts["kind"]})


RULE = Rule(
    "gelu",
    "N",
    "GELU reduction and epilogue",
    _find,
    _check,
    _apply,
    stage=Stage.ACTIVATION,
    evidence=(layers("does not read it"),),
)
