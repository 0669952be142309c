"""What Q and DQ make of weights is what ONNX Runtime makes of them, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper, numpy_helper

from trtopt.device.ort.reference import Unoptimised
from trtopt.onnxio import model_file
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision import running as folding
from trtopt.precision.running import with_weights_dequantized

FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def quantised_weight(
    *,
    kind: int = TensorProto.INT8,
    floats: int = TensorProto.FLOAT,
    axis: int | None = 1,
    stored: bool = False,
    zero: int = 0,
    is_output: bool = False,
    seed: int = 0,
) -> ModelFile:
    """x · DQ(Q(w)) with a scale for each slice along `axis`; `stored` without the Q."""
    random = np.random.default_rng(seed)
    weight = (random.standard_normal((6, 4)) * 10 ** random.uniform(-3, 1)).astype(FLOATS[floats])
    size = () if axis is None else (weight.shape[axis],)
    scale = np.asarray(random.uniform(1e-3, 0.1, size)).astype(FLOATS[floats])
    narrow = random.integers(-128, 128, weight.shape).astype(np.int8)
    zeros = helper.make_tensor("zero", kind, size, np.full(size, zero).ravel())
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["q"], **_along(axis)),
        helper.make_node(
            "DequantizeLinear", ["n" if stored else "q", "scale", "zero"], ["dq"], **_along(axis)
        ),
        helper.make_node("Cast", ["dq"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
    ]
    stored_as = helper.make_tensor("n", kind, weight.shape, narrow.ravel() / (1 if kind == 3 else 64))
    graph = helper.make_graph(
        nodes[stored:],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]
        + ([helper.make_tensor_value_info("dq", floats, [6, 4])] if is_output else []),
        [
            *([stored_as] if stored else [numpy_helper.from_array(weight, "w")]),
            numpy_helper.from_array(scale, "scale"),
            zeros,
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model)
    return ModelFile(model, Path(), external=False)


def _along(axis: int | None) -> dict[str, int]:
    return {} if axis is None else {"axis": axis}


def answers(model: ModelFile) -> np.ndarray:
    """For rows that pick each of the weight's, so that no sum has an order."""
    run = Unoptimised(model.proto.SerializeToString())
    rows = np.eye(6, dtype=np.float32).reshape(3, 2, 6)
    return np.concatenate([run.run({"x": two})["y"] for two in rows])


def ops(model: ModelFile) -> list[str]:
    return [node.op_type for node in model.proto.graph.node]


@given(
    st.sampled_from([TensorProto.INT8, TensorProto.FLOAT8E4M3FN]),
    st.sampled_from([TensorProto.FLOAT, TensorProto.FLOAT16]),
    st.sampled_from([None, 0, 1, -1]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_constants_stand_for_q_and_dq_of_weights(
    kind: int, floats: int, axis: int | None, stored: bool, seed: int
) -> None:
    model = quantised_weight(kind=kind, floats=floats, axis=axis, stored=stored, seed=seed)
    folded = with_weights_dequantized(model)
    assert ops(folded) == ["Cast", "MatMul"]
    assert [item.name for item in folded.proto.graph.initializer] == ["dq"]
    np.testing.assert_array_equal(answers(folded), answers(model))


def saying(name: str, value: int) -> ModelFile:
    model = quantised_weight(kind=TensorProto.FLOAT8E4M3FN)
    model.proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
    return model


def unread() -> ModelFile:
    model = quantised_weight()
    model.proto.graph.node[2].input[0] = "w"
    return model


@pytest.mark.parametrize(
    "model",
    [quantised_weight(zero=3), quantised_weight(is_output=True), saying("saturate", 0), unread()],
)
def test_what_is_no_plain_weight_stays(model: ModelFile) -> None:
    assert with_weights_dequantized(model) is model


def test_attributes_that_say_the_usual_change_nothing() -> None:
    assert ops(with_weights_dequantized(saying("saturate", 1))) == ["Cast", "MatMul"]


def test_a_weight_that_an_input_may_replace_stays() -> None:
    model = quantised_weight()
    model.proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 4]))
    assert with_weights_dequantized(model) is model


def test_a_q_that_others_read_stays_for_them() -> None:
    model = quantised_weight()
    model.proto.graph.node.append(helper.make_node("Identity", ["q"], ["again"]))
    model.proto.graph.output.append(helper.make_tensor_value_info("again", TensorProto.INT8, [6, 4]))
    assert ops(with_weights_dequantized(model)) == ["QuantizeLinear", "Cast", "MatMul", "Identity"]


def test_what_takes_too_much_stays_and_a_spool_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantised_weight()
    monkeypatch.setattr(folding, "_MOST_HELD_BYTES", 95)
    assert with_weights_dequantized(model) is model
    monkeypatch.setattr(model_file, "SPOOLED_BYTES", 1)
    spooling = ModelFile(model.proto, Path(), external=False, spool=tmp_path)
    folded = with_weights_dequantized(spooling)
    (weight,) = folded.proto.graph.initializer
    assert weight.data_location == TensorProto.EXTERNAL
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) >= 96
