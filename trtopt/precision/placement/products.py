"""The rules of convolutions and matrix products, with constant weights or of two activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtopt.onnxio.graph_walk import attribute, subgraphs_of
from trtopt.onnxio.model_file import is_external
from trtopt.precision.placement.draft import (
    ACTIVATIONS,
    RESHAPES,
    SOFTMAX_AMAX,
    Draft,
    Node,
    PlacementOptions,
    View,
    WeightEdge,
    is_op,
)
from trtopt.targets import HEAD_SIZES

# Squeeze-and-excitation gates: pool → layers → sigmoid → multiplied with what was pooled.
#
# In float by default. With the form `gates=int8` the layers, the pool and the product read INT8: RegNetY-040
# at batch 8 with TensorRT 8.6 on an H100 took 19 % less time than FP16 with all of it in INT8, in a graph by
# Model Optimizer, and as long as FP16 with the gates in float, at equal accuracy: reformats took 0.23 ms.


_GATE_RULE = "gate"
_LAYERS = ("Conv", "Gemm", "MatMul", "BatchNormalization")
_INSIDE_GATES = {*_LAYERS, *ACTIVATIONS, *RESHAPES, "Add", "Transpose", "Cast", "Div", "Expand"}
_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum")
_SIGMOIDS = ("Sigmoid", "HardSigmoid", "Clip", "Softmax", "Tanh")


def _is_fed_by_pool(view: View, node: Node) -> bool:
    seen: set[str] = set()
    waiting = [name for name in node.input if name]
    while waiting:
        maker = view.maker.get(waiting.pop())
        if maker is None or maker.name in seen:
            continue
        if is_op(maker, *_POOLS):
            return True
        seen.add(maker.name)
        if is_op(maker, *_INSIDE_GATES) or (is_op(maker, "Mul") and _is_by_own_branch(view, maker)):
            waiting += [name for name in maker.input if name]
    return False


def _is_by_own_branch(view: View, product: Node) -> bool:
    """x·Sigmoid(x), which is an activation and not a gate, or a product with a constant."""
    return len(view.computed_inputs(product)) < 2 or is_own_gate(view, product)


def is_own_gate(view: View, product: Node) -> bool:
    """Whether the node is the Mul of x·Sigmoid(x) or x·HardSigmoid(x)."""
    computed = [product.input[index] for index in view.computed_inputs(product)]
    if not is_op(product, "Mul") or len(computed) < 2:
        return False
    for inner, outer in (computed, computed[::-1]):
        maker = view.maker.get(outer)
        if maker is not None and is_op(maker, "Sigmoid", "HardSigmoid") and maker.input[0] == inner:
            return True
    return False


def is_gated(view: View, product: Node) -> bool:
    """Whether the node multiplies maps by a bounded signal that a pool over whole maps feeds."""
    if not is_op(product, "Mul") or is_own_gate(view, product):
        return False
    makers = [view.maker.get(product.input[index]) for index in view.computed_inputs(product)]
    return len(makers) == 2 and any(node and _is_signal(view, node) for node in makers)


def _is_signal(view: View, node: Node | None) -> bool:
    while node is not None and is_op(node, *RESHAPES, "Expand", "Div"):
        node = view.maker.get(node.input[0])
    return node is not None and is_op(node, *_SIGMOIDS) and _is_fed_by_pool(view, node)


def apply_gates(draft: Draft) -> None:
    """Where the form says so: both inputs of each gate's product in INT8; its pool follows."""
    if draft.options.forms.gates == "float" or draft.options.precision != "int8":
        return
    for node in draft.view.nodes:
        is_wanted = is_gated(draft.view, node) and not draft.options.excludes(node)
        if is_wanted and draft.reads_quantized(node.output[0]):
            draft.put(node, 0)
            draft.put(node, 1)
            draft.quantize(node, _GATE_RULE, "maps and signal are read in INT8, as the layer behind it reads")


def _leads_to_product(view: View, node: Node) -> bool:
    waiting = [(name, False) for name in node.output]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        tensor, is_bounded = waiting.pop()
        if (tensor, is_bounded) in seen:
            continue
        seen.add((tensor, is_bounded))
        for use in view.uses(tensor):
            if is_op(use.node, "Mul") and not _is_by_own_branch(view, use.node):
                if is_bounded:
                    return True
            elif is_op(use.node, *_INSIDE_GATES, "Mul"):
                bounded = is_bounded or is_op(use.node, *_SIGMOIDS)
                waiting += [(name, bounded) for name in use.node.output]
    return False


