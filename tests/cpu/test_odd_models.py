# ruff: noqa: E501 - graphs read best one statement after another
"""Models that are valid for TensorRT or ONNX Runtime in a form that few tools write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper

import trtopt
from tests.rewrite_graphs import model
from tests.support.graphs import model_of, relu, save, value
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import BuildError, InvalidModelError, ModelError, UnsupportedOpError
from trtopt.onnxio.model_file import load, runnable
from trtopt.onnxio.model_info import read_onnx

_NET = """
# w: float[8,3,3,3]
# f: float[8,5]
net (float[N,3,8,8] x) => (float[N,5] y) {
    a = Conv <pads = [1,1,1,1]> (x, w)
    b = Relu(a)
    c = GlobalAveragePool(b)
    d = Flatten(c)
    y = MatMul(d, f)
    s = Shape(b)
    k = Constant <value = int64[1] {2}> ()
    t, i = TopK(y, k)
}"""


def _cut(folder: Path, names: list[str], *, typed: bool) -> Path:
    """The net cut at these tensors the way onnx-graphsurgeon is used: outputs get a type at most."""
    graph = gs.import_onnx(model(_NET))
    tensors = graph.tensors()
    graph.outputs = [tensors[name] for name in names]
    for output in graph.outputs:
        output.shape = None
        output.dtype = (np.int64 if output.name in "si" else np.float32) if typed else None
    graph.cleanup()
    onnx.save(gs.export_onnx(graph, do_type_check=False), folder / "cut.onnx")
    return folder / "cut.onnx"


@settings(max_examples=12, deadline=None)
@given(names=st.lists(st.sampled_from("abcdysti"), min_size=1, max_size=3, unique=True), typed=st.booleans())
def test_outputs_without_a_shape_get_the_one_that_they_have(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], typed: bool
) -> None:
    file = _cut(tmp_path_factory.mktemp("cut"), names, typed=typed)
    outputs = {spec.name: spec for spec in read_onnx(file).outputs}
    feed = {"x": np.ones((2, 3, 8, 8), np.float32)}
    for name, array in Unoptimised(*runnable(load(file))).run(feed).items():
        lengths = [2 if axis == "N" else axis for axis in outputs[name].shape]
        assert (lengths, outputs[name].dtype) == (list(array.shape), str(array.dtype))


def test_an_output_without_a_shape_that_is_an_input_is_rewritten(tmp_path: Path) -> None:
    bare = model("g (float[N,4] x) => (float[N,4] y, float[N,4] x) {i = Identity(x) y = Relu(i)}")
    bare.graph.output[1].type.tensor_type.ClearField("shape")
    trtopt.rewrite(save(bare, tmp_path / "model.onnx"), tmp_path / "out.onnx")
    x = read_onnx(tmp_path / "out.onnx").outputs[1]
    assert (x.name, list(x.shape)) == ("x", ["N", 4])


def test_a_cut_model_goes_through_every_command(tmp_path: Path) -> None:
    file = _cut(tmp_path, ["b", "y"], typed=True)
    trtopt.rewrite(file, tmp_path / "rewritten.onnx")
    trtopt.cast(file, tmp_path / "cast.onnx")
    trtopt.quantize(file, tmp_path / "int8.onnx", precision="int8", random_data=True)
    trtopt.build(file, tmp_path / "built", backend="tensorrt-rtx")
    for name in ("rewritten", "cast", "int8"):
        onnx.checker.check_model(str(tmp_path / f"{name}.onnx"))


def test_an_input_without_a_shape_is_refused_by_its_name(tmp_path: Path) -> None:
    bare = model_of(relu(), inputs=[helper.make_tensor_value_info("x", 1, None)])
    for read in (read_onnx, lambda path: trtopt.rewrite(path, tmp_path / "out.onnx")):
        with pytest.raises(InvalidModelError, match="'x' has no shape"):
            read(save(bare, tmp_path / "model.onnx"))


def test_an_input_with_a_default_that_nothing_reads_is_no_input(tmp_path: Path) -> None:
    count = onnx.numpy_helper.from_array(np.array(3), "num_batches_tracked")
    listed = [value("x"), helper.make_tensor_value_info("num_batches_tracked", 7, [])]
    tracked = model_of(
        helper.make_node("Identity", ["x"], ["a"], "r1"), relu("a", "y", "r2"), inputs=listed, weights=[count]
    )
    trace = trtopt.rewrite(
        save(tracked, tmp_path / "model.onnx"), tmp_path / "out.onnx", rules=["erase-identity"]
    )
    assert trace.applied
    assert all(one.ok for one in trace.checked)


def test_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    twins = model_of(relu("x", "a", "same"), relu("a", "b", "same"), relu("b", "y", "same"))
    file = save(twins, tmp_path / "model.onnx")
    trtopt.rewrite(file, tmp_path / "out.onnx")
    engine = trtopt.build(file, tmp_path / "built", backend="onnxruntime").engines[0]
    built = onnx.load(tmp_path / "built" / engine.path)
    assert len({node.name for node in built.graph.node}) == len(built.graph.node)


_BRANCHES = """
g (float[N,M] x, int64 rate) => (float[rows] y) {
    k = Constant <value = int64 {16000}> ()
    c = Equal(rate, k)
    y = If (c) <
        then_branch = t () => (float[A] p) { s = Constant <value = int64[3] {-1,8,64}> () r = Reshape(x, s) p = ReduceMean <axes=[1,2], keepdims=0> (r) },
        else_branch = e () => (float[B] q) { u = Constant <value = int64[3] {-1,4,64}> () v = Reshape(x, u) q = ReduceMean <axes=[1,2], keepdims=0> (v) }
    >
}"""


def test_a_branch_that_does_not_fit_the_shapes_need_not_run(tmp_path: Path) -> None:
    file = save(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{_BRANCHES}'), tmp_path / "m.onnx"
    )
    built = trtopt.build(file, tmp_path / "built", backend="onnxruntime", axes={"M": 256})
    assert built.engines[0].builder_config["shapes"] == "open"


@pytest.mark.parametrize("length", [256, 512])
def test_a_branch_may_make_another_size_than_the_one_that_zeros_take(length: int, tmp_path: Path) -> None:
    file = save(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>{_BRANCHES}'), tmp_path / "m.onnx"
    )
    np.savez(
        tmp_path / "data.npz",
        x=np.ones((4, length), np.float32),
        rate=np.array(16000 if length == 512 else 8000),
    )
    trtopt.build(file, tmp_path / "built", backend="onnxruntime", axes={"M": length})
    assert trtopt.bench(tmp_path / "built", data=tmp_path / "data.npz", duration=0.1, warmup=0.01).points


@pytest.mark.parametrize("command", [trtopt.rewrite, trtopt.build])
def test_an_operator_of_an_old_opset_is_named_as_what_is_missing(command: object, tmp_path: Path) -> None:
    norm = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "norm", is_test=1)
    ones = [onnx.numpy_helper.from_array(np.ones(4, np.float32), name) for name in "sbmv"]
    listed = [value("x"), *(value(name, (4,)) for name in "sbmv")]
    old = model_of(norm, inputs=listed, weights=ones, opset=6)
    more = {"backend": "onnxruntime"} if command is trtopt.build else {"clean": True}
    with pytest.raises(ModelError, match="'BatchNormalization' of opset 6") as refusal:
        command(save(old, tmp_path / "old.onnx"), tmp_path / "out", **more)  # type: ignore[operator]
    assert "opset 13" in refusal.value.remedy


def test_a_model_of_another_domain_alone_is_rewritten_and_cast(tmp_path: Path) -> None:
    scaler = helper.make_node(
        "Scaler", ["x"], ["y"], "s", domain="ai.onnx.ml", offset=[1.0] * 4, scale=[2.0] * 4
    )
    foreign = model_of(scaler)
    del foreign.opset_import[:]
    foreign.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    file = save(foreign, tmp_path / "model.onnx")
    trtopt.rewrite(file, tmp_path / "out.onnx")
    trtopt.cast(file, tmp_path / "cast.onnx")
    with pytest.raises(UnsupportedOpError, match="Scaler"):
        trtopt.build(file, tmp_path / "built", backend="tensorrt-rtx")


_OPEN = {
    "a Squeeze that might take the batch away": """
        # w: float[8,3,3,3]
        # f: float[8,5]
        g (float[N,3,8,8] x) => (float[M,5] y)
        {a = Conv(x, w) b = GlobalAveragePool(a) c = Squeeze(b) r = Constant <value = int64[2] {-1,8}> () d = Reshape(c, r) y = MatMul(d, f)}""",
    "weights in INT8 behind Cast and Mul": """
        # s: float[1,64]
        # q: int8[64,64]
        g (float[N,64] x) => (float[N,64] y) {a = Cast <to = 1> (q) w = Mul(a, s) y = MatMul(x, w)}""",
}


@pytest.mark.parametrize("text", _OPEN.values(), ids=_OPEN)
def test_what_tensorrt_refuses_with_open_shapes_is_built_at_its_own(text: str, tmp_path: Path) -> None:
    file = save(model(text), tmp_path / "model.onnx")
    built = trtopt.build(file, tmp_path / "built", backend="tensorrt-rtx")
    assert "with constants folded" in built.engines[0].notes[-1]
    assert {path.name for path in (tmp_path / "built").glob("*.onnx*")} == {"model.onnx"}


def test_a_type_that_inference_finds_is_what_tensorrt_gets(tmp_path: Path) -> None:
    built = trtopt.build(_cut(tmp_path, ["b"], typed=False), tmp_path / "built", backend="tensorrt-rtx")
    assert [spec.dtype for spec in built.engines[0].outputs] == ["float32"]


def test_a_model_that_tensorrt_refuses_at_any_shape_is_refused_for_the_first_reason(tmp_path: Path) -> None:
    table = "# q: int8[64,64]\ng (int64[N] i) => (float[N,64] y) {a = Gather(q, i) y = Cast <to = 1> (a)}"
    with pytest.raises(BuildError, match="Quantized constant"):
        trtopt.build(save(model(table), tmp_path / "m.onnx"), tmp_path / "built", backend="tensorrt-rtx")
