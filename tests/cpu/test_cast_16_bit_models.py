"""Casting a model that has 16-bit types already: all of it is decided again, and no name is given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import trtopt
from tests.rewrite_graphs import model
from trtopt.errors import ModelError
from trtopt.onnxio.model_file import load
from trtopt.onnxio.shape_inference import types_of
from trtopt.precision.compare import open_model
from trtopt.records.precision import CastReport

HALF = "g (float16[N,8] x) => (float16[N,8] y) {a = MatMul(x, w) b = Softmax(a) y = MatMul(b, w)}"
WIDE = HALF.replace("float16", "float")


def saved(text: str, folder: Path, dtype: Any) -> Path:
    proto = model(text)
    weight = np.random.default_rng(0).standard_normal((8, 8), np.float32).astype(dtype)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    proto.opset_import[0].version = 17
    proto.ir_version = 10
    onnx.save(proto, folder / "in.onnx")
    return folder / "in.onnx"


def cast(source: Path, out: str = "out.onnx", **options: Any) -> tuple[CastReport, dict[str, int]]:
    target = source.with_name(out)
    report = trtopt.cast(source, target, **{"precision": "fp16", **options})
    proto = onnx.load(target)
    onnx.checker.check_model(proto, full_check=True)
    open_model(load(target))
    return report, types_of(proto)


def test_an_fp16_model_becomes_bf16_and_keeps_the_types_of_its_ends(tmp_path: Path) -> None:
    report, types = cast(saved(HALF, tmp_path, np.float16), precision="bf16")
    assert {"MatMul:a", "Softmax:b", "MatMul:y"} <= set(report.lowered)
    assert report.kept == ()
    assert (types["x"], types["y"]) == (TensorProto.FLOAT16, TensorProto.FLOAT16)
    assert (types["w"], types["a"], types["b"]) == (TensorProto.BFLOAT16,) * 3
    assert any("became FP32 first" in note for note in report.notes)
    sqnr = report.differences[0].sqnr_db  # of the model as it was, not of one in FP32
    assert sqnr is not None
    assert 35 < sqnr < 60


def test_a_node_of_an_fp16_model_can_be_kept_in_fp32(tmp_path: Path) -> None:
    report, types = cast(saved(HALF, tmp_path, np.float16), exclude=("Softmax",))
    assert [(kept.node, kept.rule) for kept in report.kept] == [("Softmax:b", "pattern")]
    assert (types["a"], types["b"], types["w"]) == (TensorProto.FLOAT16, 1, TensorProto.FLOAT16)


def test_an_fp16_model_to_be_fp16_computes_what_it_did(tmp_path: Path) -> None:
    report, types = cast(saved(HALF, tmp_path, np.float16))
    assert report.kept == ()
    assert set(types.values()) == {TensorProto.FLOAT16}
    assert report.differences[0].sqnr_db is None


def test_a_value_that_overflows_in_an_fp16_model_keeps_its_node_fp32(tmp_path: Path) -> None:
    text = HALF.replace("Softmax(a)", "Exp(a)")
    np.savez(tmp_path / "d.npz", x=np.full((4, 8), 20, np.float32))
    report, _ = cast(saved(text, tmp_path, np.float16), data=tmp_path / "d.npz", compare=False)
    assert {kept.node: kept.rule for kept in report.kept}["Exp:b"] == "range"


def test_a_bf16_model_becomes_fp16(tmp_path: Path) -> None:
    report, types = cast(saved(HALF.replace("float16", "bfloat16"), tmp_path, ml_dtypes.bfloat16))
    assert report.kept == ()
    assert (types["x"], types["w"], types["a"]) == (TensorProto.BFLOAT16, *(TensorProto.FLOAT16,) * 2)


@pytest.mark.parametrize("cast_io", [False, True])
@pytest.mark.parametrize("last", ["fp16", "bf16"])
def test_what_was_cast_is_cast_again_and_again(cast_io: bool, last: str, tmp_path: Path) -> None:
    source = saved(WIDE, tmp_path, np.float32)
    cast(source, "first.onnx", cast_io=cast_io)
    cast(tmp_path / "first.onnx", "second.onnx", precision="bf16")
    report, types = cast(tmp_path / "second.onnx", "third.onnx", precision=last, cast_io=cast_io)
    assert {"MatMul:a", "Softmax:b", "MatMul:y"} <= set(report.lowered)
    low = TensorProto.FLOAT16 if last == "fp16" else TensorProto.BFLOAT16
    assert (types["a"], types["b"]) == (low, low)
    assert {types["x"], types["y"]} == {TensorProto.FLOAT16 if cast_io else 1}


def test_a_node_that_is_called_as_a_new_cast_stays_next_to_it(tmp_path: Path) -> None:
    source = saved(WIDE, tmp_path, np.float32)
    proto = onnx.load(source)
    proto.graph.node[0].name = "cast:y"
    onnx.save(proto, source)
    report, _ = cast(source)
    assert "cast:y" in report.lowered
    names = [node.name for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert len(names) == len(set(names)) == 5


def test_an_fp16_model_is_refused_as_bf16_where_its_opset_has_none(tmp_path: Path) -> None:
    text = "g (float16[1,3,8,8] x) => (float16[1,8,8,8] y) {y = Conv<pads=[1,1,1,1]>(x, w)}"
    proto = model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float16), "w"))
    proto.opset_import[0].version = 17
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(ModelError, match="Conv takes no BF16 at opset 17"):
        cast(tmp_path / "in.onnx", precision="bf16")
