"""The rules of what stands between quantised layers: residual sums, pools, Resize, Concat, HardSwish."""

from __future__ import annotations

from trtopt.onnxio.graph_walk import attribute
from trtopt.precision.placement.draft import ACTIVATIONS, RESHAPES, Draft, Node, View, is_op
from trtopt.precision.placement.products import is_own_gate

# Of a residual Add the skip branch alone carries Q/DQ, or both behind an activation.
#
# The convolution that makes the other branch then takes the Add into its own kernel and reads the skip in
# INT8. With neither branch quantised the next Q runs as a kernel of its own; with both, or with Q/DQ between
# the convolution and the Add, the Add splits from the convolution.
#
# Behind an activation, as in YOLO, no convolution takes the Add in: it is a kernel of its own, and reads a
# byte for each number if both branches carry Q/DQ. Six such blocks with TensorRT 8.6 on an H200 took 18 %
# less time than with Q/DQ in front of the convolutions alone, 2 % with the skip's (benchmarks/placement).
#
# Behind matrix products, as in an encoder layer, it stays in float unless the form asks for it: the skip
# then reads the pair that the first layer of the other branch reads. With `both` the main branch gets one of
# its own, as in Model Optimizer's graphs. With attention's products in INT8 both took 4.7 % less time in four
# layers of BERT-base on an H200 with TensorRT 8.6, without them none (benchmarks/placement).


_RULE = "residual"


def apply_residual(draft: Draft) -> None:
    """Decide every Add of two computed tensors."""
    for node in draft.view.nodes:
        is_sum = is_op(node, "Add") and draft.view.is_float(node.output[0])
        if is_sum and not draft.options.excludes(node):
            _decide_residual(draft, node)


def _decide_residual(draft: Draft, node: Node) -> None:
    view = draft.view
    if len(view.computed_inputs(node)) != 2:
        draft.keep(node, _RULE, "it adds a constant, which fuses with what makes its input")
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
        draft.quantize(
            node, _RULE, "both branches are read in INT8: behind an activation no layer takes an Add in"
        )
        return
    if not mains and (skip_index := _beside_products(draft, node)) is not None:
        skip, also = draft.put(node, skip_index), ""
        if draft.options.forms.residual == "both":
            also = f", and {draft.put(node, 1 - skip_index)!r} in INT8"
        draft.quantize(node, _RULE, f"it reads the pair of {skip!r} for another layer{also}")
        return
    if not mains:
        draft.keep(node, _RULE, "neither branch comes straight from a quantised convolution, for it alone")
        return
    main = max(mains, key=lambda index: (_depth(view, node.input[index]), _is_plain(view, node.input[index])))
    skip = draft.put(node, 1 - main)
    maker = view.maker[node.input[main]].name
    draft.quantize(node, _RULE, f"the skip {skip!r} is read in INT8; {maker!r} takes the Add into its kernel")


def _beside_products(draft: Draft, node: Node) -> int | None:
    """Which input is the skip, where a quantised product makes the other and Q/DQ are on the skip already."""
    if draft.options.forms.residual == "none" or draft.options.trained is not None:
        return None
    found = (
        index
        for index in (0, 1)
        if draft.reads_quantized(node.input[index]) and _is_product(draft, node.input[1 - index])
    )
    return next(found, None)


def _is_product(draft: Draft, tensor: str) -> bool:
    """Whether a quantised matrix product makes it, for it alone, with a bias, scaled or transposed."""
    view, maker = draft.view, draft.view.maker.get(tensor)
    while maker is not None and view.only_use(maker.output[0]) is not None:
        if is_op(maker, "MatMul", "Gemm"):
            return draft.is_quantized(maker)
        computed = view.computed_inputs(maker)
        is_by_constant = is_op(maker, "Add", "Mul") and len(computed) == 1
        is_passed = is_by_constant or is_op(maker, *RESHAPES, "Transpose")
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
    return draft.is_quantized(maker) and draft.view.only_use(tensor) is not None


def _is_plain(view: View, tensor: str) -> bool:
    """Whether a Conv makes it, into whose kernel an Add is known to fuse, and no ConvTranspose."""
    return view.made_by(tensor, "Conv") is not None


