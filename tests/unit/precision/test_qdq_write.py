"""Q/DQ as they are written: form, types, axes, values; the graph around them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.support.networks import Net, as_file, residual_block
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.compare import open_model
from trtopt.precision.placement.draft import PlacementOptions, Precision, View
from trtopt.precision.placement.place import place
from trtopt.precision.qdq import (
    QdqFormat,
    Scales,
    held_by_half,
    packed,
    qdq_format_for,
    quantize_weight,
    scale_of,
    weight_scale,
    write,
)
from trtopt.precision.quantize import fit_opset

MAPS = ["N", 32, 8, 8]


def emitted(net: Net, *outputs: str, form: QdqFormat, amax: float = 4.0) -> onnx.ModelProto:
    model = net.model(*outputs)
    fit_opset(model, form)
    plan = place(View(model), PlacementOptions(form.precision))
    scales = Scales(dict.fromkeys(plan.tensors, amax) | plan.fixed)
    write(as_file(model), plan, scales, form)
    onnx.checker.check_model(model, full_check=True)
    return model


def constant(model: onnx.ModelProto, name: str) -> NDArray[np.float32]:
    return numpy_helper.to_array(next(item for item in model.graph.initializer if item.name == name))


def chain_into(model: onnx.ModelProto, node: str, index: int) -> list[onnx.NodeProto]:
    """The Q and DQ in front of one input of a node, the nearest last."""
    maker = {name: item for item in model.graph.node for name in item.output}
    tensor = next(item for item in model.graph.node if item.name == node).input[index]
    chain: list[onnx.NodeProto] = []
    while tensor in maker and maker[tensor].op_type in ("QuantizeLinear", "DequantizeLinear"):
        chain.insert(0, maker[tensor])
        tensor = maker[tensor].input[0]
    return chain


# ── arithmetic ──────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(0, 2.0**100, width=32), st.sampled_from(["int8", "fp8", "int4"]))
def test_a_scale_is_above_zero_and_reaches_amax(amax: float, precision: Precision) -> None:
    scale = float(scale_of(amax, precision))
    assert scale > 0
    if amax > 1e-30:
        assert scale * {"int8": 127, "fp8": 448, "int4": 7}[precision] == pytest.approx(amax, rel=1e-6)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_rounding_errs_by_half_a_step_at_most(axis: int | None) -> None:
    weight = np.random.default_rng(1).standard_normal((256, 24)).astype(np.float32)
    scale = weight_scale(weight, axis, "int8")
    assert scale.shape == (() if axis is None else (weight.shape[axis],))
    steps = np.expand_dims(scale, 1 - axis) if axis is not None else scale
    narrow = quantize_weight(weight, scale, axis, "int8").astype(np.float32)
    assert np.abs(narrow * steps - weight).max() <= 0.5 * steps.max() * 1.0001


def test_blocks_of_int4_are_clipped_where_that_errs_less() -> None:
    weight = np.random.default_rng(1).standard_normal((256, 24)).astype(np.float32)
    weight[128:, 0] = np.arange(128) % 15 - 7  # exact as it is: nothing to gain
    scale = weight_scale(weight, 0, "int4", 128)
    largest = scale_of(np.abs(weight).reshape(2, 128, 24).max(axis=1), "int4")

    def errors(steps: np.ndarray) -> np.ndarray:
        narrow = quantize_weight(weight, steps, 0, "int4", 128).astype(np.float32)
        return np.square(narrow * np.repeat(steps, 128, axis=0) - weight).reshape(2, 128, 24).sum(axis=1)

    assert scale.shape == (2, 24)
    assert scale[1, 0] == 1
    assert errors(scale)[1, 0] == 0
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7):
        assert (errors(scale) <= errors(largest * np.float32(share)) * 1.0001).all()
    assert errors(scale).sum() < 0.8 * errors(largest).sum()


def test_int4_values_are_packed_in_pairs_the_first_in_the_low_half() -> None:
    assert packed(np.array([[1, -1, 7], [-8, 0, 2]], np.int8), "int4") == bytes([0xF1, 0x87, 0x20])
    assert packed(np.array([3], np.int8), "int4") == bytes([0x03])


# ── form ────────────────────────────────────────────────────────────────────────────────────────────────


def test_for_8_6_weights_stay_fp32_with_q_and_dq_and_biases_are_left_alone() -> None:
    net = Net(x=MAPS)
    model = emitted(net, residual_block(net, "b", "x"), form=qdq_format_for("int8", "8.6"))
    assert [item.version for item in model.opset_import] == [17]
    quantize, dequantize = chain_into(model, "b.c1", 1)
    assert quantize.op_type == "QuantizeLinear"
    assert quantize.input[0] == "b.c1.w"
    assert constant(model, "b.c1.w").dtype == np.float32
    for node in (quantize, dequantize):
        assert [(item.name, item.i) for item in node.attribute] == [("axis", 0)]
        assert constant(model, node.input[1]).shape == (32,)
        assert constant(model, node.input[1]).dtype == np.float32
        zero = constant(model, node.input[2])
        assert zero.dtype == np.int8
        assert not zero.any()
    activation = chain_into(model, "b.c1", 0)
    assert [node.op_type for node in activation] == ["QuantizeLinear", "DequantizeLinear"]
    assert constant(model, activation[0].input[1]) == np.float32(4 / 127)
    assert chain_into(model, "b.c1", 2) == []


def test_a_convolution_tells_its_kernel_size_once_its_kernel_comes_out_of_a_dq() -> None:
    net = Net(x=MAPS)
    first = net.conv("first", "x", 32, 32)  # which does not tell it: ONNX allows that
    weight = net.constant("w", 16, 32, 1, 1)
    model = emitted(
        net, net.node("Conv", "told", first, weight, kernel_shape=[1, 1]), form=qdq_format_for("int8", "8.6")
    )
    sizes = {
        node.name: [list(item.ints) for item in node.attribute if item.name == "kernel_shape"]
        for node in model.graph.node
        if node.op_type == "Conv"
    }
    assert sizes == {"first": [[3, 3]], "told": [[1, 1]]}


def test_for_8_6_the_rest_may_run_in_fp16_and_newer_targets_are_told_nothing(tmp_path: Path) -> None:
    for target, types in (("8.6", {"float16", "float32", "int8"}), ("11", {"float32", "int8"})):
        net = Net(x=MAPS)
        model = emitted(net, residual_block(net, "b", "x"), form=qdq_format_for("int8", target))
        (tmp_path / "q.onnx").write_bytes(model.SerializeToString())
        assert types <= set(read_onnx(tmp_path / "q.onnx").types)
        assert ("float16" in types) == ("float16" in read_onnx(tmp_path / "q.onnx").types)


def test_one_pair_serves_the_skip_and_the_next_convolution() -> None:
    net = Net(x=MAPS)
    model = emitted(net, residual_block(net, "b", "x"), form=qdq_format_for("int8", "8.6"))
    reading = [node.name for node in model.graph.node if "x_dequantized" in node.input]
    assert reading == ["b.c1", "b.add"]
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) == 2 + 2


def test_readers_without_q_dq_keep_reading_the_float_tensor() -> None:
    net = Net(x=MAPS)
    net.node("Sigmoid", "gate", net.node("Relu", "r", net.conv("a", "x", 32, 32)))
    model = emitted(net, net.conv("b", "r", 32, 32), "gate", form=qdq_format_for("int8", "8.6"))
    assert next(node for node in model.graph.node if node.name == "gate").input[0] == "r"
    assert chain_into(model, "b", 0) != []


@pytest.mark.parametrize(
    ("precision", "stored", "opset", "element"),
    [
        ("int8", True, 19, onnx.TensorProto.INT8),
        ("fp8", True, 19, onnx.TensorProto.FLOAT8E4M3FN),
        ("int4", False, 21, onnx.TensorProto.INT4),
    ],
)
def test_stored_weights_are_narrow_and_have_a_dq_alone(
    precision: Precision, stored: bool, opset: int, element: int
) -> None:
    net = Net(x=["N", 4, 256])
    model = emitted(net, net.linear("fc", "x", 256, 64), form=qdq_format_for(precision, "11", stored=stored))
    assert model.opset_import[0].version == opset
    (dequantize,) = chain_into(model, "fc", 1)
    weight = next(item for item in model.graph.initializer if item.name == dequantize.input[0])
    assert weight.data_type == element
    assert list(weight.dims) == [256, 64]
    assert "fc.w" not in {item.name for item in model.graph.initializer}
    attributes = {item.name: item.i for item in dequantize.attribute}
    assert attributes == ({"axis": 0, "block_size": 128} if precision == "int4" else {"axis": 1})
    assert constant(model, dequantize.input[1]).shape == ((2, 64) if precision == "int4" else (64,))


def test_stored_and_unstored_weights_compute_the_same() -> None:
    feed = {"x": np.random.default_rng(0).standard_normal((2, 32, 8, 8)).astype(np.float32)}
    for precision in ("int8", "fp8"):
        found = []
        for stored in (False, True):
            net = Net(x=MAPS)
            form = qdq_format_for(precision, "11", stored=stored)
            model = emitted(net, net.conv("c", "x", 32, 32), form=form)
            found.append(open_model(as_file(model)).run(feed)["c"])
        assert np.array_equal(*found)


@pytest.mark.parametrize(("precision", "outputs"), [("fp8", 1024), ("int4", 2048)])
def test_large_stored_weights_lie_in_the_spool_and_run(
    precision: Precision, outputs: int, tmp_path: Path
) -> None:
    net = Net(x=["N", 1024])
    form = qdq_format_for(precision, "11", stored=True)
    model = net.model(net.linear("fc", "x", 1024, outputs))
    fit_opset(model, form)
    plan = place(View(model), PlacementOptions(precision))
    file = replace(as_file(model), spool=tmp_path)
    write(file, plan, Scales(dict.fromkeys(plan.tensors, 4.0)), form)
    assert len(list(tmp_path.iterdir())) == 1
    feed = {"x": np.random.default_rng(0).uniform(-1, 1, (2, 1024)).astype(np.float32)}
    exact = open_model(as_file(net.model("fc"))).run(feed)["fc"]
    found = open_model(file).run(feed)["fc"]
    assert np.square(found - exact).mean() < np.square(exact).mean() / 20


def test_the_written_graph_is_the_float_one_to_within_its_steps() -> None:
    net = Net(x=MAPS)
    end = residual_block(net, "b", "x")
    feed = {"x": np.random.default_rng(0).uniform(-4, 4, (2, 32, 8, 8)).astype(np.float32)}
    exact = open_model(as_file(net.model(end, "b.r1"))).run(feed)
    model = net.model(end)
    plan = place(View(model), PlacementOptions("int8"))
    peaks = {name: float(np.abs((feed | exact)[name]).max()) for name in plan.tensors}
    write(as_file(model), plan, Scales(peaks), qdq_format_for("int8", "8.6"))
    error = open_model(as_file(model)).run(feed)[end] - exact[end]
    assert np.square(error).mean() < np.square(exact[end]).mean() / 1000


# ── weights behind other nodes, shared weights ──────────────────────────────────────────────────────────


def test_a_transpose_between_a_weight_and_its_product_is_folded_and_others_keep_the_table() -> None:
    net = Net(x=["N", 4, 32])
    table = net.constant("table", 100, 32)
    picked = net.node("Gather", "picked", table, net.constant("indices", value=np.array([1, 2, 3, 4])))
    turned = net.node("Transpose", "turned", table, perm=[1, 0])
    net.node("MatMul", "logits", net.node("Add", "added", "x", picked), turned)
    model = emitted(net, "logits", form=qdq_format_for("int8", "8.6"))
    quantize, _ = chain_into(model, "logits", 1)
    assert np.array_equal(constant(model, quantize.input[0]), constant(model, "table").T)
    assert constant(model, quantize.input[1]).shape == (100,)
    assert "Transpose" not in {node.op_type for node in model.graph.node}


def test_transposes_in_front_of_a_weight_are_folded_in_their_order() -> None:
    net = Net(x=MAPS)
    weight = net.constant("w", 3, 16, 3, 32)
    once = net.node("Transpose", "once", weight, perm=[1, 3, 0, 2])
    net.node("Conv", "y", "x", net.node("Transpose", "twice", once, perm=[0, 1, 3, 2]), pads=[1] * 4)
    model = emitted(net, "y", form=qdq_format_for("int8", "8.6"))
    name = chain_into(model, "y", 1)[0].input[0]
    wanted = constant(net.model("y"), "w").transpose(1, 3, 0, 2).transpose(0, 1, 3, 2)
    assert np.array_equal(constant(model, name), wanted)


def test_a_weight_read_along_two_axes_has_a_pair_for_each() -> None:
    net = Net(x=["N", 32])
    weight = net.constant("w", 32, 32)
    left = net.node("Gemm", "left", "x", weight)
    right = net.node("Gemm", "right", "x", weight, transB=1)
    model = emitted(net, left, right, form=qdq_format_for("int8", "8.6"))
    for node, axis in (("left", 1), ("right", 0)):
        quantize, dequantize = chain_into(model, node, 1)
        assert [item.i for pair in (quantize, dequantize) for item in pair.attribute] == [axis, axis]
        largest = np.abs(constant(model, "w")).max(axis=1 - axis)
        assert np.allclose(constant(model, quantize.input[1]), largest / 127, rtol=1e-6)


def test_a_weight_read_twice_along_one_axis_has_one_pair() -> None:
    net = Net(x=MAPS)
    weight, bias = net.constant("w", 32, 32, 1, 1), net.constant("b", 32)
    net.node("Conv", "second", net.node("Conv", "first", "x", weight, bias), weight, bias)
    model = emitted(net, "second", form=qdq_format_for("int8", "8.6"))
    assert chain_into(model, "first", 1) == chain_into(model, "second", 1)


# ── opset and target ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("precision", "target"), [("fp8", "8.6"), ("int4", "8.6")])
def test_a_target_without_the_precision_is_refused(precision: Precision, target: str) -> None:
    with pytest.raises(UsageError, match=f"8.6 has no {precision.upper()}"):
        qdq_format_for(precision, target)


def test_stored_weights_and_unknown_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="omit --store-weights"):
        qdq_format_for("int8", "8.6", stored=True)
    with pytest.raises(UsageError, match="unknown target '9'"):
        qdq_format_for("int8", "9")


def test_an_opset_that_the_target_does_not_read_is_refused() -> None:
    net = Net(opset=18, x=MAPS)
    with pytest.raises(ModelError, match="opset 18 is newer than the target reads"):
        fit_opset(net.model(net.conv("c", "x", 32, 32)), qdq_format_for("int8", "8.6"))


def test_raising_the_opset_converts_operators_that_changed() -> None:
    net = Net(opset=13, x=MAPS)
    net.node("ReduceMean", "mean", net.conv("c", "x", 32, 32), axes=[2, 3])
    raised = net.model("mean")
    fit_opset(raised, qdq_format_for("int8", "11"))
    assert raised.opset_import[0].version == 19
    onnx.checker.check_model(raised, full_check=True)


def test_records_of_quantisation_are_strict() -> None:
    from trtopt.records.precision import Decision

    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"node": "a", "op": "Conv", "quantised": 1}', type=Decision)


# ── scales in FP16 ──────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(2.0**-40, 2.0**100, width=32))
def test_scales_for_fp16_graphs_are_held_exactly_and_clip_nothing(scale: float) -> None:
    exact = np.float32(scale)
    found = held_by_half(np.asarray(exact))
    assert found >= exact
    if exact <= 65504:
        assert np.float32(np.float16(found)) == found
        assert found <= max(float(exact) * (1 + 2**-10), float(exact) + 2**-24)


def test_only_strongly_typed_targets_get_such_scales() -> None:
    amax = 127 * 0.1
    assert qdq_format_for("int8", "8.6").scale(amax) == np.float32(0.1)
    assert qdq_format_for("int8", "11").scale(amax) == np.float32(
        np.nextafter(np.float16(0.1), np.float16(1))
    )
