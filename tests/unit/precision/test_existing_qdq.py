"""Models that bring Q/DQ along: what is kept, completed, cleaned, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.networks import Net, as_file, edges, residual_block
from trtopt.errors import UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.model_file import load
from trtopt.precision.calibrate import QuantizationJob
from trtopt.precision.compare import open_model
from trtopt.precision.qdq import qdq_format_for
from trtopt.precision.quantize import QuantizedModel, quantize_graph

MAPS = ["N", 32, 8, 8]
INT8 = np.int8(0)


def pair(net: Net, tensor: str, scale: float | np.ndarray, zero: np.ndarray = INT8, **axis: int) -> str:
    """A Q and a DQ behind a tensor, named `TENSOR.dq`."""
    tag = f"{tensor}.{len(net._nodes)}"
    s = net.constant(f"{tag}.s", value=np.asarray(scale, np.float32))
    z = net.constant(f"{tag}.z", value=np.broadcast_to(zero, np.shape(scale)).copy())
    q = net.node("QuantizeLinear", f"{tag}.q", tensor, s, z, **axis)
    return net.node("DequantizeLinear", f"{tag}.dq", q, s, z, **axis)


def trained_conv(net: Net, name: str, x: str, scale: float, zero: np.ndarray = INT8) -> str:
    weight = pair(net, net.constant(f"{name}.w", 32, 32, 3, 3), np.full(32, 0.01), axis=0)
    return net.node(
        "Conv", name, pair(net, x, scale, zero), weight, net.constant(f"{name}.b", 32), pads=[1] * 4
    )


def run(
    model: onnx.ModelProto, precision: str = "int8", target: str | None = None, **material: object
) -> QuantizedModel:
    target = target or ("8.6" if precision == "int8" else "10")
    form = qdq_format_for(precision, target)  # type: ignore[arg-type]
    return quantize_graph(as_file(model), QuantizationJob(precision, qdq=form, **material))  # type: ignore[arg-type]


def trained_block(zero: np.ndarray = INT8) -> onnx.ModelProto:
    """A residual block as training leaves it: pairs on convolutions' inputs, none on the skip."""
    net = Net(x=MAPS)
    hidden = net.node("Relu", "r", trained_conv(net, "c1", "x", 0.02, zero))
    net.node("Add", "add", trained_conv(net, "c2", hidden, 0.03, zero), "x")
    return net.model("add")


def scale_of(made: QuantizedModel, tensor: str) -> float:
    """The scale of the Q that reads a tensor."""
    constants = {item.name: item for item in made.model.proto.graph.initializer}
    node = next(
        node for node in made.model.proto.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == tensor
    )  # fmt: skip
    return float(onnx.numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])


def test_pairs_are_kept_with_their_scales_and_the_missing_skip_takes_its_tensor_s() -> None:
    made = run(trained_block())
    assert edges(made.plan) == {("x", "c1"), ("r", "c2"), ("x", "add")}
    assert scale_of(made, "x") == pytest.approx(0.02)
    assert scale_of(made, "r") == pytest.approx(0.03)
    assert scale_of(made, "c1.w") == pytest.approx(0.01)
    assert sum(node.op_type == "QuantizeLinear" for node in made.model.proto.graph.node) == 4
    assert "1 edges added, 0 taken out" in made.notes[0]
    onnx.checker.check_model(made.model.proto, full_check=True)


def test_scales_of_many_channels_are_read_from_their_file(tmp_path: Path) -> None:
    net = Net(x=["N", 4, 32])
    zeros = np.zeros(4096, np.int8)
    weight = pair(net, net.constant("w", 32, 4096), np.linspace(0.01, 0.02, 4096), zeros, axis=1)
    onnx.save(net.model(net.node("MatMul", "fc", pair(net, "x", 0.02), weight)), tmp_path / "m.onnx")
    asked = QuantizationJob("int8", qdq=qdq_format_for("int8", "8.6"))
    made = quantize_graph(load(tmp_path / "m.onnx"), asked)
    assert [(place.node, place.axis) for place in made.plan.weights] == [("fc", 1)]
    net = Net(x=["N", 4, 32])
    weight = pair(net, net.constant("w", 32, 4096), np.linspace(0.01, 0.02, 4096), zeros + np.int8(3), axis=1)
    onnx.save(net.model(net.node("MatMul", "fc", pair(net, "x", 0.02), weight)), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="a zero point that is not 0"):
        quantize_graph(load(tmp_path / "m.onnx"), asked)