# Convolutions and matrix products with constant weights are quantised, with exceptions.


BLOCK = 128
"""Rows of an INT4 weight that share a scale."""
_NARROW = 16
_FLOAT32 = 1
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_BEFORE_INPUT_LAYER = RESHAPES | ACTIVATIONS | {"Transpose", "Pad", "Cast", "Mul", "Add", "Sub", "Div"}


@dataclass(frozen=True)
class Weighted:
    """A node with a constant weight: `k` inputs make `n` outputs (channels, those of all groups).

    `rows` is M of a matrix product where it is fixed; `groups` is 1 but for grouped convolutions.
    """

    node: Node
    activation: int
    weight: int
    axis: int | None
    k: int
    n: int
    rows: int | None = None
    groups: int = 1

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution of either kind."""
        return self.node.op_type in _CONVOLUTIONS


def weighted(view: View, node: Node) -> Weighted | None:
    """The node as a weighted one, if its weight is constant and of rank 2 or more."""
    if is_op(node, *_CONVOLUTIONS, "Gemm"):
        if not view.is_constant(node.input[1]) or view.is_constant(node.input[0]):
            return None
        return _of_gemm(view, node) if node.op_type == "Gemm" else _of_convolution(view, node)
    return _of_matmul(view, node) if is_op(node, "MatMul") else None


def _of_convolution(view: View, node: Node) -> Weighted | None:
    shape, groups = _known(view, node.input[1]), attribute(node, "group", 1)
    if shape is None or len(shape) < 3:
        return None
    if node.op_type == "Conv":
        return Weighted(node, 0, 1, 0, k=shape[1] * groups, n=shape[0], groups=groups)
    # with groups, axis 1 holds one group's channels: a scale there would be shared between groups
    axis = 1 if groups == 1 else None
    return Weighted(node, 0, 1, axis, k=shape[0], n=shape[1] * groups, groups=groups)


def _of_gemm(view: View, node: Node) -> Weighted | None:
    shape, activation = _known(view, node.input[1]), view.shape(node.input[0])
    if shape is None or len(shape) != 2:
        return None
    axis = 0 if attribute(node, "transB") else 1
    rows = activation[attribute(node, "transA", 0)] if activation and len(activation) == 2 else None
    return Weighted(node, 0, 1, axis, k=shape[1 - axis], n=shape[axis], rows=rows)


def _of_matmul(view: View, node: Node) -> Weighted | None:
    computed = view.computed_inputs(node)
    if len(computed) != 1:
        return None
    activation, weight = computed[0], 1 - computed[0]
    shape, other = _known(view, node.input[weight]), view.shape(node.input[activation])
    if shape is None or len(shape) < 2:
        return None
    if weight == 0:  # a weight on the left: its rows are the outputs, and one scale serves them all
        columns = other[-1] if other else None
        return Weighted(node, activation, weight, None, k=shape[-1], n=shape[-2], rows=columns)
    rows = other[-2] if other and len(other) > 1 else None
    axis = len(shape) - 1 if len(shape) == 2 else None
    return Weighted(node, activation, weight, axis, k=shape[-2], n=shape[-1], rows=rows)


def _known(view: View, tensor: str) -> tuple[int, ...] | None:
    """The shape of a constant, seen through Identity and Transpose."""
    root, transposes = view.behind_moves(tensor)
    shape = tuple(view.constants[root].dims)
    for node in reversed(transposes):
        perm = attribute(node, "perm")
        shape = tuple(shape[axis] for axis in perm) if perm else shape[::-1]
    return shape


# ── exceptions ──────────────────────────────────────────────────────────────────────────────────────────


def _why_not(view: View, item: Weighted, options: PlacementOptions) -> Iterator[tuple[str, str]]:
    """The rules that keep a layer in float, in order, and why."""
    node = item.node
    is_input = is_input_layer(view, node)
    if view.element_type(view.behind_moves(node.input[item.weight])[0]) != _FLOAT32:
        yield "weight-type", "its weight is not FP32; quantise the FP32 model"
    if options.precision == "fp8" and item.groups > 1:
        yield "fp8-grouped", "there are no FP8 kernels for depthwise and grouped convolutions"
    if options.precision == "int4":
        if node.op_type != "MatMul" or item.axis is None:
            yield "int4-blocks", "INT4 weights are for MatMul with a two-dimensional weight on the right"
        elif item.k % BLOCK:
            yield "int4-blocks", f"K = {item.k} is no multiple of the block of {BLOCK}"
    if options.forms.gates == "float" and _is_fed_by_pool(view, node) and _leads_to_product(view, node):
        yield "gate", "it is part of a squeeze-and-excitation gate: tiny, and its error scales whole channels"
    if not item.is_convolution and (item.n <= 1 or item.rows == 1):
        side = "N" if item.n == 1 else "M"
        yield "gemv", f"it is a matrix-vector product ({side} = 1): bound by reading weights"
    # ResNet-50 has 36.3 dB so instead of 33.8, in 0.8 % less time at batch 1 (benchmarks/int8-forms)
    if options.precision == "int8" and not (item.is_convolution or is_input) and _is_last(view, node):
        yield (
            "head",
            "it is the head, of one row a sample: as fast in float, and the outputs are more accurate",
        )
    narrow_sides = (item.k < _NARROW) + (item.n < _NARROW)
    if not item.is_convolution and narrow_sides:
        yield "narrow", f"K = {item.k}, N = {item.n}: below {_NARROW} there is nothing to gain"
    if item.is_convolution and narrow_sides == 2 and not is_input:
        sides = f"{item.k} and {item.n} channels"
        yield "narrow", f"{sides}: fewer than {_NARROW} on both sides, and not the input layer"


def _is_last(view: View, node: Node) -> bool:
    """Whether no layer is behind the node, and its rows become no maps or sequences again."""
    waiting, seen = list(node.output), set(node.output)
    while waiting:
        tensor = waiting.pop()
        shape = view.shape(tensor)
        if shape is None or len(shape) > 2:
            return False
        for use in view.uses(tensor):
            if is_op(use.node, "Gemm", "MatMul") or any(subgraphs_of(use.node)):
                return False
            new = {name for name in use.node.output if name} - seen
            seen |= new
            waiting += new
    return True


_FIRM = {"weight-type", "fp8-grouped", "int4-blocks"}
"""What `--include` cannot overrule."""


def is_input_layer(view: View, node: Node) -> bool:
    """Whether the node reads an input of the model, perhaps after preprocessing by constants."""
    tensor = node.input[0]
    while tensor not in view.inputs:
        maker = view.maker.get(tensor)
        if maker is None or not is_op(maker, *_BEFORE_INPUT_LAYER) or len(view.computed_inputs(maker)) != 1:
            return False
        tensor = maker.input[view.computed_inputs(maker)[0]]
    return True


def apply_weighted(draft: Draft) -> None:
    """Decide every convolution, transposed convolution, Gemm, and MatMul with a constant."""
    for node in draft.view.nodes:
        item = weighted(draft.view, node)
        if item is None:
            if is_op(node, *_CONVOLUTIONS, "Gemm"):
                draft.keep(node, "weights", "its weight is computed at run time")
            continue
        _decide_weighted(draft, item)


def _decide_weighted(draft: Draft, item: Weighted) -> None:
    view, options, node = draft.view, draft.options, item.node
    if options.excludes(node):
        return
    if options.trained is not None and node.name not in options.trained and not options.includes(node):
        draft.keep(node, "trained", "the model's own Q/DQ leave it out")
        return
    requested = options.includes(node) or (options.trained and "as the model has it")
    for rule, reason in _why_not(view, item, options):
        if not requested or rule in _FIRM:
            draft.keep(node, rule, reason)
            return
    draft.weights.append(WeightEdge(node.name, item.weight, item.axis))
    if options.precision == "int4":
        draft.quantize(node, "weights", f"INT4 weight in blocks of {BLOCK}; activations stay in float")
        return
    scales = "one" if item.axis is None else f"one for each slice of axis {item.axis}"
    rule = "included" if requested else "weights"
    draft.quantize(node, rule, f"its activation with one scale, its weight with {scales}")
    place, index = _before_pad(draft, node, item.activation)
    draft.put(place, index)
    if place is not node:
        draft.quantize(
            place, "pad", "Q/DQ in front of it: nothing may stand between a Pad and its convolution"
        )


def _before_pad(draft: Draft, node: Node, index: int) -> tuple[Node, int]:
    """The edge in front of Pads whose fill survives quantisation: zeros, or copies of what is there.

    What others read too stays in float: they would get what the convolution's Q/DQ leave of it.
    """
    view, pad = draft.view, draft.view.made_by(node.input[index], "Pad")
    while pad is not None and _fill_is_exact(view, pad) and view.only_use(pad.output[0]) is not None:
        if draft.options.excludes(pad):
            break
        node, index = pad, 0
        pad = view.made_by(node.input[index], "Pad")
    return node, index


def _fill_is_exact(view: View, pad: Node) -> bool:
    import onnx

    if attribute(pad, "mode", b"constant") != b"constant" or len(pad.input) < 3 or not pad.input[2]:
        return True
    fill = view.constants.get(pad.input[2])
    return fill is not None and not is_external(fill) and not onnx.numpy_helper.to_array(fill).any()


# Products of two computed tensors. In FP8 an attention is quantised whole, in INT8 by its form.
#
# FP8: Q/DQ on both inputs of the first product (behind the transpose of K and the scale), on Softmax's result
# with the fixed scale 1/448 · 448 = amax 1, and on V. The head size must be 16 to 256 and a multiple of 8.


_ATTENTION_RULE = "attention"
_BETWEEN = ("Mul", "Div", "Add", "Where", "Sub", "Cast", "Identity", "Clip")


def find_attentions(view: View) -> list[tuple[Node, Node]]:
    """The products of every MatMul → … → Softmax → MatMul whose operands are all computed."""
    found = []
    for softmax in view.nodes:
        if not is_op(softmax, "Softmax"):
            continue
        first, uses = _product_behind(view, softmax.input[0]), view.uses(softmax.output[0])
        second = [use.node for use in uses if use.index == 0 and _is_product_of_two(view, use.node)]
        if first is not None and len(uses) == len(second) == 1:
            found.append((first, second[0]))
    return found


def _is_product_of_two(view: View, node: Node) -> bool:
    return is_op(node, "MatMul") and len(view.computed_inputs(node)) == 2


def _product_behind(view: View, tensor: str) -> Node | None:
    maker = view.maker.get(tensor)
    while maker is not None and is_op(maker, *_BETWEEN):
        behind = [view.maker.get(maker.input[index]) for index in view.computed_inputs(maker)]
        products = [node for node in behind if node is not None and is_op(node, "MatMul", *_BETWEEN)]
        maker = next(iter(sorted(products, key=lambda node: not is_op(node, "MatMul"))), None)
    return maker if maker is not None and _is_product_of_two(view, maker) else None


def apply_attention(draft: Draft) -> None:
    """Decide every MatMul of two computed tensors."""
    if draft.options.precision == "fp8" or draft.options.forms.attention == "on":
        for first, second in find_attentions(draft.view):
            _decide_attention(draft, first, second)
    for node in draft.view.nodes:
        is_decided = draft.is_quantized(node) or draft.options.excludes(node)
        if _is_product_of_two(draft.view, node) and not is_decided:
            _decide_alone(draft, node)


def _decide_attention(draft: Draft, first: Node, second: Node) -> None:
    products = (first, second)
    for product in products:
        if pattern := draft.options.excludes(product):
            for node in products:
                why = f"--exclude {pattern} at {product.name!r}: an attention goes whole"
                draft.keep(node, "excluded", why)
            return
    is_fp8 = draft.options.precision == "fp8"
    if is_fp8 and (why_not := _why_no_attention(draft.view, first)):
        for product in products:
            draft.keep(product, _ATTENTION_RULE, why_not)
        return
    for product in products:
        tensors = [draft.put(product, 0), draft.put(product, 1)]
        if is_fp8 and product is second:
            draft.fixed[tensors[0]] = SOFTMAX_AMAX
        kind = draft.options.precision.upper()
        draft.quantize(product, _ATTENTION_RULE, f"both operands in {kind}, so that the attention fuses")


def _why_no_attention(view: View, first: Node) -> str | None:
    shape = view.shape(first.input[0])
    size = shape[-1] if shape else None
    if size is None:
        return "its head size is not known"
    return None if size in HEAD_SIZES else f"its head size {size} is not 16 to 256 and a multiple of 8"


def _decide_alone(draft: Draft, node: Node) -> None:
    requested = draft.options.includes(node)
    if draft.options.precision == "int4":
        draft.keep(node, _ATTENTION_RULE, "INT4 is for constant weights")
    elif requested and draft.options.precision == "int8":
        draft.put(node, 0)
        draft.put(node, 1)
        draft.quantize(node, "included", f"--include {requested}")
    elif draft.options.precision == "fp8":
        draft.keep(node, _ATTENTION_RULE, "it is not part of an attention with Softmax")
    else:
        draft.keep(node, _ATTENTION_RULE, "products of two activations are often slower in INT8")
