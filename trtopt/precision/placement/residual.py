"""Rule 3: of a residual Add the skip branch alone carries Q/DQ.

The convolution that makes the other branch then takes the Add into its own kernel and reads the skip in
INT8. With neither branch quantised the next Q runs as a kernel of its own; with both, or with Q/DQ between
the convolution and the Add, the Add splits from the convolution.
"""

from __future__ import annotations

from trtopt.precision.placement.plan import Draft
from trtopt.precision.placement.view import Node, View, is_op

_RULE = "residual"


def apply(draft: Draft) -> None:
    """Decide every Add of two computed tensors."""
    for node in draft.view.nodes:
        if is_op(node, "Add") and draft.view.is_float(node.output[0]):
            _decide(draft, node)


def _decide(draft: Draft, node: Node) -> None:
    view = draft.view
    if len(view.computed_inputs(node)) != 2:
        draft.keep(node, _RULE, "it adds a constant, which fuses with what makes its input")
        return
    if pattern := draft.wish.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
        return
    if draft.wish.precision != "int8":
        kind = draft.wish.precision.upper()
        draft.keep(node, _RULE, f"a skip in {kind} is not taken into the layer's kernel")
        return
    if not _have_one_shape(view, node):
        draft.keep(node, _RULE, "its inputs have different shapes: it is no residual")
        return
    mains = [index for index in (0, 1) if _is_main(draft, node.input[index])]
    if not mains:
        draft.keep(node, _RULE, "neither branch comes straight from a quantised convolution, for it alone")
        return
    main = max(mains, key=lambda index: _depth(view, node.input[index]))
    skip = draft.put(node, 1 - main)
    maker = view.maker[node.input[main]].name
    draft.quantise(node, _RULE, f"the skip {skip!r} is read in INT8; {maker!r} takes the Add into its kernel")


def _have_one_shape(view: View, node: Node) -> bool:
    left, right = (view.shape(name) for name in node.input)
    if left is None or right is None:
        return True
    return len(left) == len(right) and all(
        a == b or a is None or b is None for a, b in zip(left, right, strict=True)
    )


def _is_main(draft: Draft, tensor: str) -> bool:
    maker = draft.view.made_by(tensor, "Conv", "ConvTranspose")
    return draft.is_quantised(maker) and draft.view.only_use(tensor) is not None


def _depth(view: View, tensor: str) -> int:
    """How many convolutions lie behind the tensor before its branch joins another: the main has more."""
    depth, maker = 0, view.maker.get(tensor)
    while maker is not None and view.only_use(maker.output[0]) is not None:
        depth += is_op(maker, "Conv", "ConvTranspose")
        computed = view.computed_inputs(maker)
        maker = view.maker.get(maker.input[computed[0]]) if computed else None
    return depth
