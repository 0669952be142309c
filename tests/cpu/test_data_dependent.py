"""Models with outputs of data-dependent size: bench, check, pool and batcher on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.rewrite_graphs import model
from trtopt.errors import DataError, UsageError
from trtopt.serving import DynamicBatcher, EnginePool

NONZERO = """g (float[N,4] x) => (int64[M,2] y, float[N,4] r)
    {i = NonZero(x) y = Transpose<perm=[1,0]>(i) r = Relu(x)}"""
HALF = """g (float[N,4] x) => (int64[M,2] y, float[N,4] r)
    {h = Cast<to=10>(x) i = NonZero(h) y = Transpose<perm=[1,0]>(i) r = Relu(x)}"""
RATE = """g (float[N,8] x, int64 rate) => (float[A,B] y) <int64 known = {16000}, int64[2] a = {-1,2}, int64[2] b = {-1,7}>
    {is = Equal(rate, known)
     y = If(is) <then_branch = t () => (float[A,B] p) {p = Reshape(x, a)}, else_branch = e () => (float[C,D] q) {q = Reshape(x, b)}>}"""  # noqa: E501 - graphs read best so
X = np.array([[1, 0, 2, 0], [0, 0, 0, 3]], np.float32)


@pytest.fixture(scope="module")
def nonzero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file; its engines for batches 1 and 2 lie in the folder next to it."""
    file = tmp_path_factory.mktemp("sized") / "nonzero.onnx"
    onnx.save(model(NONZERO), file)
    trtopt.build(file, file.with_name("engines"), batch=(1, 2), backend="onnxruntime")
    return file


def test_a_measurement_states_the_size_and_why_there_is_no_graph(nonzero: Path) -> None:
    report = trtopt.bench(nonzero.with_name("engines"), batch=2, duration=0.1, warmup=0.05)
    notes = report.points[0].latency.notes
    assert any("here: y [8, 2]" in note for note in notes)
    assert any("the size of 'y' is known only after running" in note for note in notes)


def test_engines_are_checked_on_whole_batches_padding_included(nonzero: Path, tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(0, 2, (5, 4)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    report = trtopt.check(nonzero.with_name("engines"), nonzero, data=tmp_path / "samples.npz")
    assert [subject.samples for subject in report.subjects] == [5, 5]
    assert all(output.max_abs == 0 for subject in report.subjects for output in subject.outputs)


def test_outputs_of_which_none_has_a_value_keep_no_bound(tmp_path: Path) -> None:
    """Two models that find nothing may be unlike; what finds something beside them is compared."""
    for name, least in (("a", 10), ("b", 20)):
        text = f"g (float[N,4] x) => (int64[2,M] y) <float least = {{{least}}}>"
        onnx.save(model(f"{text} {{is = Greater(x, least) y = NonZero(is)}}"), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "found.npz", x=np.full((1, 4), 30, np.float32))
    np.savez(tmp_path / "nothing.npz", x=X)
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert not trtopt.check(a, b, data=tmp_path / "nothing.npz", min_cosine=0.99).passed
    assert trtopt.check(a, b, data=tmp_path / "nothing.npz").passed
    assert trtopt.check(a, b, data=tmp_path / "found.npz", min_cosine=0.99).passed


def test_a_model_that_does_not_run_on_zeros_is_measured_on_the_data(tmp_path: Path) -> None:
    onnx.save(model(RATE), tmp_path / "rate.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((2, 8), np.float32), rate=np.int64(16000))
    folder = tmp_path / "engines"
    trtopt.build(tmp_path / "rate.onnx", folder, batch=2, backend="onnxruntime")
    assert trtopt.bench(folder, data=tmp_path / "data.npz", duration=0.1, warmup=0.05).points
    (subject,) = trtopt.check(folder, tmp_path / "rate.onnx", data=tmp_path / "data.npz").subjects
    assert subject.outputs[0].max_abs == 0
    with pytest.raises(DataError, match="cannot run the model on this input"):
        trtopt.bench(folder, duration=0.1, warmup=0.05)


def test_a_pool_refuses_it_by_name_and_serves_on(nonzero: Path) -> None:
    with EnginePool.open(nonzero.with_name("engines")) as pool, DynamicBatcher(pool) as batcher:
        for _ in range(2):
            with pytest.raises(UsageError, match="output 'y' has a size that depends on the data"):
                batcher.submit({"x": X[0]}).result()
        assert (pool.usage().replaced, pool.usage().prepared) == (0, 0)


@pytest.mark.parametrize(("subject", "reference"), [(HALF, NONZERO), (NONZERO, HALF)])
def test_rows_that_precision_adds_or_loses_are_a_difference_and_no_failure(
    subject: str, reference: str, tmp_path: Path
) -> None:
    for name, text in (("subject", subject), ("reference", reference)):
        onnx.save(model(text), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[1, 0, 2, 1e-9]], np.float32))  # which is 0 in FP16
    report = trtopt.check(
        tmp_path / "subject.onnx", tmp_path / "reference.onnx", data=tmp_path / "x.npz",
        min_cosine=0.9,
    )  # fmt: skip
    selected, rectified = report.subjects[0].outputs
    assert (selected.resized, selected.values, rectified.resized) == (1, 0, 0)
    (violation,) = report.subjects[0].violations
    assert violation.text.startswith("batches of another size of 'y' is 1")


def test_a_model_whose_selection_16_bits_change_can_be_cast(tmp_path: Path) -> None:
    selecting = """g (float[N,4] x) => (float[M] y)
        <float least = {0.5}>
        {h = Greater(x, least) i = NonZero(h) p = Transpose<perm=[1,0]>(i) y = GatherND(x, p)}"""
    onnx.save(model(selecting), tmp_path / "selecting.onnx")
    np.savez(tmp_path / "x.npz", x=np.array([[1, 0, 0.50001, 2]], np.float32))
    files = (tmp_path / "selecting.onnx", tmp_path / "half.onnx")
    report = trtopt.cast(*files, data=tmp_path / "x.npz")
    assert "Greater" in {kept.op for kept in report.kept if kept.rule == "accuracy"}
    report = trtopt.cast(*files, data=tmp_path / "x.npz", include=["*"])
    (selected,) = report.differences
    assert (selected.resized, selected.cosine) == (1, 0.0)
    assert any("not compared where its size" in alarm for alarm in report.alarms)