@pytest.mark.parametrize(("axis", "is_told"), [(0, False), (1, True)])
def test_scales_along_the_input_channels_are_kept_and_reported(axis: int, is_told: bool) -> None:
    net = Net(x=MAPS)
    weight = pair(net, net.constant("w", 16, 32, 3, 3), np.full([16, 32][axis], 0.01), axis=axis)
    net.node("Conv", "y", pair(net, "x", 0.02), weight, pads=[1] * 4)
    made = run(net.model("y"))
    assert [place.axis for place in made.plan.weights] == [axis]
    told = "1 weights have scales along another axis than their output channels', such as that of 'y'"
    assert any(told in note for note in made.notes) == is_told


def test_layers_that_training_left_in_float_stay_there() -> None:
    net = Net(x=MAPS)
    plain = net.conv("plain", trained_conv(net, "c1", "x", 0.02), 32, 32)
    made = run(net.model(plain))
    assert edges(made.plan) == {("x", "c1")}
    assert [item.reason for item in made.plan.decisions if item.node == "plain"] == [
        "the model's own Q/DQ leave it out"
    ]


def test_doubled_pairs_and_pairs_on_the_main_branch_go() -> None:
    net = Net(x=MAPS)
    first = trained_conv(net, "c1", pair(net, "x", 0.02), 0.02)
    net.node("Add", "add", pair(net, first, 0.05), "x")
    made = run(net.model("add"))
    assert edges(made.plan) == {("x", "c1"), ("x", "add")}
    assert sum(node.op_type == "QuantizeLinear" for node in made.model.proto.graph.node) == 2


def test_a_transpose_between_a_weight_s_dq_and_its_product_is_folded() -> None:
    net = Net(x=["N", 4, 32])
    weight = pair(net, net.constant("w", 64, 32), np.linspace(0.01, 0.02, 64), axis=0)
    turned = net.node("Transpose", "turned", weight, perm=[1, 0])
    net.node("MatMul", "fc", pair(net, "x", 0.02), turned)
    made = run(net.model("fc"))
    assert {node.op_type for node in made.model.proto.graph.node} == {
        "QuantizeLinear", "DequantizeLinear", "MatMul",
    }  # fmt: skip
    (place,) = made.plan.weights
    assert place.axis == 1
    onnx.checker.check_model(made.model.proto, full_check=True)


@pytest.mark.parametrize(("axis", "planned"), [(None, None), (0, 0), (1, 1)])
def test_a_transpose_in_front_of_a_weight_s_pair_is_folded(axis: int | None, planned: int | None) -> None:
    net = Net(x=["N", 4, 32])
    turned = net.node("Transpose", "turned", net.constant("w", 64, 32), perm=[1, 0])
    scale, along = np.float32(0.01), {}
    if axis is not None:
        scale, along = np.linspace(0.01, 0.02, [32, 64][axis], dtype=np.float32), {"axis": axis}
    net.node("MatMul", "fc", pair(net, "x", 0.02), pair(net, turned, scale, **along))
    made = run(net.model("fc"))
    assert edges(made.plan) == {("x", "fc")}
    assert [place.axis for place in made.plan.weights] == [planned]
    assert "Transpose" not in {node.op_type for node in made.model.proto.graph.node}


def reshaped(op: str, was: tuple[int, ...], axis: int | None, **attributes: int) -> Net:
    """A product of [N, 32] with a weight that is reshaped behind its pair, to [32, 48]."""
    net = Net(x=["N", 32])
    scale = np.float32(0.01) if axis is None else np.linspace(0.01, 0.02, was[axis], dtype=np.float32)
    weight = pair(net, net.constant("w", *was), scale, **({} if axis is None else {"axis": axis}))
    shape = {"Reshape": [32, -1], "Squeeze": [0], "Unsqueeze": [0]}.get(op)
    more = [] if shape is None else [net.constant("shape", value=np.array(shape))]
    moved = net.node(op, "moved", weight, *more, **attributes)
    net.node("MatMul", "fc", pair(net, "x", 0.02), moved)
    return net


