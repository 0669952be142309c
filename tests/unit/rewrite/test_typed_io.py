"""Types, layouts and normalisation in the graph: the same function of the converted input, or a refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.support.graphs import model_of, value
from trtopt.data.feeds import specs_of
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.model_file import ModelFile
from trtopt.records.typed_io import NO_REQUEST, IoRequest, read_io_request
from trtopt.rewrite import typed_io
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.typed_io import check_formats, move_quantisation, type_graph, typed_specs
from trtopt.targets import target_named

FLOAT16 = TensorProto.FLOAT16
SHAPE = ("N", 3, 4, 4)
NORMALISE = "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"
DTYPES = {"fp32": np.float32, "fp16": np.float16, "uint8": np.uint8}


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def constant(values: Any, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def conv(pads: int = 0, *nodes: onnx.NodeProto, source: str = "x", weights: Any = ()) -> onnx.ModelProto:
    return model_of(
        *nodes,
        helper.make_node("Conv", [source, "w"], ["c"], name="conv", pads=[pads] * 4),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
        inputs=[value("x", SHAPE)],
        outputs=[value("y", ("N", 5, None, None))],
        weights=[constant(array(5, 3, 3, 3), "w"), *weights],
    )


def quantised(*, other: bool = False, scale: float = 0.25, transposed: bool = False) -> onnx.ModelProto:
    """x → Q → DQ → Conv; `other`: an output besides reads x. `transposed`: x is NHWC."""
    source = "t" if transposed else "x"
    nodes = [
        *([helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if transposed else ()),
        helper.make_node("QuantizeLinear", [source, "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
        *([helper.make_node("Relu", ["x"], ["o"], name="reader")] if other else ()),
    ]
    made = conv(1, *nodes, source="d", weights=[constant(np.float32(scale), "s"), constant(np.int8(0), "z")])
    if transposed:
        made.graph.input[0].CopyFrom(value("x", ("N", 4, 4, 3)))
    if other:
        made.graph.output.append(value("o", SHAPE))
    return made


def file_of(model: onnx.ModelProto) -> ModelFile:
    return ModelFile(model, Path(), external=False)


def typed(
    model: onnx.ModelProto, io: dict[str, str], normalize: dict[str, str] | None = None
) -> onnx.ModelProto:
    request = read_io_request(io, normalize or {}, None)
    return type_graph(file_of(model), request).model.proto


def run(model: onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return Unoptimised(model.SerializeToString()).run({"x": x})["y"]


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


EQUAL = "mean=127.5,127.5,127.5:std=58.4,57.1,57.4"


@pytest.mark.parametrize(
    ("pads", "normalise", "left"),
    [(0, NORMALISE, []), (1, NORMALISE, ["Sub"]), (1, EQUAL, ["Pad"]), (0, EQUAL, [])],
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


@pytest.mark.parametrize("transposed", [False, True])
def test_the_q_of_an_int8_input_moves_to_the_caller(transposed: bool) -> None:
    model = quantised(transposed=transposed)
    request = read_io_request({"x": "int8"}, {}, None)
    typing = type_graph(file_of(model), request)
    moved = move_quantisation(typing.model, typing.tensors)
    (tensor,) = moved.tensors
    assert tensor.scale == 0.25
    assert "QuantizeLinear" not in {node.op_type for node in moved.model.proto.graph.node}
    levels = np.random.default_rng(3).integers(-128, 128, (2, 4, 4, 3) if transposed else (2, 3, 4, 4))
    found = run(moved.model.proto, levels.astype(np.int8))
    np.testing.assert_array_equal(found, run(model, levels.astype(np.float32) * np.float32(0.25)))


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The convolution and all behind it in FP16, as `quantize` leaves what it does not quantise."""
    graph = model.graph
    (first,) = (place for place, node in enumerate(graph.node) if node.op_type == "Conv")
    graph.node.insert(first, helper.make_node("Cast", [graph.node[first].input[0]], ["h"], to=FLOAT16))
    graph.node[first + 1].input[0] = "h"
    (weights,) = (item for item in graph.initializer if item.name == "w")
    weights.CopyFrom(constant(numpy_helper.to_array(weights).astype(np.float16), "w"))
    graph.node[-1].output[0] = "half"
    graph.node.append(helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT))
    return model


