"""Rules 5 and 6: what may stand between quantised layers and run in INT8 itself: pools, Resize, Concat.

And with the form `activation=int8` HardSwish, which TensorRT 8.6 does not fuse with the convolution in front
of it: MobileNetV3 at batch 8 on an H200 took 7 % less time than FP16 in Model Optimizer's graph, which has Q
in front of it too, and 13 % more without.
"""

from __future__ import annotations

from trtopt.precision.placement.gates import is_own_gate
from trtopt.precision.placement.placement_plan import Draft
from trtopt.precision.placement.view import ACTIVATIONS, RESHAPES, Node, View, attribute, is_op

_AVERAGES = ("AveragePool", "GlobalAveragePool")
_FUSED = {*ACTIVATIONS, "Add", "BatchNormalization"}
_CARRIERS = RESHAPES | {"Transpose", "MaxPool"}


def apply(draft: Draft) -> None:
    """Decide every pool, Resize and Concat."""
    for node in reversed(draft.view.nodes):  # readers first: what stands behind one may have become INT8
        if is_op(node, "MaxPool", *_AVERAGES, "Resize", "Concat") and draft.view.is_float(node.output[0]):
            _decide(draft, node)
    for node in draft.view.nodes if draft.options.forms.activation == "int8" else ():
        if _is_hard_swish(draft.view, node) and _is_between_quantised(draft, node):
            _quantise_activation(draft, node)


def _is_hard_swish(view: View, node: Node) -> bool:
    """Whether it is the operator, or the product of x and HardSigmoid(x)."""
    makers = (view.made_by(name, "HardSigmoid") for name in node.input)
    return is_op(node, "HardSwish") or (is_own_gate(view, node) and any(makers))


def _is_between_quantised(draft: Draft, node: Node) -> bool:
    return draft.reads_quantised(node.output[0]) and any(
        draft.is_quantised(draft.view.made_by(name, "Conv", "ConvTranspose", "Gemm")) for name in node.input
    )


def _quantise_activation(draft: Draft, node: Node) -> None:
    """Every reading of its input, that of HardSigmoid(x) too; not what is computed of it."""
    if pattern := draft.options.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
        return
    for name in node.input:
        if draft.is_quantised(draft.view.made_by(name, "Conv", "ConvTranspose", "Gemm")):
            for use in draft.view.uses(name):
                if use.node is node or is_op(use.node, "HardSigmoid"):
                    draft.put(use.node, use.index)
    draft.quantise(node, "activation", "no layer takes it in: it is a kernel that reads and writes INT8")


def _decide(draft: Draft, node: Node) -> None:
    rule = {"MaxPool": "maxpool", "Resize": "resize", "Concat": "concat"}.get(node.op_type, "average-pool")
    if pattern := draft.options.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
    elif draft.options.precision != "int8":
        draft.keep(node, rule, f"it has no {draft.options.precision.upper()} kernel")
    elif not _leads_to_quantised(draft, node.output[0]):
        if _shrinks_quantised_maps(draft, node):
            draft.put(node, 0)
            reason = "the layer in front of it writes whole maps, which take a quarter in INT8"
            draft.quantise(node, rule, reason)
        else:
            draft.keep(node, rule, "what reads it is float")
    elif node.op_type == "Concat":
        _decide_concat(draft, node)
    elif not _comes_from_quantised(draft, node.input[0]):
        draft.keep(node, rule, "what feeds it is float")
    else:
        _quantise_one_input(draft, node, rule)


def _shrinks_quantised_maps(draft: Draft, node: Node) -> bool:
    """Whether a global pool reads alone what a quantised layer makes: worth INT8 whatever follows.

    ResNet-50 with TensorRT 8.6 on an H200 (benchmarks/int8-vs-modelopt): 3 % less time at batches of
    64 and 128, 1 to 2 % at 1 and 8.
    """
    return (
        is_op(node, "GlobalAveragePool")
        and draft.options.trained is None  # a trained model's own Q/DQ show which maps tolerate it
        and draft.view.only_use(node.input[0]) is not None
        and _comes_from_quantised(draft, node.input[0])
    )


def _quantise_one_input(draft: Draft, node: Node, rule: str) -> None:
    tensor = draft.put(node, 0)
    if node.op_type == "MaxPool" or _is_nearest(node):
        draft.share_scale(tensor, node.output[0])
        draft.quantise(node, rule, "it picks values, so that one scale serves in front of it and behind it")
    else:
        draft.quantise(
            node, rule, "it makes new values: Q/DQ in front of it and behind it, INT8 on both sides"
        )


def _is_nearest(node: Node) -> bool:
    mode = next((item.s for item in node.attribute if item.name == "mode"), b"nearest")
    return is_op(node, "Resize") and mode == b"nearest"


def _decide_concat(draft: Draft, node: Node) -> None:
    view, computed = draft.view, draft.view.computed_inputs(node)
    if len(computed) < len(node.input):
        draft.keep(node, "concat", "it joins constants")
    elif attribute(node, "axis") != 1 or not all(_comes_from_quantised(draft, name) for name in node.input):
        draft.keep(
            node, "concat", "not all of its inputs come from quantised layers: they are joined in float"
        )
    else:
        for index in computed:
            draft.put(node, index)
        draft.share_scale(*node.input, node.output[0])
        readers = len(view.uses(node.output[0]))
        draft.quantise(node, "concat", f"one scale for its {len(computed)} inputs and {readers} readers")


def _leads_to_quantised(draft: Draft, tensor: str) -> bool:
    """Whether a reader reads the tensor through Q/DQ, or after nodes that merely move values."""
    if draft.reads_quantised(tensor):
        return True
    return any(
        is_op(use.node, *_CARRIERS) and _leads_to_quantised(draft, use.node.output[0])
        for use in draft.view.uses(tensor)
        if use.index == 0
    )


def _comes_from_quantised(draft: Draft, tensor: str) -> bool:
    """Whether a quantised layer makes the tensor, activations and the like that fuse with it included."""
    if draft.reads_quantised(tensor):
        return True
    maker = draft.view.maker.get(tensor)
    if maker is None:
        return False
    if is_op(maker, *_AVERAGES, "Resize") and maker.name not in draft.decisions:
        # its turn comes later, and once its reader is quantised nothing but this decides
        return not draft.options.excludes(maker) and _comes_from_quantised(draft, maker.input[0])
    if is_op(maker, "Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", *_AVERAGES, "Resize"):
        return draft.is_quantised(maker)
    if is_op(maker, *_FUSED, *_CARRIERS) or is_own_gate(draft.view, maker):
        return any(_comes_from_quantised(draft, maker.input[i]) for i in draft.view.computed_inputs(maker))
    return False
