"""The Q and DQ of INT8 tensors move to the caller, or it is said why not."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.graphs import model_of, value
from tests.support.typed_graphs import MISTAKES, SHAPE, constant, conv, file_of, in_half, quantised, run
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.model_file import ModelFile
from trtopt.recipe import read_io_request
from trtopt.rewrite.typed_io import typed_graph
from trtopt.rewrite.typed_io.typed_graph import move_quantization, type_graph


@pytest.mark.parametrize("transposed", [False, True])
def test_the_q_of_an_int8_input_moves_to_the_caller(transposed: bool) -> None:
    model = quantised(transposed=transposed)
    request = read_io_request({"x": "int8"}, {}, None)
    typing = type_graph(file_of(model), request)
    moved = move_quantization(typing.model, typing.tensors)
    (tensor,) = moved.tensors
    assert tensor.scale == 0.25
    assert "QuantizeLinear" not in {node.op_type for node in moved.model.proto.graph.node}
    levels = np.random.default_rng(3).integers(-128, 128, (2, 4, 4, 3) if transposed else (2, 3, 4, 4))
    found = run(moved.model.proto, levels.astype(np.int8))
    np.testing.assert_array_equal(found, run(model, levels.astype(np.float32) * np.float32(0.25)))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mistake", ["scale", "axis", "channels"])
def test_a_q_that_moves_with_a_mistake_is_refused(
    mistake: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised(transposed=True)
    typing = type_graph(file_of(in_half(model) if half else model), read_io_request({"x": "int8"}, {}, None))
    move = typed_graph._without_q

    def mistaken(made: ModelFile, name: str) -> float:
        scale = move(made, name)
        MISTAKES[mistake](made.proto.graph)
        return scale

    assert {item.error for item in move_quantization(typing.model, typing.tensors).checked} == {0.0}
    monkeypatch.setattr(typed_graph, "_without_q", mistaken)
    with pytest.raises(ModelError, match="output 'y' moved"):
        move_quantization(typing.model, typing.tensors)


def test_a_reader_of_the_input_s_shape_does_not_hold_its_q() -> None:
    nodes = (helper.make_node("Shape", ["x"], ["n"]), helper.make_node("Reshape", ["d", "n"], ["y"]))
    model = quantised()
    model.graph.node.extend(nodes)
    del model.graph.node[2:4]  # the convolution and what follows
    model.graph.output[0].CopyFrom(value("y", SHAPE))
    typing = type_graph(file_of(model), read_io_request({"x": "int8"}, {}, None))
    moved = move_quantization(typing.model, typing.tensors)
    levels = np.full((2, 3, 4, 4), 8, np.int8)
    np.testing.assert_array_equal(run(moved.model.proto, levels), levels.astype(np.float32) / 4)


def test_the_dq_of_an_int8_output_moves_to_the_caller() -> None:
    model = model_of(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        weights=[constant(np.float32(0.5), "s"), constant(np.int8(0), "z")],
    )
    typing = type_graph(file_of(model), read_io_request({"y": "int8"}, {}, None))
    moved = move_quantization(typing.model, typing.tensors)
    assert run(moved.model.proto, np.full((1, 4), 3.0, np.float32)).tolist() == [[6] * 4]


def test_the_dq_moves_past_the_transpose_of_an_nhwc_output() -> None:
    model = model_of(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        inputs=[value("x", SHAPE)],
        outputs=[value("y", SHAPE)],
        weights=[constant(np.float32(0.5), "s"), constant(np.int8(0), "z")],
    )
    typing = type_graph(file_of(model), read_io_request({"y": "int8:nhwc"}, {}, None))
    moved = move_quantization(typing.model, typing.tensors)
    x = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    np.testing.assert_array_equal(run(moved.model.proto, x), (x * 2).astype(np.int8).transpose(0, 2, 3, 1))


def test_a_q_in_the_branches_of_an_if_moves_and_one_whose_output_is_the_model_s_stays_named() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], [f"{name}q"]),
            helper.make_node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]),
        ]
        return helper.make_graph(nodes, name, [], [value(f"{name}d", SHAPE)])

    model = model_of(
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("t"), else_branch=branch("e")),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["levels"]),
        inputs=[value("x", SHAPE)],
        outputs=[value("y", SHAPE), value("levels", SHAPE, TensorProto.INT8)],
        weights=[constant(np.array(True), "flag"), constant(np.float32(0.5), "s"), constant(np.int8(0), "z")],
    )
    typing = type_graph(file_of(model), read_io_request({"x": "int8"}, {}, None))
    moved = move_quantization(typing.model, typing.tensors)
    levels = np.full((1, 3, 4, 4), 6, np.int8)
    np.testing.assert_array_equal(run(moved.model.proto, levels), levels.astype(np.float32) / 2)


@pytest.mark.parametrize(
    ("model", "words", "is_to_be_quantised"),
    [
        (conv(), r"node 'conv' \(Conv\) uses it as numbers", True),
        (quantised(other=True), r"node 'reader' \(Relu\) uses it as numbers", False),
        (quantised(first="LeakyRelu"), r"node 'first' \(LeakyRelu\) uses it as numbers", False),
    ],
)
def test_int8_of_an_input_that_is_used_as_numbers_is_refused(
    model: onnx.ModelProto, words: str, is_to_be_quantised: bool
) -> None:
    typing = type_graph(file_of(model), read_io_request({"x": "int8"}, {}, None))
    with pytest.raises(UsageError, match=words) as caught:
        move_quantization(typing.model, typing.tensors)
    assert ("quantise" in caught.value.remedy) == is_to_be_quantised


def test_an_int8_file_gets_another_layout_and_keeps_its_scale() -> None:
    typing = type_graph(file_of(quantised()), read_io_request({"x": "int8"}, {}, None))
    int8 = move_quantization(typing.model, typing.tensors)
    typing = type_graph(int8.model, read_io_request({"x": "int8:nhwc"}, {}, None))
    (tensor,) = move_quantization(typing.model, typing.tensors).tensors
    assert (tensor.scale, tensor.layout, tensor.model_dtype) == (0.25, "nhwc", "float32")
