"""Work on exported graphs: names, axis names, opset 17, blame, widening."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtopt.errors import UnsupportedOpError
from trtopt.export import graph
from trtopt.export.graph import lower_to_17


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s77", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_nodes_are_named_after_modules_and_tensors_after_nodes() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "val_3"], ["val_4"], name="node_1"),
        helper.make_node("Add", ["val_4", "head.bias"], ["val_5"], name="node_2"),
        helper.make_node("Add", ["val_5", "head.bias"], ["y"], name="node_3"),
    ]
    for node in nodes:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'head', 'linear']")
        node.metadata_props.add(
            key="pkg.torch.onnx.stack_trace",
            value='File "/home/me/net.py", line 7, in f\n  File "/lib/torch/nn/linear.py", line 1, in f',
        )
    weights = {"val_3": np.ones((4, 4), np.float32), "head.bias": np.ones(4, np.float32)}
    model = _model(nodes, weights)
    graph.rename(model, ["image"], ["logits"])
    assert [node.name for node in model.graph.node] == ["head/MatMul", "head/Add", "head/Add_1"]
    assert list(model.graph.node[0].input) == ["image", "head/MatMul:1"]
    assert list(model.graph.node[2].output) == ["logits"]
    assert {tensor.name for tensor in model.graph.initializer} == {"head/MatMul:1", "head.bias"}
    assert b"/home/me" not in model.SerializeToString()


def test_axis_symbols_get_their_names_within_expressions_too() -> None:
    model = _model([helper.make_node("Relu", ["x"], ["y"])], {})
    model.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["s77 + 1", "s770"]))
    graph.name_axes(model, {"x": ("batch", 4)})
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [dim.dim_param for dim in model.graph.value_info[0].type.tensor_type.shape.dim] == [
        "batch + 1",
        "s770",
    ]


def test_reductions_splits_and_pads_go_back_to_opset_17() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads", "", "axes"], ["p"], name="pad"),
        helper.make_node("Split", ["p"], ["a", "b"], axis=1, num_outputs=2, name="split"),
        helper.make_node("ReduceMean", ["a", "axes"], ["y"], keepdims=0, name="mean"),
    ]
    model = _model(nodes, {"pads": _ints(1, 1), "axes": _ints(1)})
    lower_to_17(model)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model), full_check=True)
    assert model.opset_import[0].version == 17
    (outputs,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.ones((2, 4), np.float32)})
    np.testing.assert_allclose(outputs, [2 / 3, 2 / 3])


def test_graphs_inside_nodes_are_lowered_too() -> None:
    """As `torch.cond` is exported; constants of the graph around it are known there."""
    arms = {
        f"{arm}_branch": helper.make_graph(
            [
                helper.make_node(kind, ["x", "axes"], [f"{arm}/r"], keepdims=0),
                helper.make_node("Shape", ["x"], [f"{arm}/s"], start=1),
                helper.make_node("Expand", [f"{arm}/r", f"{arm}/s"], [arm]),
            ],
            arm,
            [],
            [helper.make_tensor_value_info(arm, TensorProto.FLOAT, [None])],
        )
        for arm, kind in (("then", "ReduceMax"), ("else", "ReduceMin"))
    }
    model = _model([helper.make_node("If", ["c"], ["y"], **arms)], {"axes": _ints(0, 1), "c": np.array(True)})
    lower_to_17(model)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model), full_check=True)
    feed = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    (found,) = onnx.reference.ReferenceEvaluator(model).run(None, feed)
    assert found.tolist() == [7] * 4
    inner = [node for item in model.graph.node[0].attribute for node in item.g.node]
    assert [len(node.attribute) for node in inner if node.op_type == "Shape"] == [0, 0]


@pytest.mark.parametrize(
    ("attributes", "taken"), [({"start": 1}, [4]), ({"end": 1}, [3]), ({"start": -2, "end": -1}, [3])]
)
def test_a_part_of_a_shape_is_requested_in_a_way_that_8_6_reads(
    attributes: dict[str, int], taken: list[int]
) -> None:
    model = _model([helper.make_node("Shape", ["x"], ["y"], name="size", **attributes)], {})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    lower_to_17(model)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model), full_check=True)
    assert [(node.op_type, len(node.attribute)) for node in model.graph.node] == [("Shape", 0), ("Slice", 0)]
    (size,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.ones((3, 4), np.float32)})
    assert size.tolist() == taken


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (helper.make_node("Mish", ["x"], ["y"], name="m"), "does not exist in opset 17"),
        (helper.make_node("ReduceMax", ["x", "x"], ["y"], name="r"), "at run time"),
        (helper.make_node("Resize", ["x", "", "w"], ["y"], name="z", antialias=1), "'antialias'"),
        (
            helper.make_node("ScatterElements", ["x", "w", "x"], ["y"], name="s", reduction="max"),
            "max or min",
        ),
        (helper.make_node("LpPool", ["x"], ["y"], name="l", kernel_shape=[1], ceil_mode=1), "'ceil_mode'"),
    ],
)
def test_what_opset_17_cannot_say_is_refused_by_name(node: onnx.NodeProto, said: str) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        lower_to_17(_model([node], {"w": _ints(1)}))
    assert said in caught.value.problem
    assert repr(node.name) in caught.value.problem
    assert "--opset 18" in caught.value.remedy
