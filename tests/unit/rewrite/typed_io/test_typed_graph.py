"""Types, layouts and normalisation in the graph: the same function of the converted input."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper

from tests.support.graphs import model_of, value
from tests.support.typed_graphs import (
    DTYPES,
    EQUAL,
    MISTAKES,
    NORMALISE,
    SHAPE,
    array,
    constant,
    conv,
    file_of,
    in_half,
    normalising,
    run,
    typed,
)
from trtopt.data.feeds import specs_of
from trtopt.errors import ModelError, UsageError
from trtopt.recipe import read_io_request
from trtopt.records.tensors import NO_REQUEST
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.typed_io import typed_graph
from trtopt.rewrite.typed_io.requested import type_specs
from trtopt.rewrite.typed_io.typed_graph import type_graph


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(["nchw", "nhwc"]),
    st.booleans(),
    st.sampled_from(["fp32", "fp16"]),
    st.sampled_from(["nchw", "nhwc"]),
    st.integers(0, 1),
)
def test_the_typed_graph_computes_the_same_of_the_converted_input(
    dtype: str, layout: str, normalises: bool, out_type: str, out_layout: str, pads: int
) -> None:
    model = conv(pads)
    made = typed(
        model,
        {"x": f"{dtype}:{layout}", "y": f"{out_type}:{out_layout}"},
        {"x": NORMALISE} if normalises else None,
    )
    onnx.checker.check_model(made, full_check=True)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 4)).astype(DTYPES[dtype])
    given_to_new = pixels.transpose(0, 2, 3, 1) if layout == "nhwc" else pixels
    converted = pixels.astype(np.float32)
    if normalises:
        mean, std = (
            np.array(numbers, np.float32).reshape(3, 1, 1)
            for numbers in ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))
        )
        converted = (converted - mean) / std
    wanted = run(model, converted)
    wanted = wanted.transpose(0, 2, 3, 1) if out_layout == "nhwc" else wanted
    found = run(made, np.ascontiguousarray(given_to_new))
    assert found.dtype == DTYPES[out_type]
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2e-3, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("pads", "normalise", "left"),
    [(0, NORMALISE, []), (1, NORMALISE, ["Sub"]), (1, EQUAL, ["Sub"]), (0, EQUAL, [])],
)
def test_normalisation_is_folded_where_padding_lets_it_and_its_factor_into_any_convolution(
    pads: int, normalise: str, left: list[str], tmp_path: Path
) -> None:
    onnx.save(model := conv(pads), tmp_path / "in.onnx")
    request = read_io_request({"x": "uint8:nhwc"}, {"x": normalise}, None)
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", io=request)
    made = onnx.load(tmp_path / "out.onnx")
    operators = [node.op_type for node in made.graph.node]
    assert [one for one in operators if one in ("Sub", "Mul", "Div", "Add", "Pad")] == left
    pixels = np.random.default_rng(1).integers(0, 256, (2, 4, 4, 3), np.uint8)
    mean, std = np.array([123.7, 116.3, 103.5] if normalise == NORMALISE else 127.5), [58.4, 57.1, 57.4]
    onnx.checker.check_model(made, full_check=True)
    floats = ((pixels - mean) / std).astype(np.float32).transpose(0, 3, 1, 2)
    wanted = run(model, np.ascontiguousarray(floats))  # its edges show what was padded with
    np.testing.assert_allclose(run(made, pixels), wanted, atol=1e-4)
    assert {item.ok for item in trace.checked} == {True}
    assert any("uint8, nhwc, normalised" in note for note in trace.notes)


def test_real_samples_in_the_new_form_take_part_in_the_check(tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (4, 4, 4, 3), np.uint8)
    np.savez(tmp_path / "pixels.npz", x=pixels)
    request = read_io_request({"x": "uint8:nhwc"}, {}, None)
    made = type_graph(file_of(conv()), request, data=tmp_path / "pixels.npz")
    assert "pixels.npz" in {item.feed for item in made.checked}
    onnx.save(conv(), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", io=request)
    assert not trace.applied
    assert not any("nothing was run" in note for note in trace.notes)


def test_the_input_inside_a_branch_is_the_converted_one() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "then", [], [value("n", SHAPE)])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["a"])], "else", [], [value("a", SHAPE)])
    model = model_of(
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
        inputs=[value("x", SHAPE)],
        outputs=[value("y", SHAPE)],
        weights=[constant(np.array(True), "flag")],
    )
    x = np.full((1, 4, 4, 3), 7, np.uint8)
    assert run(typed(model, {"x": "uint8:nhwc"}), x).tolist() == np.full((1, 3, 4, 4), -7.0).tolist()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mistake", ["axis", "channels", "means", "deviations"])
def test_a_typed_input_with_a_mistake_is_refused(
    mistake: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = in_half(conv(1)) if half else conv(1)
    normalise = "mean=123.7,116.3,103.5:std=58.4,57.1,47.4"
    request = read_io_request({"x": "uint8:nhwc"}, {"x": normalise}, None)
    add = typed_graph._type_input

    def mistaken(made: onnx.GraphProto, edit: Any) -> None:
        add(made, edit)
        MISTAKES[mistake](made)

    type_graph(file_of(model), request)
    monkeypatch.setattr(typed_graph, "_type_input", mistaken)
    with pytest.raises(ModelError, match="output 'y' moved"):
        type_graph(file_of(model), request)


def test_pixels_are_scaled_for_a_model_that_normalises_itself() -> None:
    made = typed(normalising(), {"x": "uint8:nhwc"}, {"x": "mean=0:std=255"})
    assert [node.op_type for node in made.graph.node].count("Sub") == 1  # its own
    pixels = np.random.default_rng(1).integers(0, 256, (2, 4, 4, 3), np.uint8)
    wanted = run(normalising(), (pixels / 255).astype(np.float32).transpose(0, 3, 1, 2))
    np.testing.assert_allclose(run(made, pixels), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("io", "normalize"),
    [({"x": "fp16"}, {}), ({"x": "uint8"}, {}), ({}, {"x": NORMALISE}), ({"x": "uint8:nhwc"}, {"x": EQUAL})],
)
def test_a_typed_file_is_not_typed_otherwise(io: dict[str, str], normalize: dict[str, str]) -> None:
    made = typed(conv(), {"x": "uint8:nhwc"}, {"x": NORMALISE})
    with pytest.raises(UsageError, match="typed before: input 'x': uint8, nhwc, normalised in the graph"):
        typed(made, io, normalize)


def test_a_typed_file_that_is_so_already_stays_and_keeps_what_it_is() -> None:
    request = read_io_request({"x": "uint8:nhwc"}, {}, None)
    made = typed(conv(), {"x": "uint8:nhwc"}, {"x": NORMALISE})
    again = type_graph(file_of(made), request)
    assert again.model.proto == made
    assert [one.mean for one in again.tensors] == [(123.7, 116.3, 103.5)]
    assert type_specs(specs_of(made), request, again.tensors) == specs_of(made)


def test_no_request_changes_nothing() -> None:
    model = conv()
    assert type_graph(file_of(model), NO_REQUEST).model.proto == model


@pytest.mark.parametrize(("opset", "io"), [(6, "uint8:nhwc"), (12, "bf16")])
def test_an_opset_that_lacks_what_the_new_type_needs_is_raised(opset: int, io: str) -> None:
    model = conv(1)
    model.opset_import[0].version = opset
    made = typed(model, {"x": io}, {"x": NORMALISE} if opset < 7 else None)
    assert made.opset_import[0].version == 13
    onnx.checker.check_model(made, full_check=True)


@pytest.mark.parametrize("io", [{"x": "fp16"}, {"x": "bf16"}, {"y": "fp16"}])
def test_scalars_get_another_type(io: dict[str, str]) -> None:
    scalar = model_of(
        helper.make_node("Abs", ["x"], ["y"]), inputs=[value("x", ())], outputs=[value("y", ())]
    )
    typed_model = type_graph(file_of(scalar), read_io_request(io, {}, None))
    assert [item.error for item in typed_model.checked] == [0.0]


def test_an_output_that_is_a_weight_gets_another_type() -> None:
    weight = array(1, 3, 4, 4)
    model = model_of(
        helper.make_node("Relu", ["x"], ["o"]),
        outputs=[value("o"), value("y", (1, 3, 4, 4))],
        weights=[constant(weight, "y")],
    )
    made = typed(model, {"y": "fp16:nhwc"})
    found = run(made, np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(found, weight.transpose(0, 2, 3, 1).astype(np.float16))


def test_an_output_that_its_new_type_does_not_hold_is_refused_unless_real_data_fits(tmp_path: Path) -> None:
    model = model_of(helper.make_node("Mul", ["x", "k"], ["y"]), weights=[constant(np.float32(1e6), "k")])
    request = read_io_request({"y": "fp16"}, {}, None)
    with pytest.raises(ModelError, match=r"--io y: the output reaches .*, beyond float16 \(seed 0"):
        type_graph(file_of(model), request)
    np.savez(tmp_path / "small.npz", x=np.full((2, 4), 1e-3, np.float32))
    assert type_graph(file_of(model), request, data=tmp_path / "small.npz").checked
    assert type_graph(file_of(model), read_io_request({"y": "bf16"}, {}, None)).checked


def test_data_of_the_users_verifies_a_model_that_no_random_length_fits(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of(
        product,
        inputs=[value("x", ("B", "S"))],
        outputs=[value("y", ("B", 4))],
        weights=[constant(array(11, 4), "w")],
    )
    np.savez(tmp_path / "real.npz", x=np.ones((2, 11), np.float16))
    request = read_io_request({"x": "fp16"}, {}, None)
    made = type_graph(file_of(model), request, data=tmp_path / "real.npz")
    assert {item.feed for item in made.checked} == {"real.npz"}
