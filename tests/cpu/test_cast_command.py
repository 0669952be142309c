"""What `trtopt cast` says: patterns that fit nothing, scales, weights that vanish, outputs that are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.cast_models import CHAIN, saved
from tests.support.command_line import DIGITS
from trtopt.errors import UsageError
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.compare import Deviation
from trtopt.records.precision import CastReport
from trtopt.report.precision import difference_line
from trtopt.report.view import view_of
from trtopt.requests.models import BisectRequest, CastRequest
from trtopt.workflows.precision.bisect import bisect
from trtopt.workflows.precision.cast import cast as run

QUANTIZED = """g (float[N,8] x) => (float[N,8] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = MatMul(d, w) y = Relu(a)}"""


def cast(source: Path, **options: Any) -> CastReport:
    return run(CastRequest(source, source.with_name("out.onnx"), **options))


# ── patterns ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"exclude": ("Relu:*", "Blah")}, "--exclude Blah: no node has such a name", "a node's name with"),
        ({"exclude": ("relu",)}, "--exclude relu: no node has such a name or operator", "such as Conv"),
        ({"include": ("Blah*",)}, "--include Blah\\*: no node has such a name", "a node's name with"),
    ],
)
def test_a_pattern_that_fits_nothing_is_refused_and_told_where_it_belongs(
    options: dict[str, Any], problem: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"(?s){problem}.*{remedy}"):
        cast(saved(CHAIN, tmp_path), **options)
    assert not (tmp_path / "out.onnx").exists()


def test_a_node_is_kept_by_its_name_to_the_letter_though_that_is_a_pattern(tmp_path: Path) -> None:
    source = saved(CHAIN, tmp_path)
    proto = onnx.load(source)
    proto.graph.node[1].name = "no de*[1]?"
    onnx.save(proto, source)
    assert [item.node for item in cast(source, exclude=("no de*[1]?",)).kept] == ["no de*[1]?"]
    assert cast(source, include=("no de*[1]?",)).kept == ()


def test_bisect_refuses_what_fits_neither_name_nor_operator(tmp_path: Path) -> None:
    source = saved(CHAIN, tmp_path)
    np.savez(tmp_path / "d.npz", x=np.ones((4, 8), np.float32))
    ask = {"min_sqnr": 1, "data": str(tmp_path / "d.npz"), "backend": "onnxruntime"}
    with pytest.raises(UsageError, match="Blah: no node has such a name or operator"):
        bisect(BisectRequest(source, precision="fp16", exclude=("Blah",), **ask))  # type: ignore[arg-type]
    for fits in ("Relu", "Relu:*"):
        report = bisect(BisectRequest(source, precision="fp16", exclude=(fits,), **ask))  # type: ignore[arg-type]
        assert report.candidates == ("MatMul:a", "MatMul:y")


# ── scales and weights ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("scale", "words"), [(1e6, "too large: it reaches 1e+06, beyond 65504"),
                                              (1e-7, "too small: 16 bits change it by")])  # fmt: skip
def test_a_scale_is_told_to_be_too_large_or_too_small(scale: float, words: str, tmp_path: Path) -> None:
    source = saved(QUANTIZED, tmp_path, 19, s=np.float32(scale), z=np.int8(0), w=np.eye(8, dtype=np.float32))
    reasons = [item.reason for item in cast(source).kept if item.op == "QuantizeLinear"]
    assert len(reasons) == 1
    assert f"scale 's' is {words}" in reasons[0]


def test_values_that_vanish_are_those_of_weights_that_become_fp16(tmp_path: Path) -> None:
    kept, lowered = (np.ones((8, 8), np.float32) for _ in range(2))
    kept[0], lowered[0, :2] = 1e-9, 1e-9
    kept[1] = 1e6  # its node stays FP32
    source = saved(CHAIN.replace("MatMul(b, w)", "MatMul(b, v)"), tmp_path, v=kept, w=lowered)
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 8), np.float32))
    report = cast(source, data=tmp_path / "d.npz")
    assert [item.node for item in report.kept] == ["MatMul:y"]
    assert [(item.weight, item.values) for item in report.vanishing] == [("w", 2)]


def test_nothing_is_said_to_vanish_where_nothing_became_fp16(tmp_path: Path) -> None:
    weight = np.ones((8, 8), np.float32)
    weight[0], weight[1] = 1e-9, 1e6
    report = cast(saved(CHAIN, tmp_path, w=weight))
    assert (report.lowered, report.vanishing) == ((), ())
    assert "become 0" not in report.table()


def test_a_weight_that_holds_nan_is_an_alarm(tmp_path: Path) -> None:
    weight = np.ones((8, 8), np.float32)
    assert cast(saved(CHAIN, tmp_path, w=weight)).alarms == ()
    weight[3, 4] = np.nan
    first, *others = cast(saved(CHAIN, tmp_path, w=weight)).alarms
    assert first == "1 weight holds NaN or infinity, such as 'w': export the model from an intact checkpoint"
    assert any("values are NaN or infinite" in alarm for alarm in others)
    constant = onnx.helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(weight, "k"))
    inside = onnx.helper.make_model(onnx.helper.make_graph([constant], "g", [], []))
    (alarm,) = weight_alarms(ModelFile(inside, tmp_path, external=False))
    assert alarm.startswith("1 weight holds NaN or infinity, such as 'k'")


# ── outputs ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            [np.nan, np.inf, np.nan],
            "output y: all 3 values NaN or infinite in one model only, none to compare",
        ),
        ([1, 2, np.nan], "output y: no error where both are finite, cosine"),
        ([1, 2, 3], "output y: no error, cosine"),
    ],
)
def test_an_output_that_is_lost_is_not_said_to_have_no_error(found: list[float], words: str) -> None:
    deviation = Deviation("y")
    deviation.add(np.array([1.0, 2.0, 3.0]), np.array(found))
    assert difference_line(deviation.result()).startswith(words)


def test_a_model_forced_to_overflow_is_reported(tmp_path: Path) -> None:
    source = saved(CHAIN, tmp_path, w=np.full((8, 8), 1e6, np.float32))
    np.savez(tmp_path / "d.npz", x=np.ones((4, 8), np.float32))
    report = cast(source, data=tmp_path / "d.npz", include=("*",))
    assert "all 32 values NaN or infinite in one model only" in report.table()


def test_without_a_run_the_result_is_marked_as_unverified(tmp_path: Path) -> None:
    report = run(CastRequest(DIGITS, tmp_path / "o.onnx", run=False))
    assert not report.verified
    assert "UNVERIFIED" in view_of(report).headline
    assert "trtopt.unverified" in {one.key for one in onnx.load(tmp_path / "o.onnx").metadata_props}
    report = run(CastRequest(DIGITS, tmp_path / "o.onnx"))
    assert report.verified
    assert "trtopt.unverified" not in {one.key for one in onnx.load(tmp_path / "o.onnx").metadata_props}
    with pytest.raises(UsageError):
        run(CastRequest(DIGITS, tmp_path / "p.onnx", run=False, data="x.npz"))


def test_an_older_model_is_raised_first(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 6, opset_import: ["" : 9]> g (float[N,8] x) => (float[N,8] y) '
        "<float[8,8] w> {a = MatMul(x, w) y = Clip<min=0.0, max=2.0>(a)}"
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    del made.graph.value_info[:]
    onnx.save(made, tmp_path / "in.onnx")
    report = run(CastRequest(tmp_path / "in.onnx", tmp_path / "o.onnx", opset=17))
    assert (report.opset, report.verified) == (17, True)
    assert {"MatMul", "Clip"} == {
        node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node if node.op_type != "Cast"
    }
    assert onnx.load(tmp_path / "o.onnx").opset_import[0].version == 17


@pytest.mark.parametrize("is_dequantized", [False, True])
def test_stored_weights_stay_as_they_are_or_are_written_in_16_bits(
    is_dequantized: bool, tmp_path: Path
) -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x) => (float[N,8] y) '
        "<int8[8,8] n, float[8] s, int8[8] z> {w = DequantizeLinear<axis=1>(n, s, z) y = MatMul(x, w)}"
    )
    values = np.random.default_rng(0).integers(-127, 128, (8, 8)).astype(np.int8)
    scales = np.linspace(0.01, 0.03, 8, dtype=np.float32)
    for name, value in {"n": values, "s": scales, "z": np.zeros(8, np.int8)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    del made.graph.value_info[:]
    onnx.save(made, tmp_path / "in.onnx")
    report = cast(tmp_path / "in.onnx", dequantize=is_dequantized)
    assert report.verified
    written = onnx.load(tmp_path / "out.onnx").graph
    assert ("DequantizeLinear" in {node.op_type for node in written.node}) is not is_dequantized
    types = {item.data_type for item in written.initializer}
    assert (onnx.TensorProto.INT8 in types) is not is_dequantized
    assert (onnx.TensorProto.FLOAT16 in types) is is_dequantized
    assert all(one.sqnr_db is None or one.sqnr_db > 50 for one in report.differences)
