"""Rule 3: of a residual Add the skip branch alone carries Q/DQ, or both behind an activation.

The convolution that makes the other branch then takes the Add into its own kernel and reads the skip in
INT8. With neither branch quantised the next Q runs as a kernel of its own; with both, or with Q/DQ between
the convolution and the Add, the Add splits from the convolution.

Behind an activation, as in YOLO, no convolution takes the Add in: it is a kernel of its own, and reads a byte
for each number if both branches carry Q/DQ. Six such blocks with TensorRT 8.6 on an H200 took 18 % less time
than with Q/DQ in front of the convolutions alone, 2 % with the skip's (benchmarks/placement).

Behind matrix products, as in an encoder layer, it stays in float unless the form asks for it: the skip
then reads the pair that the first layer of the other branch reads. With `both` the main branch gets one of
its own, as in Model Optimizer's graphs. With attention's products in INT8 both took 4.7 % less time in four
layers of BERT-base on an H200 with TensorRT 8.6, without them none (benchmarks/placement).
"""

from __future__ import annotations

from trtopt.precision.placement.gates import is_own_gate
from trtopt.precision.placement.placement_plan import Draft
from trtopt.precision.placement.view import ACTIVATIONS, RESHAPES, Node, View, is_op

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
    if pattern := draft.options.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
        return
    if draft.options.precision != "int8":
        kind = draft.options.precision.upper()
        draft.keep(node, _RULE, f"a skip in {kind} is not taken into the layer's kernel")
        return
    if not _have_one_shape(view, node):
        draft.keep(node, _RULE, "its inputs have different shapes: it is no residual")
        return
    mains = [index for index in (0, 1) if _is_main(draft, node.input[index])]
    if not mains and _is_between_int8_behind_an_activation(draft, node):
        for index in (0, 1):
            draft.put(node, index)
        draft.quantise(
            node, _RULE, "both branches are read in INT8: behind an activation no layer takes an Add in"
        )
        return
    if not mains and (skip_index := _beside_products(draft, node)) is not None:
        _read_shared_pair(draft, node, skip_index)
        return
    if not mains:
        draft.keep(node, _RULE, "neither branch comes straight from a quantised convolution, for it alone")
        return
    main = max(mains, key=lambda index: (_depth(view, node.input[index]), _is_plain(view, node.input[index])))
    skip = draft.put(node, 1 - main)
    maker = view.maker[node.input[main]].name
    draft.quantise(node, _RULE, f"the skip {skip!r} is read in INT8; {maker!r} takes the Add into its kernel")


def _beside_products(draft: Draft, node: Node) -> int | None:
    """Which input is the skip, where a quantised product makes the other and Q/DQ are on the skip already."""
    if draft.options.forms.residual == "none" or draft.options.trained is not None:
        return None
    found = (
        index
        for index in (0, 1)
        if draft.reads_quantised(node.input[index]) and _is_product(draft, node.input[1 - index])
    )
    return next(found, None)


def _read_shared_pair(draft: Draft, node: Node, index: int) -> None:
    skip = draft.put(node, index)
    if draft.options.forms.residual == "skip":
        draft.quantise(node, _RULE, f"it reads the pair of {skip!r} for another layer")
        return
    main = draft.put(node, 1 - index)
    draft.quantise(node, _RULE, f"it reads the pair of {skip!r} for another layer, and {main!r} in INT8")


def _is_product(draft: Draft, tensor: str) -> bool:
    """Whether a quantised matrix product makes it, for it alone, perhaps with a bias and in another shape."""
    view, maker = draft.view, draft.view.maker.get(tensor)
    while maker is not None and view.only_use(maker.output[0]) is not None:
        if is_op(maker, "MatMul", "Gemm"):
            return draft.is_quantised(maker)
        computed = view.computed_inputs(maker)
        is_passed = is_op(maker, *RESHAPES) or (is_op(maker, "Add") and len(computed) == 1)
        maker = view.maker.get(maker.input[computed[0]]) if is_passed and computed else None
    return False


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


def _is_plain(view: View, tensor: str) -> bool:
    """Whether a Conv makes it, into whose kernel an Add is known to fuse, and no ConvTranspose."""
    return view.made_by(tensor, "Conv") is not None


def _is_between_int8_behind_an_activation(draft: Draft, node: Node) -> bool:
    """Whether a quantised layer reads the sum and another the skip, and an activation makes the other branch.

    A trained model's own Q/DQ show which branches tolerate it.
    """
    if draft.options.trained is not None or not draft.reads_quantised(node.output[0]):
        return False
    pairs = (node.input, reversed(node.input))
    return any(_is_activated(draft, main) and draft.reads_quantised(skip) for main, skip in pairs)


def _is_activated(draft: Draft, tensor: str) -> bool:
    """Whether it is the activation of a quantised convolution, for the Add alone."""
    view, maker = draft.view, draft.view.maker.get(tensor)
    if maker is None or view.only_use(tensor) is None:
        return False
    made_by = [
        view.made_by(maker.input[index], "Conv", "ConvTranspose") for index in view.computed_inputs(maker)
    ]
    return (is_op(maker, *ACTIVATIONS) or is_own_gate(view, maker)) and any(map(draft.is_quantised, made_by))


def _depth(view: View, tensor: str) -> int:
    """How many convolutions lie behind the tensor before its branch joins another: the main has more."""
    depth, maker = 0, view.maker.get(tensor)
    while maker is not None and view.only_use(maker.output[0]) is not None:
        depth += is_op(maker, "Conv", "ConvTranspose")
        computed = view.computed_inputs(maker)
        maker = view.maker.get(maker.input[computed[0]]) if computed else None
    return depth
