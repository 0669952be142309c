"""Small ONNX models for tests, each of one or two nodes unless it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

Axes = Sequence[int | str | None]
OPSET = 17


def value(name: str, axes: Axes = ("N", 4), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A float input or output of shape [N, 4] unless told otherwise; None is an anonymous axis."""
    return helper.make_tensor_value_info(name, kind, list(axes))


def relu(source: str = "x", target: str = "y", name: str = "relu") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=name)


def add(left: str, right: str, target: str = "y", name: str = "add") -> onnx.NodeProto:
    return helper.make_node("Add", [left, right], [target], name=name)


def weight(name: str = "w", length: int = 4, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, [length], [1] * length)


def external(entries: dict[str, str], name: str = "w", length: int = 4) -> onnx.TensorProto:
    """A float weight of shape [length] that is kept in a file: entries are `location`, `offset`, `length`."""
    tensor = TensorProto()
    tensor.name = name
    tensor.data_type = TensorProto.FLOAT
    tensor.dims.append(length)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return tensor


def model_of(
    *nodes: onnx.NodeProto,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = OPSET,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """y = Relu(x) unless told otherwise; `domains` are imported at version 1 besides ONNX's own."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value("x")] if inputs is None else list(inputs),
        [value("y")] if outputs is None else list(outputs),
        list(weights),
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def relu_model() -> onnx.ModelProto:
    return model_of(relu())


def half_precision() -> onnx.ModelProto:
    """An FP16 graph between float32 ends: Cast, Add with an FP16 weight, Cast."""
    return model_of(
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16, name="to_half"),
        add("h", "w", "s"),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT, name="to_float"),
        weights=[weight(kind=TensorProto.FLOAT16)],
    )


def quantised() -> onnx.ModelProto:
    """An INT8 pair of Q and DQ with scale and zero point."""
    return model_of(
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="dequantise"),
        weights=[
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("zero", TensorProto.INT8, [], [0]),
        ],
    )


def branching(inner: onnx.NodeProto) -> onnx.ModelProto:
    """`If` on an input `flag`, with `inner` (from the outer x to `t`) in its then-branch."""
    taken = helper.make_graph([inner], "taken", [], [value("t")])
    other = helper.make_graph([relu("x", "e", "other")], "other", [], [value("e")])
    node = helper.make_node("If", ["flag"], ["y"], name="choose", then_branch=taken, else_branch=other)
    return model_of(node, inputs=[value("x"), value("flag", (), TensorProto.BOOL)])


def calling(*body: onnx.NodeProto) -> onnx.ModelProto:
    """One call of a function of the model's own, `local.Body`, with `body` from `a` to `b`."""
    function = helper.make_function(
        "local", "Body", ["a"], ["b"], list(body), [helper.make_opsetid("", OPSET)]
    )
    call = helper.make_node("Body", ["x"], ["y"], domain="local", name="call")
    return model_of(call, domains=["local"], functions=[function])