@pytest.mark.parametrize(
    ("op", "was", "axis", "planned"),
    [
        ("Reshape", (48, 32), None, None),
        ("Reshape", (32, 6, 8), 0, 0),
        ("Reshape", (4, 8, 48), 2, 1),
        ("Flatten", (32, 4, 12), 0, 0),
        ("Squeeze", (1, 32, 48), -1, 1),
        ("Unsqueeze", (32, 48), 1, 2),
    ],
)
def test_a_reshape_between_a_weight_s_dq_and_its_product_is_folded(
    op: str, was: tuple[int, ...], axis: int | None, planned: int | None
) -> None:
    model = reshaped(op, was, axis).model("fc")
    made = run(model)
    assert [(place.node, place.axis) for place in made.plan.weights] == [("fc", planned)]
    assert op not in {node.op_type for node in made.model.proto.graph.node}
    assert "0 edges added, 0 taken out" in made.notes[0]
    x = {"x": np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)}
    wanted, got = (open_model(file).run(x)["fc"] for file in (as_file(model), made.model))
    np.testing.assert_array_equal(got, wanted)


def test_a_weight_s_pair_is_told_to_be_lost_where_a_reshape_tears_its_channels() -> None:
    made = run(reshaped("Reshape", (48, 32), 0).model("fc"))
    assert made.plan.weights == ()
    assert "0 edges added, 1 taken out" in made.notes[0]


def test_a_turned_weight_that_is_an_output_too_stays() -> None:
    model = reshaped("Reshape", (48, 32), None).model("fc", "moved")
    assert "moved" in {name for node in run(model).model.proto.graph.node for name in node.output}


def test_pairs_that_no_rule_would_place_are_kept() -> None:
    net = Net(x=["N", 4, 32, 32])
    net.node("MatMul", "product", pair(net, "x", 0.02), pair(net, "x", 0.04))
    made = run(net.model("product"))
    assert edges(made.plan) == {("x", "product")}
    assert sum(node.op_type == "QuantizeLinear" for node in made.model.proto.graph.node) == 2


@pytest.mark.parametrize("zeros", [True, False])
def test_weights_stored_as_int8_and_biases_as_int32_become_floats_again(zeros: bool) -> None:
    net = Net(x=MAPS)
    numbers = np.random.default_rng(0).integers(-127, 128, (32, 32, 1, 1), np.int8)
    steps = np.linspace(0.01, 0.02, 32, dtype=np.float32)
    s = net.constant("s", value=steps)
    zero = [net.constant("z", value=np.zeros(32, np.int8))] if zeros else []
    weight = net.node("DequantizeLinear", "w.dq", net.constant("w", value=numbers), s, *zero, axis=0)
    bias = net.node(
        "DequantizeLinear", "b.dq", net.constant("b", value=np.arange(32, dtype=np.int32)), s, axis=0
    )
    net.node("Conv", "c", pair(net, "x", 0.02), weight, bias)
    model = net.model("c")
    x = {"x": np.random.default_rng(1).standard_normal((2, 32, 8, 8)).astype(np.float32)}
    made = run(model)
    assert [node.op_type for node in made.model.proto.graph.node].count("DequantizeLinear") == 2
    assert [(place.node, place.axis) for place in made.plan.weights] == [("c", 0)]
    wanted, got = (open_model(file).run(x)["c"] for file in (as_file(model), made.model))
    np.testing.assert_array_equal(got, wanted)
    onnx.checker.check_model(made.model.proto, full_check=True)


