"""Operators that are not ONNX's own: their tensors' types follow from the neighbours', or are let be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import trtopt
from tests.support.cast_models import saved
from trtopt.errors import ModelError
from trtopt.onnxio.shape_inference import types_of
from trtopt.records.precision import CastReport
from trtopt.report.precision import cast_view

CONTRIB = """
# w: float[8,8]
g (float[N,8] x) => (float[N,8] y)
{a = MatMul(x, w) b = com.microsoft.Gelu(a) c = MatMul(b, w) y = Relu(c)}"""
PLUGIN = CONTRIB.replace("com.microsoft.Gelu", "mine.Swirl")
UNKNOWN = """
# w: float[8,8]
g (float[N,8] x) => (float[N,8] y)
{a = MatMul(x, w) b = com.microsoft.Gelu(a) c = Neg(b) d = com.microsoft.Gelu(c) y = MatMul(d, w)}"""


def with_domain(text: str, domain: str, folder: Path) -> Path:
    source = saved(text, folder)
    proto = onnx.load(source)
    proto.opset_import.add(domain=domain, version=1)
    onnx.save(proto, source)
    return source


def cast(source: Path, **options: str) -> tuple[CastReport, onnx.ModelProto]:
    out = source.with_name("out.onnx")
    return trtopt.cast(source, out, precision="fp16", **options), onnx.load(out)


@pytest.mark.parametrize("text", [CONTRIB, UNKNOWN])
def test_readers_of_a_foreign_operator_get_what_their_own_types_ask_for(text: str, tmp_path: Path) -> None:
    source = with_domain(text, "com.microsoft", tmp_path)
    report, proto = cast(source)
    feed = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    before, after = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for path in (source, source.with_name("out.onnx"))  # it refuses a node of two types
    )
    assert np.abs(after - before).max() < 2e-2 * np.abs(before).max()
    assert types_of(proto)["y"] == onnx.TensorProto.FLOAT
    assert {item.op for item in report.kept if item.rule == "operator"} == {"Gelu"}
    assert {node for node in report.lowered if node.startswith("MatMul")} >= {"MatMul:a"}


def test_a_tensor_whose_type_nothing_tells_is_not_cast(tmp_path: Path) -> None:
    types = types_of(onnx.load(with_domain(UNKNOWN, "com.microsoft", tmp_path)))
    assert "b" not in types
    assert types["d"] == onnx.TensorProto.FLOAT  # the product's other side is
    report, proto = cast(tmp_path / "in.onnx")
    assert "Neg:c" not in report.lowered
    assert next(node for node in proto.graph.node if node.name == "Neg:c").input == ["b"]


def test_operators_and_weights_decide_where_a_plugin_keeps_the_model_from_running(tmp_path: Path) -> None:
    report, proto = cast(with_domain(PLUGIN, "mine", tmp_path))
    assert set(report.lowered) == {"MatMul:a", "MatMul:c", "Relu:y"}
    assert (report.samples, report.differences) == (0, ())
    swirl = next(node for node in proto.graph.node if node.op_type == "Swirl")
    assert swirl.input == ["a:fp32"]
    told = "\n".join(note.text for note in cast_view(report).notes)
    assert (
        "operators and weights alone decided, and nothing was compared: ONNX Runtime has no operator 'Swirl'"
        in told
    )
    assert "values measured" not in told


def test_a_model_that_fails_for_another_reason_is_not_cast_unseen(tmp_path: Path) -> None:
    text = """
        g (float[N,8] x) => (float[N,8] y) <int64[1] s = {7}>
        {a = com.microsoft.Gelu(x) b = Reshape(a, s) y = Add(a, b)}"""
    with pytest.raises(ModelError, match="cannot run the model"):
        cast(with_domain(text, "com.microsoft", tmp_path))


def test_data_for_a_model_that_cannot_run_is_not_passed_over(tmp_path: Path) -> None:
    source = with_domain(PLUGIN, "mine", tmp_path)
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 8), np.float32))
    with pytest.raises(ModelError, match="Swirl"):
        cast(source, data=str(tmp_path / "d.npz"))
    assert not source.with_name("out.onnx").exists()
