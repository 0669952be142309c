"""A part of a model computes what the model computes there."""

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
from trtopt.data.feeds import seeded
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import InvalidModelError, UsageError
from trtopt.onnxio.half_emulation import is_low
from trtopt.onnxio.model_file import load, runnable
from trtopt.rewrite.equivalence import bound, error_between

_TWO = """g (float[N,4] x, float[N,4] mask) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}>
    {a = Relu(x) b = Add(a, w) c = Mul(b, mask) y = Neg(c)}"""
_BRANCHES = """g (float[N,4] x, bool c) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}>
    {a = Relu(x) b = Abs(x)
     d = If (c) <then_branch = t () => (float[N,4] u) {u = Add(a, w)},
                 else_branch = e () => (float[N,4] v) {v = Neg(b)}>
     y = Exp(d)}"""


def _extract(folder: Path, text: str, **cut: list[str]) -> onnx.ModelProto:
    onnx.save(model(text), folder / "in.onnx")
    trtopt.extract(folder / "in.onnx", folder / "part.onnx", **cut)
    return onnx.load(folder / "part.onnx")


def _names(values: object) -> list[str]:
    return [value.name for value in values]


def test_a_part_has_its_own_weights_types_and_shapes(tmp_path: Path) -> None:
    part = _extract(tmp_path, _TWO, inputs=["a"], outputs=["b"])
    assert [node.op_type for node in part.graph.node] == ["Add"]
    assert _names(part.graph.initializer) == ["w"]
    (value,) = part.graph.input
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] == ["N", 4]


def test_without_ends_the_model_s_own_are_meant(tmp_path: Path) -> None:
    part = _extract(tmp_path, _TWO, outputs=["b"])
    assert _names(part.graph.input) == ["x"]  # nothing of it reads the mask
    part = _extract(tmp_path, _TWO, inputs=["c"])
    assert (_names(part.graph.input), _names(part.graph.output)) == (["c"], ["y"])


def test_a_model_s_input_that_is_its_output_too_is_no_end(tmp_path: Path) -> None:
    part = _extract(tmp_path, "g (float[N,4] x) => (float[N,4] y, float[N,4] x) {y = Relu(x)}", inputs=["x"])
    assert _names(part.graph.output) == ["y"]


def test_a_node_may_make_an_input_of_the_part_and_more(tmp_path: Path) -> None:
    text = "g (float[N,4] x) => (float[N,2] y) {a, b = Split<axis = 1>(x) y = Add(a, b)}"
    part = _extract(tmp_path, text, inputs=["a", "x"])
    assert _names(part.graph.input) == ["a", "x"]
    values = {"a": np.ones((1, 2), np.float32), "x": np.array([[0, 0, 2, 3]], np.float32)}
    found = Unoptimised(*runnable(load(tmp_path / "part.onnx"))).run(values)
    assert found["y"].tolist() == [[3, 4]]


def test_a_model_that_lists_its_weights_among_the_inputs_can_be_cut(tmp_path: Path) -> None:
    made = model("g (float[N,4] x, float[4] w) => (y) {a = Add(x, w) y = Neg(a)}")
    made.ir_version = 3
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    onnx.save(made, tmp_path / "in.onnx")
    trtopt.extract(tmp_path / "in.onnx", tmp_path / "part.onnx", outputs=["a"])
    assert _names(onnx.load(tmp_path / "part.onnx").graph.input) == ["x"]


def test_a_weight_may_become_an_input(tmp_path: Path) -> None:
    part = _extract(tmp_path, _TWO, inputs=["a", "w"], outputs=["b"])
    assert (_names(part.graph.input), _names(part.graph.initializer)) == (["a", "w"], [])


def test_what_only_a_branch_reads_comes_along(tmp_path: Path) -> None:
    part = _extract(tmp_path, _BRANCHES, inputs=["a", "b", "c"])
    assert _names(part.graph.initializer) == ["w"]
    part = _extract(tmp_path, _BRANCHES, outputs=["d"])
    assert [node.op_type for node in part.graph.node] == ["Relu", "Abs", "If"]


@pytest.mark.parametrize(
    ("cut", "option"),
    [
        ({}, "no tensor is named"),
        ({"inputs": ["zz"]}, "inputs=['zz']"),
        ({"outputs": ["u"]}, "outputs=['u']"),
        ({"outputs": ["x"]}, "outputs=['x']"),
        ({"inputs": ["a"], "outputs": ["d"]}, "'c'"),
        ({"inputs": ["a"], "outputs": ["b"]}, "inputs=['a']"),
        ({"inputs": ["a"], "outputs": ["a"]}, "nothing lies"),
    ],
)
def test_what_cuts_nothing_is_refused(cut: dict[str, list[str]], option: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        _extract(tmp_path, _BRANCHES, **cut)
    assert option in refused.value.problem
    assert not (tmp_path / "part.onnx").exists()


def test_a_tensor_whose_type_is_not_known_is_no_end(tmp_path: Path) -> None:
    made = model("g (float[4] x) => (float[4] y) {a = Relu(x) b = my.Op(a) y = Neg(b)}")
    made.opset_import.add(domain="my", version=1)
    onnx.save(made, tmp_path / "in.onnx")
    with pytest.raises(InvalidModelError, match="type is not known"):
        trtopt.extract(tmp_path / "in.onnx", tmp_path / "part.onnx", inputs=["b"])


def test_external_weights_go_with_the_part_that_has_them(tmp_path: Path) -> None:
    made = model("g (float[N,64] x) => (y) {a = MatMul(x, w) y = MatMul(a, v)}")
    weights = {name: np.random.default_rng(0).standard_normal((64, 64)) for name in "wv"}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()
    )
    onnx.save(made, tmp_path / "in.onnx", save_as_external_data=True, size_threshold=0, location="in.data")
    trtopt.extract(tmp_path / "in.onnx", tmp_path / "part.onnx", inputs=["a"])
    assert (tmp_path / "part.onnx.data").stat().st_size < (tmp_path / "in.data").stat().st_size
    (kept,) = onnx.load(tmp_path / "part.onnx").graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(kept), weights["v"].astype(np.float32))


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(made=_models(), draw=st.data())
def test_a_part_computes_what_the_model_does_there(made: onnx.ModelProto, draw: st.DataObject) -> None:
    names = [name for node in made.graph.node for name in node.output if name]
    ends = draw.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    begins = draw.draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    feed = seeded(made)[0].values
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.onnx", Path(folder) / "part.onnx"
        onnx.save(made, source)
        for inputs in (begins, [*begins, *feed], []):
            try:
                trtopt.extract(source, out, inputs=inputs, outputs=ends)
                break
            except UsageError:
                assume(inputs)
        part = load(out)
        inside = _names(part.proto.graph.input)
        watched = load(source)
        own = {*_names(watched.proto.graph.output)}
        watched.proto.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in {*inside, *ends} - own - feed.keys()
        )
        whole = {**feed, **Unoptimised(*runnable(watched)).run(feed)}
        found = Unoptimised(*runnable(part)).run({name: whole[name] for name in inside})
        assert list(found) == ends
        for name, value in found.items():
            limit = bound("B", value.dtype, half=is_low(made))
            assert error_between(whole[name], value) <= limit
