"""A request that does not fit the target or the graph is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.graphs import model_of, value
from tests.support.typed_graphs import NORMALISE, SHAPE, constant, conv, file_of, normalising, typed
from trtopt.errors import UsageError
from trtopt.recipe import read_io_request
from trtopt.records.tensors import IoRequest, TypedTensor
from trtopt.rewrite.typed_io.requested import check_formats, preset_for, record, recorded_in
from trtopt.rewrite.typed_io.typed_graph import type_graph
from trtopt.targets import target_named


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


def returning_its_input() -> onnx.ModelProto:
    made = conv()
    made.graph.output.append(value("x", SHAPE))
    return made


def of_a_sequence() -> onnx.ModelProto:
    made = model_of(helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0), inputs=[])
    made.graph.input.append(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, ["N", 4]))
    return made


DOUBLES = model_of(
    inputs=[value("x", kind=TensorProto.DOUBLE)], outputs=[value("y", kind=TensorProto.DOUBLE)]
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
        (DOUBLES, {"x": "fp32"}, {}, "'x' is float64\n"),
        (returning_its_input(), {"x": "fp16"}, {}, "both an input and an output"),
        (of_a_sequence(), {"x": "fp16"}, {}, "is no tensor but a sequence"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    model: onnx.ModelProto, io: dict[str, str], normalize: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        typed(model, io, normalize)
    assert caught.value.remedy


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


def own(*nodes: onnx.NodeProto, **weights: Any) -> onnx.ModelProto:
    """A convolution behind the model's own preprocessing of x to s."""
    return conv(0, *nodes, source="s", weights=[constant(values, name) for name, values in weights.items()])


def own_norm(mean: float) -> onnx.ModelProto:
    of_channels = {name: np.full(3, values, np.float32) for name, values in (("a", 1), ("m", mean), ("v", 4))}
    return own(
        helper.make_node("BatchNormalization", ["x", "a", "a", "m", "v"], ["s"], name="own"), **of_channels
    )


@pytest.mark.parametrize(
    "model",
    [
        own_norm(5.0),
        own(
            helper.make_node("Clip", ["x", "low"], ["c"]),
            helper.make_node("Sub", ["c", "m"], ["s"], name="own"),
            low=np.float32(0),
            m=np.float32(1),
        ),
        own(
            helper.make_node("Split", ["x"], ["b", "g"], axis=1),
            helper.make_node("Add", ["m", "g"], ["s"], name="own"),
            m=np.float32(1),
        ),
        own(
            helper.make_node("Reshape", ["m", "shape"], ["r"]),
            helper.make_node("Div", ["x", "r"], ["s"], name="own"),
            m=np.ones(3, np.float32),
            shape=np.array([3, 1, 1]),
        ),
    ],
)
def test_other_spellings_of_normalisation_are_seen(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="normalises it already, at node 'own'"):
        typed(model, {}, {"x": NORMALISE})


def test_a_norm_whose_data_was_normalised_is_no_second_normalisation() -> None:
    typed(own_norm(0.1), {}, {"x": NORMALISE})


def test_preprocessing_needs_one_image() -> None:
    with pytest.raises(UsageError, match="0 inputs of rank 4"):
        type_graph(file_of(model_of()), IoRequest(preprocess="imagenet"))


# ── what a file records ───────────────────────────────────────────────────────────────────────────────────


def test_a_file_does_not_claim_a_format_that_only_engines_have() -> None:
    typing = type_graph(file_of(conv()), read_io_request({"x": "fp16:hwc8"}, {}, None))
    assert [one.layout for one in typing.tensors] == ["hwc8"]
    assert [one.layout for one in recorded_in(typing.model.proto)] == ["nchw"]


def test_metadata_on_an_input_of_no_type_is_ignored() -> None:
    made = typed(conv(), {"x": "fp16"})
    made.graph.input[0].ClearField("type")
    assert recorded_in(made) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"std": (1.0, 0.0, 1.0)},
        {"mean": (1.0,)},
        {"scale": -1.0},
        {"layout": "nchw4"},
        {"role": "output"},
        {"dtype": "float32"},
    ],
)
def test_metadata_that_cannot_be_true_is_ignored(change: dict[str, Any]) -> None:
    made = typed(conv(), {"x": "fp16"}, {"x": NORMALISE})
    (said,) = recorded_in(made)
    fields = {name: getattr(said, name) for name in said.__struct_fields__}
    record(made, [TypedTensor(**fields | change)])
    assert recorded_in(made) == ()


def test_preprocessing_is_in_the_units_of_the_input() -> None:
    pixels, floats = (preset_for("x", "imagenet", dtype) for dtype in ("uint8", "float16"))
    assert pixels.mean == pytest.approx((123.675, 116.28, 103.53))
    assert pixels.std == pytest.approx((58.395, 57.12, 57.375))
    assert floats.mean == (0.485, 0.456, 0.406)