@pytest.mark.parametrize("again", [0.02, 0.01])
def test_one_stored_constant_under_two_scales_is_two_weights(again: float) -> None:
    net = Net(x=["N", 4, 32])
    numbers = np.random.default_rng(0).integers(-127, 128, (32, 32), np.int8)
    held, zero = net.constant("w", value=numbers), net.constant("z", value=INT8)
    scales = [
        net.constant(f"s{value}{at}", value=np.float32(value)) for at, value in enumerate((0.01, again))
    ]
    first, second = (net.node("DequantizeLinear", f"{scale}.dq", held, scale, zero) for scale in scales)
    x = pair(net, "x", 0.02)
    net.node("Add", "y", net.node("MatMul", "one", x, first), net.node("MatMul", "two", x, second))
    model = net.model("y")
    made = run(model)
    assert [place.node for place in made.plan.weights] == ["one", "two"]
    feed = {"x": np.random.default_rng(1).standard_normal((2, 4, 32)).astype(np.float32)}
    wanted, got = (open_model(file).run(feed)["y"] for file in (as_file(model), made.model))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(made.model.proto, full_check=True)


def test_a_type_may_be_reported_by_q_s_attribute_and_dq_s_zero_point_be_left_out() -> None:
    net = Net(21, x=["N", 4, 32])
    scale = net.constant("s", value=np.float32(0.02))
    weight = pair(net, net.constant("w", 32, 64), np.linspace(0.01, 0.02, 64), axis=-1)
    q = net.node("QuantizeLinear", "q", "x", scale, output_dtype=int(TensorProto.INT8))
    net.node("MatMul", "fc", net.node("DequantizeLinear", "dq", q, scale), weight)
    made = run(net.model("fc"), target="10")
    assert edges(made.plan) == {("x", "fc")}
    assert [place.axis for place in made.plan.weights] == [1]


def test_pairs_between_a_layer_and_its_activation_go() -> None:
    net = Net(x=MAPS)
    first = pair(net, trained_conv(net, "c1", "x", 0.02), 0.03)
    gate = net.node("Sigmoid", "gate", first)
    swish = net.node("Mul", "swish", first, pair(net, gate, 1 / 127))
    second = trained_conv(net, "c2", swish, 0.03)
    total = net.node("Add", "add", pair(net, second, 0.05), pair(net, swish, 0.03))
    net.node("Relu", "r", pair(net, total, 0.04))
    made = run(net.model("r"))
    assert edges(made.plan) == {("x", "c1"), ("swish", "c2"), ("swish", "add")}
    assert "0 edges added, 5 taken out" in made.notes[0]


def test_what_lacks_a_range_is_reported_where_there_is_no_data() -> None:
    net = Net(x=MAPS)
    main = trained_conv(net, "c1", "x", 0.02)
    net.node("Add", "add", main, net.node("Tanh", "other", "x"))
    made = run(net.model("add"))
    assert edges(made.plan) == {("x", "c1")}
    assert "1 more tensors should carry Q/DQ, such as 'other'" in made.notes[1]


