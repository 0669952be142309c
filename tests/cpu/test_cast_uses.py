"""What tensors are used for decides how exact they must be, and what was not measured is not trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtopt
from tests.support.cast_models import saved
from trtopt.onnxio.model_file import load
from trtopt.precision.compare import open_model
from trtopt.records.precision import CastReport

INDEX = """
# w: float[8,8]
# table: float[5000,8]
g (float[N,1] x) => (float[N,1,8] y)
<float[1,1] one = {1.0}>
{p = MatMul(x, one) i = Cast<to=7>(p) e = Gather(table, i) y = MatMul(e, w)}"""
ANGLES = """
# w: float[8,8]
g (int64[N,1] t) => (float[N,8] y)
<float[1,8] f = {1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001}>
{c = Cast<to=1>(t) p = Mul(c, f) s = Sin(p) y = MatMul(s, w)}"""
UNKNOWN_TYPES = """
# w: float[8,8]
g (float[N,8] x) => (float[N,8] y)
<float huge = {30000.0}, float tiny = {0.00003}>
{g = com.microsoft.Gelu(x) a = MatMul(g, w) b = Mul(a, huge) d = Mul(b, tiny) y = MatMul(d, w)}"""
SEQUENCES = """
# w: float[1,24,8]
# r: float[1,24,8]
# b: float[1,48]
g (float[4,2,8] x, int32[2] lengths) => (float[4,1,2,8] y, float[4,1,2,8] z)
{y = GRU<hidden_size=8>(x, w, r, b, lengths) z = GRU<hidden_size=8>(x, w, r, b)}"""
HALF_LOOP = """
g (float16[4,8] x) => (float16[4,8] y)
<int64 trips = {4}, bool go = {1}>
{y = Loop(trips, go, x)
   <body = b (int64 i, bool cin, float16[4,8] h) => (bool cout, float16[4,8] next)
     {next = MatMul(h, w) cout = Identity(cin)}>}"""


def cast(source: Path, **options: Any) -> CastReport:
    return trtopt.cast(source, source.with_name("out.onnx"), **{"precision": "fp16", **options})


def data(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def kept(report: CastReport, rule: str) -> set[str]:
    return {item.node for item in report.kept if item.rule == rule}


@pytest.mark.parametrize(("last", "exact"), [(2000, True), (4900, False)])
def test_what_becomes_an_index_is_not_rounded(last: int, exact: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = saved(INDEX, tmp_path, table=rng.standard_normal((5000, 8), np.float32))
    x = np.arange(1, last, 50, dtype=np.float32)[:, None]
    report = cast(source, data=data(tmp_path, x=x))
    assert kept(report, "range") == (set() if exact else {"MatMul:p", "Cast:i"})
    (difference,) = report.differences
    assert difference.sqnr_db is not None
    assert difference.sqnr_db > 50


@pytest.mark.parametrize(
    ("precision", "last", "wide"), [("fp16", 60, False), ("fp16", 999, True), ("bf16", 60, True)]
)
def test_angles_whose_rounding_would_turn_them_stay_fp32(
    precision: str, last: int, wide: bool, tmp_path: Path
) -> None:
    source = saved(ANGLES, tmp_path, opset=22)
    report = cast(source, data=data(tmp_path, t=np.arange(0, last)[:, None]), precision=precision)
    assert {"Mul:p", "Sin:s"} <= kept(report, "range") if wide else not kept(report, "range")
    assert {item.op for item in report.kept if "angles" in item.reason} <= {"Mul", "Sin"}
    (difference,) = report.differences
    assert difference.sqnr_db is not None
    assert difference.sqnr_db > (40 if precision == "fp16" else 30)


def test_tensors_behind_operators_of_others_are_measured(tmp_path: Path) -> None:
    source = saved(UNKNOWN_TYPES, tmp_path, w=np.eye(8, dtype=np.float32))
    proto = onnx.load(source)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, source)
    report = cast(source, data=data(tmp_path, x=np.full((2, 8), 3.0, np.float32)))
    assert kept(report, "range") == {"Mul:b", "Mul:d"}
    assert "MatMul:a" in report.lowered


def test_a_loop_of_an_fp16_model_runs_and_is_cast(tmp_path: Path) -> None:
    source = saved(HALF_LOOP, tmp_path, w=(np.eye(8) / 2).astype(np.float16))
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32).astype(np.float16)
    report = cast(source, data=data(tmp_path, x=x), include=("MatMul:next",))
    assert "MatMul:next" in report.lowered
    for file in (source, tmp_path / "out.onnx"):
        np.testing.assert_array_equal(open_model(load(file)).run({"x": x})["y"], x / 16)


def test_texts_are_compared_and_sequences_pass_through(tmp_path: Path) -> None:
    def tensor(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["N", 4])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "mm"),
        helper.make_node("Identity", ["s"], ["t"], "id"),
        helper.make_node("SplitToSequence", ["y"], ["q"], "split", axis=1),
    ]
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", TensorProto.FLOAT), tensor("s", TensorProto.STRING)],
        [tensor("y", TensorProto.FLOAT), tensor("t", TensorProto.STRING), sequence],
        [onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    source = tmp_path / "texts.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    samples = data(tmp_path, x=np.ones((3, 4), np.float32), s=np.full((3, 4), "a"))
    report = cast(source, data=samples)
    y, t = report.differences
    assert (y.output, t.output, t.values, t.max_abs) == ("y", "t", 12, 0.0)
    assert "mm" in report.lowered


def test_an_fp16_output_that_is_an_input_gets_no_cast_of_its_own(tmp_path: Path) -> None:
    text = "g (float16[N,8] x) => (float16[N,8] y, float16[N,8] x) {y = MatMul(x, w)}"
    source = saved(text, tmp_path, w=np.eye(8, dtype=np.float16))
    report = cast(source, data=data(tmp_path, x=np.ones((2, 8), np.float16)))
    assert "MatMul:y" in report.lowered
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)


def test_samples_that_fill_no_fixed_batch_are_told(tmp_path: Path) -> None:
    source = saved("# w: float[8,8]\ng (float[4,8] x) => (float[4,8] y) {y = MatMul(x, w)}", tmp_path)
    report = cast(source, data=data(tmp_path, x=np.ones((10, 8), np.float32)))
    assert report.samples == 8
    assert report.notes == ("the last 2 samples fill no batch of the model's size and were not used",)


def test_a_recurrent_node_with_lengths_of_its_sequences_stays_fp32(tmp_path: Path) -> None:
    """TensorRT's parser refuses it in 16 bits: it masks with FP32 zeros (onnx-tensorrt, RNNHelpers.cpp)."""
    source = saved(SEQUENCES, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 2, 8), np.float32)
    report = cast(source, data=data(tmp_path, x=x, lengths=np.int32([4, 2])))
    assert kept(report, "operator") == {"GRU:y"}
