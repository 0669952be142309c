"""Rules 1, 7 and 9: convolutions and matrix products with constant weights are quantised, with exceptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtopt.onnxio.model_file import is_external
from trtopt.precision.placement.gates import is_gate
from trtopt.precision.placement.placement_plan import Draft, PlacementOptions, WeightEdge
from trtopt.precision.placement.view import ACTIVATIONS, RESHAPES, Node, View, attribute, is_op

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
    rows = activation[attribute(node, "transA")] if activation and len(activation) == 2 else None
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
    perms = []
    while (node := view.made_by(tensor, "Identity", "Transpose")) is not None:
        if node.op_type == "Transpose":
            perms.append(next((tuple(item.ints) for item in node.attribute if item.name == "perm"), None))
        tensor = node.input[0]
    shape = tuple(view.constants[tensor].dims)
    for perm in reversed(perms):
        shape = tuple(shape[axis] for axis in perm) if perm else shape[::-1]
    return shape


# ── exceptions: each answers why not, or None ───────────────────────────────────────────────────────────


def _not_float32(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    kind = view.element_type(_root(view, item.node.input[item.weight]))
    return None if kind == _FLOAT32 else "its weight is not FP32; quantise the FP32 model"


def _grouped(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    if options.precision == "fp8" and item.groups > 1:
        return "there are no FP8 kernels for depthwise and grouped convolutions"
    return None


def _not_int4(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    if options.precision != "int4":
        return None
    if item.node.op_type != "MatMul" or item.axis is None:
        return "INT4 weights are for MatMul with a two-dimensional weight on the right"
    return None if item.k % BLOCK == 0 else f"K = {item.k} is no multiple of the block of {BLOCK}"


def _gate(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    reason = "it is part of a squeeze-and-excitation gate: tiny, and its error scales whole channels"
    return reason if options.forms.gates == "float" and is_gate(view, item.node) else None


def _gemv(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    if item.is_convolution or (item.n > 1 and item.rows != 1):
        return None
    side = "N" if item.n == 1 else "M"
    return f"it is a matrix-vector product ({side} = 1): bound by reading weights"


def _narrow_product(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    if item.is_convolution or (item.k >= _NARROW and item.n >= _NARROW):
        return None
    return f"K = {item.k}, N = {item.n}: below {_NARROW} there is nothing to gain"


def _narrow_convolution(view: View, item: Weighted, options: PlacementOptions) -> str | None:
    if not item.is_convolution or item.k >= _NARROW or item.n >= _NARROW or is_input_layer(view, item.node):
        return None
    return f"{item.k} and {item.n} channels: fewer than {_NARROW} on both sides, and not the input layer"


_EXCEPTIONS: tuple[tuple[str, Callable[[View, Weighted, PlacementOptions], str | None]], ...] = (
    ("weight-type", _not_float32),
    ("fp8-grouped", _grouped),
    ("int4-blocks", _not_int4),
    ("gate", _gate),
    ("gemv", _gemv),
    ("narrow", _narrow_product),
    ("narrow", _narrow_convolution),
)
_FIRM = {"weight-type", "fp8-grouped", "int4-blocks"}
"""What `--include` cannot overrule."""


def _root(view: View, tensor: str) -> str:
    while (node := view.made_by(tensor, "Identity", "Transpose")) is not None:
        tensor = node.input[0]
    return tensor


def is_input_layer(view: View, node: Node) -> bool:
    """Whether the node reads an input of the model, perhaps after preprocessing by constants."""
    tensor = node.input[0]
    while tensor not in view.inputs:
        maker = view.maker.get(tensor)
        if maker is None or not is_op(maker, *_BEFORE_INPUT_LAYER) or len(view.computed_inputs(maker)) != 1:
            return False
        tensor = maker.input[view.computed_inputs(maker)[0]]
    return True


def apply(draft: Draft) -> None:
    """Decide every convolution, transposed convolution, Gemm, and MatMul with a constant."""
    for node in draft.view.nodes:
        item = weighted(draft.view, node)
        if item is None:
            if is_op(node, *_CONVOLUTIONS, "Gemm"):
                draft.keep(node, "weights", "its weight is computed at run time")
            continue
        _decide(draft, item)


def _decide(draft: Draft, item: Weighted) -> None:
    view, options, node = draft.view, draft.options, item.node
    if pattern := options.excludes(node):
        draft.keep(node, "excluded", f"--exclude {pattern}")
        return
    if options.trained is not None and node.name not in options.trained and not options.includes(node):
        draft.keep(node, "trained", "the model's own Q/DQ leave it out")
        return
    requested = options.includes(node) or (options.trained and "as the model has it")
    for rule, why_not in _EXCEPTIONS:
        reason = why_not(view, item, options)
        if reason is not None and (not requested or rule in _FIRM):
            draft.keep(node, rule, reason)
            return
    draft.weights.append(WeightEdge(node.name, item.weight, item.axis))
    if options.precision == "int4":
        draft.quantise(node, "weights", f"INT4 weight in blocks of {BLOCK}; activations stay in float")
        return
    scales = "one" if item.axis is None else f"one for each slice of axis {item.axis}"
    rule = "included" if requested else "weights"
    draft.quantise(node, rule, f"its activation with one scale, its weight with {scales}")
    place, index = _before_pad(view, node, item.activation)
    draft.put(place, index)
    if place is not node:
        draft.quantise(
            place, "pad", "Q/DQ in front of it: nothing may stand between a Pad and its convolution"
        )


def _before_pad(view: View, node: Node, index: int) -> tuple[Node, int]:
    """The edge in front of Pads whose fill survives quantisation: zeros, or copies of what is there.

    What others read too stays in float: they would get what the convolution's Q/DQ leave of it.
    """
    pad = view.made_by(node.input[index], "Pad")
    while pad is not None and _fill_is_exact(view, pad) and view.only_use(pad.output[0]) is not None:
        node, index = pad, 0
        pad = view.made_by(node.input[index], "Pad")
    return node, index


def _fill_is_exact(view: View, pad: Node) -> bool:
    import onnx

    mode = next((item.s for item in pad.attribute if item.name == "mode"), b"constant")
    if mode != b"constant" or len(pad.input) < 3 or not pad.input[2]:
        return True
    fill = view.constants.get(pad.input[2])
    return fill is not None and not is_external(fill) and not onnx.numpy_helper.to_array(fill).any()
