"""Rules as data: what stands in the graph, and what takes its place, both written as expressions.

A name stands for any tensor, the same one wherever it recurs. Sums match in either order. Products match
however their factors are grouped, and whichever of them a scalar goes with: x/2·y is 0.5·x·y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from trtopt.rewrite.match import why_not_one_node, with_factor
from trtopt.rewrite.rule import Rule, Verdict, at
from trtopt.rewrite.scope import Scope

_NEAR, _SIX_DIGITS = 1e-4, 5e-6
"""How far a factor may be off, relatively: one that models write with a few of its digits; one that FP16
holds, or whose reciprocal it holds."""
_PRODUCTS = ("Mul", "Div", "Neg", "Pow")
_BOUNDS = ("min", "max")  # inputs that older opsets keep in attributes


@dataclass(frozen=True)
class Term:
    """An operator over terms and numbers; without operands it is a name."""

    op: str
    operands: tuple[Term | float, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()

    def __add__(self, other: Term | float) -> Term:
        return Term("Add", (self, other))

    def __mul__(self, other: Term | float) -> Term:
        return Term("Mul", (self, other))

    def __truediv__(self, other: Term | float) -> Term:
        return Term("Div", (self, other))

    def __rtruediv__(self, other: float) -> Term:
        return Term("Div", (other, self))

    def __neg__(self) -> Term:
        return Term("Mul", (self, -1))


class _Operators:
    def __getattr__(self, op: str) -> Callable[..., Term]:
        return lambda *operands, **attrs: Term(op, operands, tuple(attrs.items()))


Op = _Operators()
"""ONNX's operators: `Op.Clip(x, 0, 6)`."""
x, y = Term("x"), Term("y")


@dataclass(frozen=True)
class _Found:
    """The tensors that names stand for, and the nodes between them and the result."""

    names: dict[str, Any]
    nodes: tuple[Any, ...] = ()


def _factors(term: Term | float) -> tuple[float, tuple[Term, ...]]:
    """The scalar and the other factors of a product, of which a term of another kind is the only one."""
    if not isinstance(term, Term):
        return float(term), ()
    divides = term.op == "Div" and not isinstance(term.operands[1], Term)
    if term.op != "Mul" and not divides:
        return 1.0, (term,)
    (first, some), (second, more) = map(_factors, term.operands)
    return (first / second if divides else first * second), (*some, *more)


def _is_short(number: float) -> bool:
    """Whether FP16 holds it, so that models have no reason to write another."""
    return float(np.float16(number)) == number


def _is_near(value: float, wanted: float) -> bool:
    """Whether a factor is the one wanted, which is not 0."""
    tolerance = _SIX_DIGITS if _is_short(wanted) or _is_short(1 / wanted) else _NEAR
    return abs(value - wanted) <= tolerance * abs(wanted)


def _matches(scope: Scope, term: Term | float, tensor: Any, found: _Found) -> Iterator[_Found]:
    """The ways in which `tensor` is `term`."""
    if not isinstance(term, Term):
        value = tensor if isinstance(tensor, float) else scope.scalar(tensor)
        if value is not None and (value == term if _is_short(term) else _is_near(value, term)):
            yield found
    elif not term.operands:
        if found.names.get(term.op, tensor) is tensor:
            yield replace(found, names={**found.names, term.op: tensor})
    else:
        wanted, terms = _factors(term)
        for scalar, made in _product_matches(scope, terms, tensor, found):
            if _is_near(scalar, wanted):
                yield made


