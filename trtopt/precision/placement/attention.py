"""Rule 8: products of two computed tensors. In FP8 an attention is quantised whole, in INT8 by its form.

FP8: Q/DQ on both inputs of the first product (behind the transpose of K and the scale), on Softmax's result
with the fixed scale 1/448 · 448 = amax 1, and on V. The head size must be 16 to 256 and a multiple of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.precision.placement.placement_plan import SOFTMAX_AMAX, Draft
from trtopt.precision.placement.view import Node, View, is_op

RULE = "attention"
_BETWEEN = ("Mul", "Div", "Add", "Where", "Sub", "Cast", "Identity", "Clip")
_LEAST, _MOST, _STEP = 16, 256, 8


@dataclass(frozen=True)
class Attention:
    """Softmax and the two products around it."""

    first: Node
    softmax: Node
    second: Node


def find(view: View) -> list[Attention]:
    """Every MatMul → … → Softmax → MatMul whose operands are all computed."""
    found = []
    for softmax in view.nodes:
        if not is_op(softmax, "Softmax"):
            continue
        first, uses = _product_behind(view, softmax.input[0]), view.uses(softmax.output[0])
        second = [use.node for use in uses if use.index == 0 and _is_product(view, use.node)]
        if first is not None and len(uses) == len(second) == 1:
            found.append(Attention(first, softmax, second[0]))
    return found


def _is_product(view: View, node: Node) -> bool:
    return is_op(node, "MatMul") and len(view.computed_inputs(node)) == 2


def _product_behind(view: View, tensor: str) -> Node | None:
    maker = view.maker.get(tensor)
    while maker is not None and is_op(maker, *_BETWEEN):
        behind = [view.maker.get(maker.input[index]) for index in view.computed_inputs(maker)]
        products = [node for node in behind if node is not None and is_op(node, "MatMul", *_BETWEEN)]
        maker = next(iter(sorted(products, key=lambda node: not is_op(node, "MatMul"))), None)
    return maker if maker is not None and _is_product(view, maker) else None


def apply(draft: Draft) -> None:
    """Decide every MatMul of two computed tensors."""
    if draft.options.precision == "fp8" or draft.options.forms.attention == "on":
        for attention in find(draft.view):
            _decide(draft, attention)
    for node in draft.view.nodes:
        if _is_product(draft.view, node) and not draft.is_quantised(node):
            _decide_alone(draft, node)


def _decide(draft: Draft, attention: Attention) -> None:
    products = (attention.first, attention.second)
    for product in products:
        if pattern := draft.options.excludes(product):
            for node in products:
                why = f"--exclude {pattern} at {product.name!r}: an attention goes whole"
                draft.keep(node, "excluded", why)
            return
    is_fp8 = draft.options.precision == "fp8"
    if is_fp8 and (why_not := _why_not(draft.view, attention)):
        for product in products:
            draft.keep(product, RULE, why_not)
        return
    for product in products:
        tensors = [draft.put(product, 0), draft.put(product, 1)]
        if is_fp8 and product is attention.second:
            draft.fixed[tensors[0]] = SOFTMAX_AMAX
        kind = draft.options.precision.upper()
        draft.quantise(product, RULE, f"both operands in {kind}, so that the attention fuses")


def _why_not(view: View, attention: Attention) -> str | None:
    shape = view.shape(attention.first.input[0])
    size = shape[-1] if shape else None
    if size is None:
        return "its head size is not known"
    if not _LEAST <= size <= _MOST or size % _STEP:
        return f"its head size {size} is not {_LEAST} to {_MOST} and a multiple of {_STEP}"
    return None


def _decide_alone(draft: Draft, node: Node) -> None:
    requested = draft.options.includes(node)
    if pattern := draft.options.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
    elif draft.options.precision == "int4":
        draft.keep(node, RULE, "INT4 is for constant weights")
    elif requested and draft.options.precision == "int8":
        draft.put(node, 0)
        draft.put(node, 1)
        draft.quantise(node, "included", f"--include {requested}")
    elif draft.options.precision == "fp8":
        draft.keep(node, RULE, "it is not part of an attention with Softmax")
    else:
        draft.keep(node, RULE, "products of two activations are often slower in INT8")
