"""Transformer encoders as exporters write them, with seeded weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

HIDDEN = 768
DOMAIN = "trt.plugins"


@dataclass(frozen=True)
class Encoder:
    """How an exporter writes the same layers."""

    layers: int = 2
    batch: int | str = 2
    """A length, or the name of an open axis."""
    tokens: int = 5
    inner: int = 96
    heads: int = 12
    scaled: str = "scores"
    """What is multiplied: scores, or queries and keys (`both`)."""
    scale: float = 0.125
    gelu: str = "Erf"
    mask: str | None = None
    """None, `zero` (a constant) or `input`."""
    post_norm: bool = True
    keeps: str | None = None
    """A tensor of the first layer that is an output too."""

    def model(self) -> onnx.ModelProto:
        shape = [self.batch, self.tokens, HIDDEN]
        nodes: list[onnx.NodeProto] = []
        weights: list[onnx.TensorProto] = []
        random = np.random.default_rng(0)

        def constant(values: np.ndarray) -> str:
            weights.append(numpy_helper.from_array(values, f"c{len(weights)}"))
            return weights[-1].name

        def number(value: float) -> str:
            return constant(np.array(value, np.float32))

        def node(op: str, *inputs: str, **attributes: object) -> str:
            name = f"{op}_{len(nodes)}"
            nodes.append(helper.make_node(op, list(inputs), [name], f"node_{name}", **attributes))
            return name

        def drawn(*axes: int) -> str:
            return constant(random.standard_normal(axes, np.float32) / np.float32(math.sqrt(axes[0])))

        def dense(tensor: str, width: int, out: int) -> str:
            return node("Add", drawn(out), node("MatMul", tensor, drawn(width, out)))

        def norm(tensor: str) -> str:
            return node("LayerNormalization", tensor, drawn(HIDDEN), drawn(HIDDEN), axis=-1)

        def split(tensor: str, perm: list[int]) -> str:
            sizes = constant(np.array([0, 0, self.heads, HIDDEN // self.heads]))
            return node("Transpose", node("Reshape", tensor, sizes), perm=perm)

        def activated(tensor: str) -> str:
            if self.gelu == "Relu":
                return node("Relu", tensor)
            phase = node("Erf", node("Div", tensor, number(math.sqrt(2))))
            return node("Mul", node("Mul", tensor, node("Add", phase, number(1))), number(0.5))

        state = norm("x")
        for _ in range(self.layers):
            query, key, value = (dense(state, HIDDEN, HIDDEN) for _ in range(3))
            query, value = (split(one, [0, 2, 1, 3]) for one in (query, value))
            if self.scaled == "scores":
                scores = node("Mul", node("MatMul", query, split(key, [0, 2, 3, 1])), number(self.scale))
            else:
                key = node("Transpose", split(key, [0, 2, 1, 3]), perm=[0, 1, 3, 2])
                query, key = (node("Mul", one, number(math.sqrt(self.scale))) for one in (query, key))
                scores = node("MatMul", query, key)
            if self.mask is not None:
                mask = (
                    "mask" if self.mask == "input" else constant(np.zeros((1, 1, 1, self.tokens), np.float32))
                )
                scores = node("Add", mask, scores)
            joined = node(
                "Transpose", node("MatMul", node("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3]
            )
            context = node("Reshape", joined, constant(np.array([0, 0, HIDDEN])))
            total = node("Add", dense(context, HIDDEN, HIDDEN), state)
            state = norm(total) if self.post_norm else total
            inner = activated(dense(state, HIDDEN, self.inner))
            total = node("Add", state, dense(inner, self.inner, HIDDEN))
            state = norm(total) if self.post_norm else total
        outputs = [state, *(name for name in [self.keeps] if name)]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        if self.mask == "input":
            inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 1, 1, self.tokens]))
        graph = helper.make_graph(nodes, "encoder", inputs, values, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_functions(model: onnx.ModelProto, batch: int, encoder: Encoder) -> onnx.ModelProto:
    """The plugins' nodes as what they compute, in FP32: (1, E, B·S, 1) in and out."""
    tokens, heads = encoder.tokens, encoder.heads

    def sizes(name: str, *axes: int) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value_ints=list(axes))

    attention = [
        sizes("apart", 3, heads, 64, batch, tokens),
        sizes("whole", 1, heads * 64, batch * tokens, 1),
        sizes("three", 1, 1, 1),
        helper.make_node("Reshape", ["qkv", "apart"], ["parts"]),
        helper.make_node("Split", ["parts", "three"], ["q5", "k5", "v5"], axis=0),
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["scale"], value_float=0.125),
    ]
    for letter, perm in (("q", [2, 0, 3, 1]), ("k", [2, 0, 1, 3]), ("v", [2, 0, 3, 1])):
        attention.append(helper.make_node("Squeeze", [f"{letter}5", "zero"], [f"{letter}4"]))
        attention.append(helper.make_node("Transpose", [f"{letter}4"], [letter], perm=perm))
    attention += [
        helper.make_node("MatMul", ["q", "k"], ["plain"]),
        helper.make_node("Mul", ["plain", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["share"], axis=-1),
        helper.make_node("MatMul", ["share", "v"], ["context"]),
        helper.make_node("Transpose", ["context"], ["turned"], perm=[1, 3, 0, 2]),
        helper.make_node("Reshape", ["turned", "whole"], ["out"]),
    ]
    norm = [helper.make_node("Constant", [], [name]) for name in ("gamma", "beta")]
    for one in norm:
        one.attribute.add(name="value_floats", ref_attr_name=one.output[0], type=onnx.AttributeProto.FLOATS)
    norm += [
        helper.make_node("Add", ["x", "skip"], ["total"]),
        helper.make_node("Transpose", ["total"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["last", "gamma", "beta"], ["normed"], axis=-1),
        helper.make_node("Transpose", ["normed"], ["out"], perm=[0, 3, 1, 2]),
    ]
    opset = [helper.make_opsetid("", 17)]
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = ["hidden_size", "num_heads", "dq_probs", "use_int8_scale_max"]
    both = ["plugin_version", "plugin_namespace"]
    copy.functions.extend(
        [
            helper.make_function(
                DOMAIN, "CustomQKVToContextPluginDynamic", ["qkv", "starts", "longest"], ["out"], attention,
                opset, attributes=[*known, *both],
            ),
            helper.make_function(
                DOMAIN, "CustomSkipLayerNormPluginDynamic", ["x", "skip"], ["out"], norm, opset,
                attributes=["beta", "gamma", *both],
            ),
        ]
    )  # fmt: skip
    return inliner.inline_local_functions(copy)
