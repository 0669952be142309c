"""Checks on structure: control flow, types, operators that fall back, attention that does not fuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from trtopt.onnxio.graph_walk import SIZING_OPERANDS
from trtopt.rewrite.lint.advice import Check, Finding
from trtopt.rewrite.lint.static_forms import advice_for
from trtopt.rewrite.rules.normalisation import LAYER_NORM, RMS_NORM, is_better_plain
from trtopt.rewrite.scope import STANDARD, Scope
from trtopt.targets import INTEGER_ARITHMETIC

_MATH = ("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "ReduceSum", "ReduceMean", "ReduceMax", "Where",
         "Equal", "CumSum", "Mod")  # fmt: skip
_HEAD_MIN, _HEAD_MAX, _HEAD_UNIT = 16, 256, 8


def _control_flow(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Loop", "If", "Scan"):
        yield Finding(node, f"{node.op} runs its body as a separate graph")


def _is_shape_math(scope: Scope, tensor: Any, depth: int = 6) -> bool:
    """Whether an integer comes from Shape or Size nodes, as far as `depth` steps show."""
    maker = scope.producer(tensor)
    if maker is None or not depth:
        return False
    return maker.op in ("Shape", "Size") or any(
        _is_shape_math(scope, item, depth - 1) for item in maker.inputs
    )


def _long_integers(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes(*_MATH):
        out = node.outputs[0]
        computed = node.inputs[0] if node.op == "Equal" else out  # axes and exponents may be INT64 anywhere
        if (
            scope.dtype(computed) == np.int64
            and (scope.rank(out) or 0) > 1
            and not _is_shape_math(scope, out)
        ):
            yield Finding(node, "it computes in INT64 on data, not on shapes")


def _odd_resizes(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Resize", "Upsample"):
        mode = node.attrs.get("mode", "nearest")
        place = node.attrs.get("coordinate_transformation_mode", "half_pixel")
        if (
            mode == "cubic"
            or place in ("tf_crop_and_resize", "half_pixel_symmetric")
            or node.attrs.get("antialias")
        ):
            yield Finding(node, f"mode {mode}, coordinates {place}")
        elif any(not item.is_empty() and not scope.is_constant(item) for item in node.inputs[1:]):
            yield Finding(node, "its size is computed")


def _form(op: str, opset: int) -> Any:
    """How many inputs and outputs an operator has, its attributes and their defaults; None if it is newer."""
    if not onnx.defs.has(op, opset, ""):
        return None
    schema = onnx.defs.get_schema(op, opset, "")
    defaults = {name: item.default_value.SerializeToString() for name, item in schema.attributes.items()}
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output, defaults


def _foreign_operators(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes():
        if node.domain not in STANDARD:
            yield Finding(node, f"{node.domain}::{node.op} is not a standard operator")
        elif not onnx.defs.has(node.op, scope.opset, ""):
            yield Finding(node, f"{node.op} is unknown to opset {scope.opset}")
        elif scope.target.operator_opset < scope.opset and (
            _form(node.op, scope.opset) != _form(node.op, scope.target.operator_opset)
        ):
            yield Finding(node, f"this form of {node.op} is newer than TensorRT {scope.target.name}'s parser")


def _integer_arithmetic(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes(*sorted(INTEGER_ARITHMETIC)):
        yield Finding(node, f"{node.op} is not imported by TensorRT, which takes Q/DQ around float operators")


def _cast_inputs(scope: Scope) -> Iterator[Finding]:
    for tensor in scope.graph.inputs:
        users = list(tensor.outputs)
        if not users or any(user.op not in ("Cast", "QuantizeLinear") for user in users):
            continue
        if scope.dtype(tensor) == np.float32:
            operators = " and ".join(sorted({user.op for user in users}))
            yield Finding(users[0], f"input {tensor.name!r} is FP32 and goes straight into {operators}")


def _scores_of(scope: Scope, node: Any) -> Any | None:
    """The first product of the attention that a Softmax is part of."""
    tensor = node.inputs[0]
    for _ in range(4):
        maker = scope.producer(tensor, "Add", "Mul", "Div", "Where", "Cast", "MatMul")
        if maker is None or maker.op == "MatMul":
            return maker
        tensor = maker.inputs[1 if maker.op == "Where" else 0]
    return None


def _unfused_attention(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Softmax"):
        scores = _scores_of(scope, node)
        if scores is None or any(scope.is_constant(tensor) for tensor in scores.inputs):
            continue
        query, rank = scores.inputs[0], scope.rank(scores.inputs[0])
        head = query.shape[-1] if query.shape else None
        if rank is not None and rank not in (3, 4):
            yield Finding(node, f"the operands of attention have rank {rank}, not 3 or 4")
        elif isinstance(head, int) and not (_HEAD_MIN <= head <= _HEAD_MAX and head % _HEAD_UNIT == 0):
            yield Finding(node, f"head size {head} is not 16 to 256 and a multiple of 8")
        elif scope.only_use(scores.outputs[0]) is None:
            yield Finding(node, "the scores are used elsewhere too")
        elif scope.only_use(node.outputs[0]) is None:
            yield Finding(node, "the attention weights are used elsewhere too")


def _plain_normalisations(scope: Scope) -> Iterator[Finding]:
    for rule in (LAYER_NORM, RMS_NORM):
        for match in rule.find(scope):
            reason = rule.check(scope, match)
            if reason is not None and not (rule is LAYER_NORM and is_better_plain(match)):
                yield Finding(
                    match.node, f"a normalisation written out, which {rule.name} declines: {reason}"
                )


def _data_dependent_sizes(scope: Scope) -> Iterator[Finding]:
    """Nodes whose output's size is decided by what is computed from the inputs' values."""
    for node in scope.nodes(*SIZING_OPERANDS):
        operands = [node.inputs[place] for place in SIZING_OPERANDS[node.op] if place < len(node.inputs)]
        if any(not item.is_empty() and _is_of_values(scope, item) for item in operands):
            own = advice_for(node.op, scope.target.name)
            yield Finding(node, f"the size of what {node.op} makes depends on the data", own)


def _is_of_values(scope: Scope, tensor: Any) -> bool:
    """Whether a tensor is computed from the values of an input, not only from shapes and constants."""
    waiting, seen = [tensor], set()
    while waiting:
        item = waiting.pop()
        if item.name in seen or item.is_empty() or scope.is_constant(item):
            continue
        seen.add(item.name)
        maker = scope.producer(item)
        if maker is None:
            return True
        if maker.op not in ("Shape", "Size", "Constant"):
            waiting += maker.inputs
    return False


STRUCTURE_CHECKS = (
    Check(
        "data-dependent-size",
        "no CUDA graph; the host waits within each inference; where an output has it, no batch is shared",
        "use a static form",
        _data_dependent_sizes,
    ),
    Check(
        "control-flow",
        "no fusion across its edges, no CUDA graph where a condition is read by the host",
        "unroll it or take the decision outside the model",
        _control_flow,
    ),
    Check(
        "int64-math",
        "TensorRT 8.6 turns it into INT32; later versions have few INT64 kernels",
        "use INT32 in the model where the range allows",
        _long_integers,
    ),
    Check(
        "resize",
        "a slow generic kernel, or a mode that the parser refuses",
        "use nearest or linear with half_pixel, align_corners or asymmetric, and constant scales",
        _odd_resizes,
    ),
    Check(
        "foreign-operator",
        "the build fails unless a plugin has it",
        "give the plugin with --plugin, or export with standard operators of an opset that the target reads",
        _foreign_operators,
    ),
    Check(
        "integer-arithmetic",
        "the build fails",
        "take the float model that this one was quantised from, and quantise it with `trtopt quantize`",
        _integer_arithmetic,
    ),
    Check(
        "cast-input",
        "twice or four times the bytes copied to the device, and a cast that could be spared",
        "let the input have the type that the network uses",
        _cast_inputs,
    ),
    Check(
        "attention",
        "separate kernels, and scores written to memory",
        "keep the pattern MatMul, scale, mask Add, Softmax, MatMul with a head size in range",
        _unfused_attention,
    ),
    Check(
        "plain-normalisation",
        "kernels for single steps unless the builder knows the pattern; moments in FP16 where x is",
        "export at opset 17 for LayerNormalization, at 23 for RMSNormalization where the target reads it; "
        "compute the moments in FP32",
        _plain_normalisations,
    ),
)
