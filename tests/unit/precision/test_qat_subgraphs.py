"""Q/DQ of the main graph where subgraphs read what they quantise, or have names that they would take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.networks import Net, as_file
from trtopt.errors import UsageError
from trtopt.onnxio.graph_walk import name_apart
from trtopt.precision.calibrate import QuantizationJob
from trtopt.precision.compare import open_model
from trtopt.precision.existing_qdq import take_out
from trtopt.precision.qdq import qdq_format_for
from trtopt.precision.quantize import QuantizedModel, quantize_graph

SHAPE = [2, 32, 8, 8]
X = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}


def branch(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    """A branch of an If; its output is that of its last node."""
    end = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), "branch", [], [end])


def node(op: str, reads: Sequence[str], makes: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(reads), [makes], makes, **attributes)  # type: ignore[arg-type]


def trained(choice: onnx.NodeProto, *outputs: str) -> onnx.ModelProto:
    """x → Q → DQ → Conv `h`, and besides it `choice`, which may read `dq`."""
    net = Net(x=SHAPE)
    scale, zero = net.constant("s", value=np.float32(0.03)), net.constant("z", value=np.int8(0))
    net.constant("flag", value=np.array(True))
    net.node("DequantizeLinear", "dq", net.node("QuantizeLinear", "q", "x", scale, zero), scale, zero)
    net.conv("h", "dq", 32, 32)
    net._nodes.append(choice)
    return net.model("h", *outputs)


def either(name: str, *nodes: onnx.NodeProto) -> onnx.NodeProto:
    """An If of which `nodes` run, and not −dq."""
    other = branch(node("Neg", ["dq"], f"{name}.other"))
    return node("If", ["flag"], name, then_branch=branch(*nodes), else_branch=other)


def run(model: onnx.ModelProto) -> QuantizedModel:
    return quantize_graph(as_file(model), QuantizationJob("int8", qdq=qdq_format_for("int8", "8.6")))


def test_what_subgraphs_read_behind_a_pair_they_read_in_front_of_it() -> None:
    made = run(trained(either("y", either("inner", node("Add", ["dq", "h"], "sum"))), "y"))
    onnx.checker.check_model(made.model.proto, full_check=True)
    got = open_model(made.model).run(X)
    np.testing.assert_array_equal(got["y"], X["x"] + got["h"])
    assert "0 edges added, 1 taken out" in made.notes[0]


def test_a_subgraph_s_own_tensor_of_that_name_stays() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], "on"), node("Neg", ["dq"], "next")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("dq", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    file = as_file(trained(node("Loop", ["", "flag", "h"], "y", body=body), "y"))
    name_apart(file.proto.graph)
    take_out(file)
    (loop,) = (item for item in file.proto.graph.node if item.op_type == "Loop")
    body = loop.attribute[0].g
    assert body.node[1].input[0] == body.input[2].name != "x"


def test_a_subgraph_whose_own_tensor_is_called_like_the_pair_s_source_reads_both() -> None:
    choice = either("y", node("Add", ["x", "dq"], "sum"))
    taken = next(item.g for item in choice.attribute if item.name == "then_branch")
    taken.initializer.append(helper.make_tensor("x", TensorProto.FLOAT, [1], [5.0]))
    file = as_file(trained(choice, "y"))
    name_apart(file.proto.graph)
    take_out(file)
    (choice,) = (item for item in file.proto.graph.node if item.op_type == "If")
    taken = next(item.g for item in choice.attribute if item.name == "then_branch")
    assert list(taken.node[0].input) == [taken.initializer[0].name, "x"]


def test_a_pair_that_is_an_output_and_read_in_a_subgraph_gives_both_the_tensor_in_front_of_it() -> None:
    got = open_model(
        run(trained(either("y", either("inner", node("Add", ["dq", "h"], "sum"))), "y", "dq")).model
    ).run(X)
    np.testing.assert_array_equal(got["dq"], X["x"])
    np.testing.assert_array_equal(got["y"], X["x"] + got["h"])


def test_a_subgraph_that_reads_between_q_and_dq_is_refused() -> None:
    cast = node("Cast", ["q"], "c", to=TensorProto.FLOAT)
    with pytest.raises(UsageError, match=r"node 'y' \(If\) reads 'q' between Q and DQ"):
        run(trained(either("y", cast), "y"))


def test_new_names_are_none_that_a_subgraph_has() -> None:
    relu, neg = node("Relu", ["h"], "x_quantized"), node("Neg", ["x_quantized"], "x_dequantized")
    made = run(trained(either("y", relu, neg), "y"))
    made_names = {name for item in made.model.proto.graph.node for name in item.output}
    assert {"x_quantized_1", "x_dequantized_1"} <= made_names
    assert open_model(made.model).run(X)["y"].shape == tuple(SHAPE)
