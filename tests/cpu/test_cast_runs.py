"""Casting runs each model once over the data, and reports just what separate runs of both would give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import trtopt
from tests.rewrite_graphs import model
from tests.support.paths import ROOT
from trtopt.data import open_data
from trtopt.data.feeds import seeded_source, specs_of
from trtopt.device.ort.reference import Unoptimised
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import load
from trtopt.onnxio.shape_inference import types_of
from trtopt.onnxio.weights import dtype_of
from trtopt.precision.casting.rules import fit_of
from trtopt.precision.compare import First, compare_outputs, open_model
from trtopt.records.precision import OutputDifference

TRANSFORMER = ROOT / "models" / "digits_transformer"
OUTPUTS = """# w: float[8,8]
g (float[N,8] x, int64[N] i) => (float[N,8] y, float[8,8] w, int64[N] i2, float[N,8] x2, float t, int64[2] s)
    {a = MatMul(x, w) y = Relu(a) x2 = Identity(x) s = Shape(a) t = ReduceSum<keepdims=0>(a)
     i2 = Identity(i)}"""
HALF = """g (float[N,8] x) => (float16[N,8] y)
    {h = Cast<to=10>(x) a = MatMul(h, w) f = Cast<to=1>(a) b = MatMul(f, v) c = Exp(b) y = Cast<to=10>(c)}"""
IF = """g (float16[N,8] x, bool c) => (float16[N,8] y)
    {y = If(c) <then_branch = t () => (float16[N,8] p) {q = MatMul(x, w) p = Relu(q)},
                else_branch = e () => (float16[N,8] r) {r = Neg(x)}>}"""


def saved(text: str, folder: Path, **weights: Any) -> Path:
    proto = model(text)
    for name, value in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    proto.opset_import[0].version = 17
    onnx.save(proto, folder / "in.onnx")
    return folder / "in.onnx"


def apart(source: Path, out: Path, data: Path | None) -> tuple[OutputDifference, ...]:
    """The differences of two files whose models both run on the data, for nothing else."""
    original = load(source)
    samples = open_data(data) if data is not None else seeded_source(original)
    reference = open_model(original)
    specs = specs_of(original.proto)
    feeds = First(samples, 64).batches(specs, 8)
    return compare_outputs(((feed, reference.run(feed)) for feed in feeds), load(out))


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Unoptimised]:
    """The session of every run, in their order."""
    found: list[Unoptimised] = []
    run = Unoptimised.run

    def counted(self: Unoptimised, feed: Any) -> Any:
        found.append(self)
        return run(self, feed)

    monkeypatch.setattr(Unoptimised, "run", counted)
    return found


@pytest.mark.parametrize("with_data", [True, False])
def test_the_error_of_a_trained_model_is_that_of_separate_runs(with_data: bool, tmp_path: Path) -> None:
    source, out = TRANSFORMER / "digits_transformer.onnx", tmp_path / "out.onnx"
    data = TRANSFORMER / "heldout.npz" if with_data else None
    report = trtopt.cast(source, out, precision="fp16", data=data)
    assert report.differences == apart(source, out, data)
    assert report.differences[0].sqnr_db is not None


def test_outputs_of_every_kind_are_compared_as_separate_runs_would(tmp_path: Path) -> None:
    source, out = saved(OUTPUTS, tmp_path), tmp_path / "out.onnx"
    rng = np.random.default_rng(0)
    data = tmp_path / "d.npz"
    np.savez(data, x=rng.standard_normal((20, 8), np.float32), i=np.arange(20))
    report = trtopt.cast(source, out, precision="fp16", data=data)
    assert [item.output for item in report.differences] == ["y", "w", "i2", "x2", "t", "s"]
    assert [item.values for item in report.differences] == [160, 3 * 64, 20, 160, 3, 3 * 2]
    assert report.differences == apart(source, out, data)


def test_a_model_that_is_partly_fp16_is_compared_as_separate_runs_would(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((8, 8), np.float32) for _ in range(2))
    source, out = saved(HALF, tmp_path, w=w.astype(np.float16), v=v), tmp_path / "out.onnx"
    np.savez(tmp_path / "d.npz", x=rng.standard_normal((9, 8), np.float32) / 8)
    report = trtopt.cast(source, out, precision="fp16", data=tmp_path / "d.npz")
    assert report.differences == apart(source, out, tmp_path / "d.npz")
    assert report.differences[0].sqnr_db is not None


@pytest.mark.parametrize(("compare", "runs"), [(True, [3, 3]), (False, [3])])
def test_each_model_runs_once_over_the_data(
    compare: bool, runs: list[int], sessions: list[Unoptimised], tmp_path: Path
) -> None:
    source, data = saved(OUTPUTS, tmp_path), tmp_path / "d.npz"
    np.savez(data, x=np.ones((20, 8), np.float32), i=np.arange(20))  # batches of 8, 8 and 4
    trtopt.cast(source, tmp_path / "out.onnx", precision="fp16", data=data, compare=compare)
    assert [sessions.count(session) for session in dict.fromkeys(sessions)] == runs


def test_without_data_no_model_runs_but_to_be_measured_and_compared(
    sessions: list[Unoptimised], tmp_path: Path
) -> None:
    text = OUTPUTS.replace("float[N,8] x", "float[N,M,8] x").replace("float[N,8] y", "float[N,M,8] y")
    text = text.replace("float[N,8] x2", "float[N,M,8] x2").replace("int64[2] s", "int64[3] s")
    trtopt.cast(saved(text, tmp_path), tmp_path / "out.onnx", precision="fp16")
    assert [sessions.count(session) for session in dict.fromkeys(sessions)] == [2, 2]  # at two lengths of M


def test_no_more_samples_are_kept_for_the_comparison_than_are_compared(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((100, 8), np.float32), i=np.arange(100))
    report = trtopt.cast(
        saved(OUTPUTS, tmp_path), tmp_path / "out.onnx", precision="fp16", data=tmp_path / "d.npz"
    )
    assert report.samples == 100
    assert report.differences[0].values == 64 * 8


def test_emulation_reaches_into_subgraphs_and_widens_weights_once_into_a_spool(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8), np.float32).astype(np.float16)
    file = load(saved(IF, tmp_path, w=w))
    feed = {"x": rng.standard_normal((3, 8), np.float32).astype(np.float16), "c": np.array(True)}
    wanted = np.maximum(feed["x"].astype(np.float32) @ w.astype(np.float32), 0).astype(np.float16)
    for spool in (None, tmp_path):
        wide = in_fp32(replace(file, spool=spool))
        types = types_of(wide.proto)
        assert types["w"] == (TensorProto.FLOAT16 if spool is None else TensorProto.FLOAT)
        (branch,) = (one.g for one in wide.proto.graph.node[-1].attribute if one.name == "then_branch")
        (product,) = (node for node in branch.node if node.op_type == "MatMul")
        assert {types[name] for name in (*product.input, *product.output)} == {TensorProto.FLOAT}
        np.testing.assert_array_equal(open_model(wide).run(feed)["y"], wanted)


def test_emulation_names_nothing_as_the_model_does_nor_as_an_emulation_before_it_did(tmp_path: Path) -> None:
    feed = {"x": np.ones((3, 8), np.float16), "c": np.array(True)}
    once = in_fp32(load(saved(IF, tmp_path, w=np.ones((8, 8), np.float16))))
    np.testing.assert_array_equal(open_model(in_fp32(once)).run(feed)["y"], open_model(once).run(feed)["y"])
    assert in_fp32(once).proto == in_fp32(once).proto


def test_widening_weights_once_changes_no_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((768, 768), np.float32).astype(np.float16)
    text = "g (float16[N,768] x) => (float16[N,768] y) {y = MatMul(x, w)}"
    file = load(saved(text, tmp_path, w=w))
    feed = {"x": rng.standard_normal((64, 768), np.float32).astype(np.float16)}
    found = [open_model(replace(file, spool=spool)).run(feed)["y"] for spool in (None, tmp_path)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("low", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_the_values_that_vanish_are_those_that_the_conversion_makes_zero(low: int) -> None:
    smallest = np.float32(ml_dtypes.finfo(dtype_of(low)).smallest_subnormal)
    half = smallest / np.float32(2)
    around = [np.nextafter(half, np.float32(0)), half, np.nextafter(half, smallest), smallest, np.float32(0)]
    values = np.array([*around, *np.negative(around), np.inf, -np.inf, np.nan, 3.0], np.float32)
    fit = fit_of(values, low)
    finite = values[np.isfinite(values)]
    assert fit.vanishing == ((finite != 0) & (finite.astype(dtype_of(low)) == 0)).sum() == 4
    assert (fit.nonzero, fit.largest) == (9, 3.0)