def _product_matches(
    scope: Scope, terms: Sequence[Term], tensor: Any, found: _Found
) -> Iterator[tuple[float, _Found]]:
    """The ways in which `tensor` is the product of `terms`, but for a scalar, and the scalar."""
    if len(terms) == 1:
        alone = _matches if not terms[0].operands else _operator_matches
        yield from ((1.0, made) for made in alone(scope, terms[0], tensor, found))
    node = scope.producer(tensor, *_PRODUCTS)
    if node is None:
        return
    within = replace(found, nodes=(*found.nodes, node))
    scaled = (
        (node.inputs[0], -1.0) if node.op == "Neg" else None if node.op == "Pow" else with_factor(scope, node)
    )
    if scaled is not None:
        for scalar, made in _product_matches(scope, terms, scaled[0], within):
            yield scalar * scaled[1], made
    elif node.op == "Mul":
        for count in range(1, len(terms)):
            for places in combinations(range(len(terms)), count):
                left = [terms[place] for place in places]
                right = [term for place, term in enumerate(terms) if place not in places]
                for first, some in _product_matches(scope, left, node.inputs[0], within):
                    for second, made in _product_matches(scope, right, node.inputs[1], some):
                        yield first * second, made
    elif (
        node.op == "Pow"
        and len(terms) > 1
        and scope.scalar(node.inputs[1]) == len(terms) == terms.count(terms[0])
    ):
        for scalar, made in _product_matches(scope, terms[:1], node.inputs[0], within):
            yield scalar ** len(terms), made


def _operator_matches(scope: Scope, term: Term, tensor: Any, found: _Found) -> Iterator[_Found]:
    """The ways in which the node that makes `tensor` is that of a term which is no product."""
    node = scope.producer(tensor)
    if node is None:
        return
    operands, within = term.operands, replace(found, nodes=(*found.nodes, node))
    given = [item for item in node.inputs if not item.is_empty()]
    if term.op == "Clip":
        given += [float(node.attrs[name]) for name in _BOUNDS if name in node.attrs]
    if term.op == "Div" and operands[0] == 1 and scope.is_one_of(node, "Reciprocal"):
        operands = operands[1:]
    elif not scope.is_one_of(node, term.op):
        return
    for order in (operands, operands[::-1])[: 2 if term.op == "Add" else 1]:
        if len(order) == len(given):
            yield from _all_match(scope, order, given, within)


def _all_match(
    scope: Scope, terms: Sequence[Term | float], tensors: Sequence[Any], found: _Found
) -> Iterator[_Found]:
    if not terms:
        yield found
        return
    for made in _matches(scope, terms[0], tensors[0], found):
        yield from _all_match(scope, terms[1:], tensors[1:], made)


def _roots(term: Term) -> tuple[str, ...]:
    """The operators that a node may have which makes a term."""
    if _factors(term) != (1.0, (term,)):
        return _PRODUCTS
    return (term.op, "Reciprocal") if term.op == "Div" else (term.op,)


def _build(scope: Scope, term: Term | float, node: Any, names: dict[str, Any]) -> Any:
    """The tensor of a term, computed in front of `node`."""
    assert isinstance(term, Term)
    if not term.operands:
        return names[term.op]
    inputs = [_build(scope, one, node, names) for one in term.operands]
    return scope.compute(node, term.op, inputs, names["x"], **dict(term.attrs))


def _replace(scope: Scope, node: Any, term: Term, names: dict[str, Any]) -> None:
    inputs = [_build(scope, one, node, names) for one in term.operands]
    scope.replace(node, term.op, inputs, dict(term.attrs))


def rule_of_forms(
    name: str,
    what: str,
    exactness: Any,
    enables: str,
    *forms: tuple[Term, Term],
    why_not: Callable[[Scope, Any], str | None] = lambda scope, source: None,
    **more: Any,
) -> Rule:
    """A rule that puts the second term of a form in the place of the first.

    `why_not` says of the scope and the tensor `x` why it must not; None if it may.
    """
    roots = {root for left, _ in forms for root in _roots(left)}

    def look(scope: Scope, node: Any) -> Verdict | None:
        for left, right in forms:
            found = next(_matches(scope, left, node.outputs[0], _Found({})), None)
            if found is not None:
                source = found.names["x"]
                reason = why_not(scope, source) or why_not_one_node(scope, source, node, [*found.nodes[1:]])
                return reason or partial(_replace, scope, node, right, found.names)
        return None

    return Rule(name, what, exactness, enables, at(*roots)(look), **more)
