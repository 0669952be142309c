"""When a result is too inaccurate to be used without a look at it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import accuracy_alarms
from trtopt.precision.compare import Deviation
from trtopt.records.precision import OutputDifference
from trtopt.rewrite.rewrite import rewrite_model

SOUND = OutputDifference(output="y", values=8, cosine=0.99, sqnr_db=20.0, max_abs=0.1)


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({}, None),
        ({"sqnr_db": None}, None),
        ({"sqnr_db": 19.9}, "output 'y': SQNR 19.9 dB is below 20 dB"),
        ({"cosine": 0.9899}, "output 'y': cosine 0.9899 is below 0.99"),
        ({"nonfinite": 3}, "output 'y': 3 of 8 values are NaN or infinite"),
        ({"sqnr_db": -3.0, "cosine": 0.1, "integer": True}, None),
    ],
)
def test_an_alarm_is_raised_below_the_limits_and_for_what_is_no_number(
    change: dict[str, float], alarm: str | None
) -> None:
    assert accuracy_alarms([msgspec.structs.replace(SOUND, **change)]) == ((alarm,) if alarm else ())


def test_values_that_are_nan_in_both_models_are_counted_although_they_agree() -> None:
    difference = Deviation("y")
    both = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    difference.add(both, both)
    result = difference.result()
    assert (result.mismatched, result.nonfinite, result.integer) == (0, 2, False)
    indices = Deviation("k")
    indices.add(np.array([3, 1]), np.array([3, 2]))
    assert indices.result().integer


@pytest.mark.parametrize(
    ("values", "is_sound"),
    [
        ([1.0, 2.0], True),
        ([1.0, np.nan], False),
        ([1.0, np.inf], False),
        ([1.0, -np.inf], False),
        ([0.0, -np.inf], True),  # a mask
        ([np.inf], True),  # a limit
        ([np.nan], False),
        ([[-np.inf, -np.inf], [1.0, 2.0]], True),  # a table of biases, one row of which masks
        ([[-np.inf, 3.0], [1.0, 2.0]], False),
        ([[-np.inf, -np.inf], [1.0, np.inf]], False),
        ([[-np.inf, -np.inf], [1.0, np.nan]], False),
    ],
)
def test_weights_may_be_infinite_only_as_masks_and_limits(
    values: list[object], is_sound: bool, tmp_path: Path
) -> None:
    weight = onnx.numpy_helper.from_array(np.array(values, np.float32), "w")
    graph = onnx.helper.make_graph([], "g", [], [], [weight])
    alarms = weight_alarms(ModelFile(onnx.helper.make_model(graph), tmp_path, external=False))
    expected = "1 weight holds NaN or infinity, such as 'w': export the model from an intact checkpoint"
    assert alarms == (() if is_sound else (expected,))


def test_a_rewrite_warns_of_weights_that_are_no_numbers(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.array([1.0, np.nan], np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    (alarm,) = rewrite_model(tmp_path / "m.onnx", tmp_path / "out.onnx", target="10").alarms
    assert alarm.startswith("1 weight holds NaN or infinity, such as 'w'")