def _is_between_int8_behind_an_activation(draft: Draft, node: Node) -> bool:
    """Whether a quantised layer reads the sum and another the skip, and an activation makes the other branch.

    A trained model's own Q/DQ show which branches tolerate it.
    """
    if draft.options.trained is not None or not draft.reads_quantized(node.output[0]):
        return False
    pairs = (node.input, reversed(node.input))
    return any(_is_activated(draft, main) and draft.reads_quantized(skip) for main, skip in pairs)


def _is_activated(draft: Draft, tensor: str) -> bool:
    """Whether it is the activation of a quantised convolution, for the Add alone."""
    view, maker = draft.view, draft.view.maker.get(tensor)
    if maker is None or view.only_use(tensor) is None:
        return False
    made_by = [
        view.made_by(maker.input[index], "Conv", "ConvTranspose") for index in view.computed_inputs(maker)
    ]
    return (is_op(maker, *ACTIVATIONS) or is_own_gate(view, maker)) and any(map(draft.is_quantized, made_by))


def _depth(view: View, tensor: str) -> int:
    """How many convolutions lie behind the tensor before its branch joins another: the main has more."""
    depth, maker = 0, view.maker.get(tensor)
    while maker is not None and view.only_use(maker.output[0]) is not None:
        depth += is_op(maker, "Conv", "ConvTranspose")
        computed = view.computed_inputs(maker)
        maker = view.maker.get(maker.input[computed[0]]) if computed else None
    return depth


# What may stand between quantised layers and run in INT8 itself: pools, Resize, Concat.
#
# And with the form `activation=int8` HardSwish, which TensorRT 8.6 does not fuse with the convolution in
# front of it: MobileNetV3 at batch 8 on an H200 took 7 % less time than FP16 in Model Optimizer's graph,
# which has Q in front of it too, and 13 % more without.


_AVERAGES = ("AveragePool", "GlobalAveragePool")
_FUSED = {*ACTIVATIONS, "Add", "BatchNormalization"}
_CARRIERS = RESHAPES | {"Transpose", "MaxPool"}


def apply_between(draft: Draft) -> None:
    """Decide every pool, Resize and Concat."""
    nodes = [node for node in draft.view.nodes if not draft.options.excludes(node)]
    for node in reversed(nodes):  # readers first: what stands behind one may have become INT8
        if is_op(node, "MaxPool", *_AVERAGES, "Resize", "Concat") and draft.view.is_float(node.output[0]):
            _decide(draft, node)
    for node in nodes if draft.options.forms.activation == "int8" else ():
        if _is_hard_swish(draft.view, node) and _is_between_quantized(draft, node):
            _quantize_activation(draft, node)


def _is_hard_swish(view: View, node: Node) -> bool:
    """Whether it is the operator, or the product of x and HardSigmoid(x)."""
    makers = (view.made_by(name, "HardSigmoid") for name in node.input)
    return is_op(node, "HardSwish") or (is_own_gate(view, node) and any(makers))


def _is_between_quantized(draft: Draft, node: Node) -> bool:
    return draft.reads_quantized(node.output[0]) and any(
        draft.is_quantized(draft.view.made_by(name, "Conv", "ConvTranspose", "Gemm")) for name in node.input
    )


def _quantize_activation(draft: Draft, node: Node) -> None:
    """Every reading of its input, that of HardSigmoid(x) too; not what is computed of it."""
    for name in node.input:
        if draft.is_quantized(draft.view.made_by(name, "Conv", "ConvTranspose", "Gemm")):
            for use in draft.view.uses(name):
                if use.node is node or is_op(use.node, "HardSigmoid"):
                    draft.put(use.node, use.index)
    draft.quantize(node, "activation", "no layer takes it in: it is a kernel that reads and writes INT8")