def test_an_excluded_layer_loses_the_pairs_that_training_gave_it() -> None:
    job = QuantizationJob("int8", exclude=("c2",), qdq=qdq_format_for("int8", "8.6"))
    made = quantize_graph(as_file(trained_block()), job)
    assert edges(made.plan) == {("x", "c1")}
    assert {weight.node for weight in made.plan.weights} == {"c1"}


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        (np.uint8(0), "quantises to UINT8"),
        (np.uint8(128), "quantises to UINT8"),
        (np.int8(3), "a zero point that is not 0"),
    ],
)
def test_unsigned_and_asymmetric_pairs_are_refused(zero: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        run(trained_block(zero))
    assert "quantise the float model" in caught.value.remedy


def test_another_precision_than_the_model_s_is_refused() -> None:
    with pytest.raises(UsageError, match="carries INT8 Q/DQ already, and FP8 is requested"):
        quantize_graph(
            as_file(trained_block()),
            QuantizationJob("fp8", qdq=qdq_format_for("fp8", "11")),
        )


def test_a_scale_of_zero_and_a_computed_one_are_refused() -> None:
    net = Net(x=MAPS)
    net.node("Relu", "r", pair(net, "x", 0.0))
    with pytest.raises(UsageError, match="not above 0"):
        run(net.model("r"))
    net = Net(x=MAPS, s=[])
    zero = net.constant("z", value=INT8)
    net.node("DequantizeLinear", "dq", net.node("QuantizeLinear", "q", "x", "s", zero), "s", zero)
    with pytest.raises(UsageError, match="computes its scale at run time"):
        run(net.model("dq"))


def test_blocks_of_int4_are_refused() -> None:
    net = Net(21, x=["N", 4, 64])
    narrow = net.constant("w", value=np.ones((64, 32), numpy_dtype("int4")))
    scale = net.constant("s", value=np.full((2, 32), 0.1, np.float32))
    weight = net.node("DequantizeLinear", "dq", narrow, scale, axis=0, block_size=32)
    net.node("MatMul", "fc", "x", weight)
    with pytest.raises(UsageError, match="its weight is stored in a narrow type"):
        run(net.model("fc"), "int4")


def test_integer_operators_between_q_and_dq_are_refused() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
            helper.make_node("MaxPool", ["q"], ["p"], "pool", kernel_shape=[2, 2]),
            helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"], "dq"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, MAPS)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]),
            helper.make_tensor("z", TensorProto.INT8, [], [0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UsageError, match="'pool' \\(MaxPool\\) reads 'q' between Q and DQ"):
        run(model)


def test_a_quantised_output_without_a_dq_is_refused() -> None:
    net = Net(x=MAPS)
    scale, zero = net.constant("s", value=np.float32(0.1)), net.constant("z", value=INT8)
    net.node("QuantizeLinear", "y", trained_conv(net, "c", "x", 0.02), scale, zero)
    with pytest.raises(UsageError, match=r"output 'y' is what node 'y' \(QuantizeLinear\) makes"):
        run(net.model("y"))


def test_a_stored_weight_that_is_an_output_too_is_refused() -> None:
    net = Net(x=["N", 32])
    held, scale = (
        net.constant("w", value=np.ones((32, 32), np.int8)),
        net.constant("s", value=np.float32(0.1)),
    )
    net.node("MatMul", "y", pair(net, "x", 0.02), net.node("DequantizeLinear", "dq", held, scale))
    model = net.model("y")
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.INT8, [32, 32]))
    with pytest.raises(UsageError, match=r"output 'w' is what node 'dq' \(DequantizeLinear\) reads"):
        run(model)


@pytest.mark.parametrize("alone", [True, False])
def test_pairs_of_onnx_runtime_s_own_domain_are_refused(alone: bool) -> None:
    net = Net(x=MAPS)
    x = net.conv("c", "x", 32, 32) if alone else trained_conv(net, "c", "x", 0.02)
    scale, zero = net.constant("s", value=np.float32(0.1)), net.constant("z", value=INT8)
    net.node("DequantizeLinear", "dq", net.node("QuantizeLinear", "q", x, scale, zero), scale, zero)
    model = net.model("dq")
    for node in model.graph.node[-2:]:
        node.domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UsageError, match=r"node 'q' is a QuantizeLinear of com\.microsoft") as caught:
        run(model)
    assert "UseQDQContribOps" in caught.value.remedy


def test_several_scales_of_an_activation_are_refused_unless_they_are_equal() -> None:
    net = Net(x=MAPS)
    net.conv("c", pair(net, "x", np.linspace(0.01, 0.05, 32), axis=1), 32, 32)
    with pytest.raises(UsageError, match="the Q/DQ of activation 'x' has 32 scales") as caught:
        run(net.model("c"))
    assert "one scale an activation" in caught.value.remedy
    net = Net(x=MAPS)
    net.conv("c", pair(net, "x", np.full(32, 0.02), axis=1), 32, 32)
    assert scale_of(run(net.model("c")), "x") == pytest.approx(0.02)


def test_a_float_model_without_data_is_refused_with_the_ways_to_give_some() -> None:
    net = Net(x=MAPS)
    with pytest.raises(UsageError, match="needs data") as caught:
        run(net.model(residual_block(net, "b", "x")))
    for way in ("--data", "--table", "--random-data"):
        assert way in caught.value.remedy