def values_of(model: onnx.ModelProto, kind: str, change: Any) -> None:
    """Change the initializers of a kind, by the end of their names."""
    for item in model.graph.initializer:
        if item.name.endswith(kind):
            item.CopyFrom(constant(np.ascontiguousarray(change(numpy_helper.to_array(item))), item.name))


def transposed_wrong(model: onnx.ModelProto) -> None:
    (node,) = (node for node in model.graph.node if node.op_type == "Transpose")
    node.attribute[0].ints[:] = [0, 3, 2, 1]


MISTAKES: dict[str, Callable[[onnx.ModelProto], None]] = {
    "scale": lambda model: values_of(model, "s", lambda scale: scale * np.float32(1.01)),
    "axis": transposed_wrong,
    "channels": lambda model: values_of(model, "w", lambda weights: weights[:, ::-1]),
    "means": lambda model: values_of(model, "mean", lambda means: means[::-1]),
    "deviations": lambda model: values_of(model, "factor", lambda factors: factors[::-1]),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mistake", ["scale", "axis", "channels"])
def test_a_q_that_moves_with_a_mistake_is_refused(
    mistake: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised(transposed=True)
    typing = type_graph(file_of(in_half(model) if half else model), read_io_request({"x": "int8"}, {}, None))
    move = typed_io._without_q

    def mistaken(made: ModelFile, name: str) -> float:
        scale = move(made, name)
        MISTAKES[mistake](made.proto)
        return scale

    assert {item.error for item in move_quantisation(typing.model, typing.tensors).checked} == {0.0}
    monkeypatch.setattr(typed_io, "_without_q", mistaken)
    with pytest.raises(ModelError, match="output 'y' moved"):
        move_quantisation(typing.model, typing.tensors)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("mistake", ["axis", "channels", "means", "deviations"])
def test_a_typed_input_with_a_mistake_is_refused(
    mistake: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = in_half(conv(1)) if half else conv(1)
    normalise = "mean=123.7,116.3,103.5:std=58.4,57.1,47.4"
    request = read_io_request({"x": "uint8:nhwc"}, {"x": normalise}, None)
    add = typed_io._type_input

    def mistaken(made: onnx.ModelProto, edit: Any) -> None:
        add(made, edit)
        MISTAKES[mistake](made)

    type_graph(file_of(model), request)
    monkeypatch.setattr(typed_io, "_type_input", mistaken)
    with pytest.raises(ModelError, match="output 'y' moved"):
        type_graph(file_of(model), request)


def test_the_dq_of_an_int8_output_moves_to_the_caller() -> None:
    model = model_of(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        weights=[constant(np.float32(0.5), "s"), constant(np.int8(0), "z")],
    )
    typing = type_graph(file_of(model), read_io_request({"y": "int8"}, {}, None))
    moved = move_quantisation(typing.model, typing.tensors)
    assert run(moved.model.proto, np.full((1, 4), 3.0, np.float32)).tolist() == [[6] * 4]


def normalising() -> onnx.ModelProto:
    sub = helper.make_node("Sub", ["x", "m"], ["s"], name="sub")
    return conv(0, sub, source="s", weights=[constant(np.float32(1), "m")])


def scaling() -> onnx.ModelProto:
    mul = helper.make_node("Mul", ["x", "k"], ["s"], name="mul")
    return conv(0, mul, source="s", weights=[constant(np.float32(1 / 255), "k")])


def of_any_channels() -> onnx.ModelProto:
    shape = ("N", "C", 4, 4)
    relu = helper.make_node("Relu", ["x"], ["y"])
    return model_of(relu, inputs=[value("x", shape)], outputs=[value("y", shape)])


INTEGERS = model_of(
    helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT), inputs=[value("x", kind=TensorProto.INT64)]
)


@pytest.mark.parametrize(
    ("model", "io", "normalize", "words"),
    [
        (conv(), {"z": "fp16"}, {}, "no such tensor"),
        (conv(), {}, {"y": "mean=1:std=1"}, "is an output"),
        (conv(), {}, {"x": "mean=1,2:std=1,1"}, "2 means, and the input has 3 channels"),
        (conv(), {"y": "uint8"}, {}, "would cut off the fractions"),
        (conv(), {}, {"z": "mean=1:std=1"}, "--normalize z: no such tensor"),
        (normalising(), {}, {"x": "mean=1:std=1"}, "normalises it already, at node 'sub'"),
        (scaling(), {}, {"x": "mean=1:std=1"}, "normalises it already, at node 'mul'"),
        (of_any_channels(), {}, {"x": NORMALISE}, "3 means, and the input has a dynamic number of"),
        (of_any_channels(), {"x": "fp16:hwc8"}, {}, "hwc8 pads the channels, whose number 'C' is dynamic"),
        (model_of(helper.make_node("Relu", ["x"], ["y"])), {"x": "fp16:nhwc"}, {}, "has rank 2"),
        (INTEGERS, {"x": "uint8"}, {}, "used as numbers or indices"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    model: onnx.ModelProto, io: dict[str, str], normalize: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        typed(model, io, normalize)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (conv(), r"node 'conv' \(Conv\) uses it as numbers"),
        (quantised(other=True), r"node 'reader' \(Relu\) uses it as numbers"),
    ],
)
def test_int8_of_an_input_that_is_used_as_numbers_is_refused(model: onnx.ModelProto, words: str) -> None:
    typing = type_graph(file_of(model), read_io_request({"x": "int8"}, {}, None))
    with pytest.raises(UsageError, match=words):
        move_quantisation(typing.model, typing.tensors)


@pytest.mark.parametrize(
    ("target", "io", "in_engine", "words"),
    [
        ("8.6", "bf16", True, "8.6 has no bf16"),
        ("8.6", "fp16:hwc16", True, "8.6 has no fp16 in hwc16"),
        ("rtx", "uint8:chw4", True, "rtx has no uint8 in chw4"),
        ("10", "int8:chw16", False, "10 has no int8 in chw16"),  # nor has the build that would be advised
        ("10", "int8:chw4", False, "ONNX cannot express"),
    ],
)
def test_a_pair_that_a_target_does_not_have_is_refused(
    target: str, io: str, in_engine: bool, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check_formats(read_io_request({"x": io}, {}, None), target_named(target), in_engine=in_engine)
    assert "nhwc" in caught.value.remedy or "fp16" in caught.value.remedy


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
    assert typed_specs(specs_of(made), request, again.tensors) == specs_of(made)


def test_an_int8_file_gets_another_layout_and_keeps_its_scale() -> None:
    typing = type_graph(file_of(quantised()), read_io_request({"x": "int8"}, {}, None))
    int8 = move_quantisation(typing.model, typing.tensors)
    typing = type_graph(int8.model, read_io_request({"x": "int8:nhwc"}, {}, None))
    (tensor,) = move_quantisation(typing.model, typing.tensors).tensors
    assert (tensor.scale, tensor.layout, tensor.model_dtype) == (0.25, "nhwc", "float32")


def test_preprocessing_needs_one_image() -> None:
    with pytest.raises(UsageError, match="0 inputs of rank 4"):
        type_graph(file_of(model_of()), IoRequest(preprocess="imagenet"))


def test_no_request_changes_nothing() -> None:
    model = conv()
    assert type_graph(file_of(model), NO_REQUEST).model.proto == model