def _decide(draft: Draft, node: Node) -> None:
    rule = {"MaxPool": "maxpool", "Resize": "resize", "Concat": "concat"}.get(node.op_type, "average-pool")
    if draft.options.precision != "int8":
        draft.keep(node, rule, f"it has no {draft.options.precision.upper()} kernel")
    elif not _leads_to_quantized(draft, node.output[0]):
        if _shrinks_quantized_maps(draft, node):
            draft.put(node, 0)
            reason = "the layer in front of it writes whole maps, which take a quarter in INT8"
            draft.quantize(node, rule, reason)
        else:
            draft.keep(node, rule, "what reads it is float")
    elif node.op_type == "Concat":
        _decide_concat(draft, node)
    elif not _comes_from_quantized(draft, node.input[0]):
        draft.keep(node, rule, "what feeds it is float")
    else:
        _quantize_one_input(draft, node, rule)


def _shrinks_quantized_maps(draft: Draft, node: Node) -> bool:
    """Whether a global pool reads alone what a quantised layer makes: worth INT8 whatever follows.

    ResNet-50 with TensorRT 8.6 on an H200 (benchmarks/int8-vs-modelopt): 3 % less time at batches of
    64 and 128, 1 to 2 % at 1 and 8.
    """
    return (
        is_op(node, "GlobalAveragePool")
        and draft.options.trained is None  # a trained model's own Q/DQ show which maps tolerate it
        and draft.view.only_use(node.input[0]) is not None
        and _comes_from_quantized(draft, node.input[0])
    )


def _quantize_one_input(draft: Draft, node: Node, rule: str) -> None:
    tensor = draft.put(node, 0)
    is_nearest = is_op(node, "Resize") and attribute(node, "mode", b"nearest") == b"nearest"
    if node.op_type == "MaxPool" or is_nearest:
        draft.share_scale(tensor, node.output[0])
        draft.quantize(node, rule, "it picks values, so that one scale serves in front of it and behind it")
    else:
        draft.quantize(
            node, rule, "it makes new values: Q/DQ in front of it and behind it, INT8 on both sides"
        )


def _decide_concat(draft: Draft, node: Node) -> None:
    view, computed = draft.view, draft.view.computed_inputs(node)
    if len(computed) < len(node.input):
        draft.keep(node, "concat", "it joins constants")
    elif not _joins_channels(view, node):
        draft.keep(node, "concat", "it does not join channels")
    elif not all(_comes_from_quantized(draft, name) for name in node.input):
        draft.keep(
            node, "concat", "not all of its inputs come from quantised layers: they are joined in float"
        )
    else:
        for index in computed:
            draft.put(node, index)
        draft.share_scale(*node.input, node.output[0])
        readers = len(view.uses(node.output[0]))
        draft.quantize(node, "concat", f"one scale for its {len(computed)} inputs and {readers} readers")


def _joins_channels(view: View, node: Node) -> bool:
    axis, shape = attribute(node, "axis", 0), view.shape(node.input[0])
    return axis == 1 or (shape is not None and axis == 1 - len(shape))


def _leads_to_quantized(draft: Draft, tensor: str) -> bool:
    """Whether a reader reads the tensor through Q/DQ, or after nodes that merely move values."""
    if draft.reads_quantized(tensor):
        return True
    return any(
        is_op(use.node, *_CARRIERS) and _leads_to_quantized(draft, use.node.output[0])
        for use in draft.view.uses(tensor)
        if use.index == 0
    )


def _comes_from_quantized(draft: Draft, tensor: str) -> bool:
    """Whether a quantised layer makes the tensor, activations and the like that fuse with it included."""
    if draft.reads_quantized(tensor):
        return True
    maker = draft.view.maker.get(tensor)
    if maker is None:
        return False
    if is_op(maker, *_AVERAGES, "Resize") and maker.name not in draft.decisions:
        # its turn comes later, and once its reader is quantised nothing but this decides
        return _comes_from_quantized(draft, maker.input[0])
    if is_op(maker, "Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", *_AVERAGES, "Resize"):
        return draft.is_quantized(maker)
    if is_op(maker, *_FUSED, *_CARRIERS) or is_own_gate(draft.view, maker):
        return any(_comes_from_quantized(draft, maker.input[i]) for i in draft.view.computed_inputs(maker))
    return False
