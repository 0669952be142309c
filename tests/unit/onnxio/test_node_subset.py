"""Any nodes of a model make a model that runs, and that computes what the whole one does."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.support.graphs import model_of, value
from trtopt.device.ort.reference import Arrays, Unoptimised
from trtopt.onnxio.extraction import constant_tensors, subset_of

UNARY = ("Relu", "Neg", "Tanh", "Shape", "Identity")


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Chains and joins over an input and a weight, with shapes that are read on the way, and branches."""
    nodes: list[onnx.NodeProto] = []
    floats = ["x", "w"]
    for index in range(draw(st.integers(2, 8))):
        one, other = draw(st.sampled_from(floats)), draw(st.sampled_from(floats))
        match draw(st.sampled_from(["unary", "add", "split", "shape", "if"])):
            case "unary":
                nodes.append(helper.make_node(draw(st.sampled_from(UNARY[:3])), [one], [f"t{index}"]))
            case "add":
                nodes.append(helper.make_node("Add", [one, other], [f"t{index}"]))
            case "split":
                nodes.append(helper.make_node("Split", [one], [f"t{index}", f"u{index}"], axis=1))
                nodes.append(helper.make_node("Concat", [f"u{index}", f"t{index}"], [f"c{index}"], axis=1))
                floats.append(f"c{index}")
                continue
            case "shape":
                nodes.append(helper.make_node("Shape", [one], [f"s{index}"]))
                nodes.append(helper.make_node("Reshape", [other, f"s{index}"], [f"t{index}"]))
            case _:
                then = helper.make_graph(
                    [helper.make_node("Neg", [one], ["b"])], "then", [], [value("b", (1, 4))]
                )
                other_branch = helper.make_graph(
                    [helper.make_node("Abs", [other], ["b"])], "else", [], [value("b", (1, 4))]
                )
                nodes.append(
                    helper.make_node("If", ["yes"], [f"t{index}"], then_branch=then, else_branch=other_branch)
                )
        floats.append(f"t{index}")
    last = floats[-1]
    weights = [
        numpy_helper.from_array(np.ones((1, 4), np.float32), "w"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    return model_of(*nodes, inputs=[value("x", (1, 4))], outputs=[value(last, (1, 4))], weights=weights)


def run(model: onnx.ModelProto, names: list[str], feed: Arrays) -> Arrays:
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return Unoptimised(whole.SerializeToString()).run(feed)


@settings(max_examples=60, deadline=None)
@given(models(), st.data())
def test_any_nodes_compute_what_the_whole_model_does(model: onnx.ModelProto, data: st.DataObject) -> None:
    feed: Arrays = {"x": np.array([[1, -2, 3, -4]], np.float32)}
    names = [name for node in model.graph.node for name in node.output]
    values = feed | run(model, names, feed)
    constants = constant_tensors(model.graph, fixed_shapes=True)
    ends = {
        name: numpy_helper.from_array(array, name)
        if name in constants
        else helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in values.items()
    }
    places = st.integers(0, len(model.graph.node) - 1)
    kept = data.draw(st.sets(places, min_size=1))
    part = subset_of(model, kept, ends)
    assert part is not None
    assert part.graph.output
    onnx.checker.check_model(part, full_check=True)
    assert [node.output for node in part.graph.node] == [
        model.graph.node[place].output for place in sorted(kept)
    ]
    assert not constants & {item.name for item in part.graph.input}
    got = Unoptimised(part.SerializeToString()).run(
        {item.name: values[item.name] for item in part.graph.input}
    )
    for name, array in got.items():
        np.testing.assert_allclose(array, values[name])


def test_nodes_that_begin_with_an_unknown_tensor_are_no_model() -> None:
    model = model_of(helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"]))
    assert subset_of(model, {1}, {"x": value("x")}) is None


def test_drawn_values_and_open_shapes_are_no_constants() -> None:
    model = model_of(
        helper.make_node("RandomNormal", [], ["r"], shape=[4]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Neg", ["w"], ["n"]),
        helper.make_node("Add", ["r", "n"], ["y"]),
        weights=[helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])],
    )
    assert constant_tensors(model.graph, fixed_shapes=False) == {"w", "n"}
    assert constant_tensors(model.graph, fixed_shapes=True) == {"w", "n", "s"}
