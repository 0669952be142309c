"""Fixed shapes: what is computed of them becomes a constant, and the function stays what it is there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import trtopt
from tests.rewrite_graphs import model
from tests.unit.rewrite.test_properties import _models
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import FixedBatchError, ModelError, UsageError
from trtopt.onnxio.model_file import load, runnable

_FLATTENED = """g (float[N,L,4] x, float[N,L] mask) => (y)
    {s = Shape(x) i = Constant<value_ints=[0]>() n = Gather<axis=0>(s, i) r = Constant<value_ints=[-1]>()
     t = Concat<axis=0>(n, r) f = Reshape(x, t) m = ReduceMax<keepdims=1>(mask) y = Mul(f, m)}"""


def _save(folder: Path, text: str) -> Path:
    onnx.save(model(text), folder / "in.onnx")
    return folder / "in.onnx"


def _lengths(values: object) -> list[list[object]]:
    return [
        [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in values
    ]


def test_what_is_computed_of_fixed_shapes_becomes_a_constant(tmp_path: Path) -> None:
    trace = trtopt.rewrite(
        _save(tmp_path, _FLATTENED), tmp_path / "o.onnx", batch=2, axes={"L": 3}, target="rtx"
    )
    made = onnx.load(tmp_path / "o.onnx")
    assert [node.op_type for node in made.graph.node] == ["Reshape", "ReduceMax", "Mul"]
    assert _lengths(made.graph.input) == [[2, 3, 4], [2, 3]]
    assert _lengths(made.graph.output) == [[2, 12]]
    assert trace.checked


def test_the_length_that_one_input_gives_an_axis_is_that_of_all(tmp_path: Path) -> None:
    trtopt.rewrite(_save(tmp_path, _FLATTENED), tmp_path / "o.onnx", shapes={"x": "Nx3x4"})
    assert _lengths(onnx.load(tmp_path / "o.onnx").graph.input) == [["N", 3, 4], ["N", 3]]
    trtopt.rewrite(_save(tmp_path, _FLATTENED), tmp_path / "o.onnx", shapes={"mask": "5x3"})
    assert _lengths(onnx.load(tmp_path / "o.onnx").graph.input) == [[5, 3, 4], [5, 3]]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"shapes": {"x": "1x3x4"}, "batch": 2}, "axis 'N'"),
        ({"shapes": {"x": "1x3x4", "mask": "1x4"}}, "axis 'L'"),
        ({"shapes": {"x": "1x3x5"}}, "shapes['x']"),
        ({"shapes": {"x": "1x3"}}, "shapes['x']"),
        ({"shapes": {"x": "Nx1x4,Nx2x4,Nx3x4"}}, "shapes['x']"),
        ({"axes": {"L": [1, 2, 3]}}, "axes['L']"),
        ({"axes": {"M": 3}}, "axes['M']"),
        ({"shapes": {"z": "1"}}, "shapes['z']"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_option(
    given: dict[str, object], option: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r".") as refused:
        trtopt.rewrite(_save(tmp_path, _FLATTENED), tmp_path / "o.onnx", **given)
    assert option in refused.value.problem
    assert not (tmp_path / "o.onnx").exists()


def test_a_batch_is_fixed_only_where_it_is_open(tmp_path: Path) -> None:
    with pytest.raises(FixedBatchError):
        trtopt.rewrite(_save(tmp_path, "g (float[2,4] x) => (y) {y = Relu(x)}"), tmp_path / "o.onnx", batch=3)


def test_shapes_that_the_model_does_not_run_at_are_refused(tmp_path: Path) -> None:
    text = "g (float[N,L] x) => (y) {s = Constant<value_ints=[-1,6]>() y = Reshape(x, s)}"
    with pytest.raises(ModelError, match="at the fixed shapes"):
        trtopt.rewrite(_save(tmp_path, text), tmp_path / "o.onnx", batch=1, axes={"L": 5})
    assert not (tmp_path / "o.onnx").exists()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(made=_models(), batch=st.integers(1, 3))
def test_a_frozen_model_computes_what_the_model_does_there(made: onnx.ModelProto, batch: int) -> None:
    assume(_lengths(made.graph.input)[0][0] == "N")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.onnx", Path(folder) / "out.onnx"
        onnx.save(made, source)
        trace = trtopt.rewrite(source, out, batch=batch, clean=True)
        assert all(isinstance(axis, int) for shape in _lengths(onnx.load(out).graph.input) for axis in shape)
        feed = {
            item.name: np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
            for item, shape in zip(
                onnx.load(out).graph.input, _lengths(onnx.load(out).graph.input), strict=True
            )
        }
        before, after = (Unoptimised(*runnable(load(file))).run(feed) for file in (source, out))
        # sums that cancel to zero move by all that they are with any rounding, and are put back
        assume(all(np.any(value) for value in before.values()))
        assert not trace.undone
        for name, value in before.items():
            assert value.shape == after[name].shape
            np.testing.assert_allclose(after[name].astype(float), value.astype(float), rtol=0.1, atol=0.1)
