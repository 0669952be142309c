"""Outputs of data-dependent size on a GPU: TensorRT allocates them, and everyone gets their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.rewrite_graphs import model
from tests.support.gpu_digits import SOURCES
from trtopt.errors import UsageError
from trtopt.serving import EnginePool

SELECTED = """g (float[N,64] x) => (int64[M,2] y, float[N,64] r)
    {i = NonZero(x) y = Transpose<perm=[1,0]>(i) r = Relu(x)}"""


@pytest.fixture(scope="module")
def selecting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file; its engine for batch 2 lies in the folder next to it."""
    file = tmp_path_factory.mktemp("sized") / "selecting.onnx"
    onnx.save(model(SELECTED), file)
    engines = file.with_name("engines")
    trtopt.build(file, engines, batch=2, backend="tensorrt", tactic_sources=SOURCES)
    return file


def test_a_pool_refuses_it_by_name(selecting: Path, binding: str) -> None:
    with (
        EnginePool.open(selecting.with_name("engines")) as pool,
        pytest.raises(UsageError, match="output 'y' has a size that depends on the data"),
    ):
        pool.run(np.zeros((2, 64), np.float32))


def test_check_and_bench_take_what_the_engine_allocates(
    selecting: Path, binding: str, tmp_path: Path
) -> None:
    samples = np.random.default_rng(0).integers(0, 2, (4, 64)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    engines = selecting.with_name("engines")
    checked = trtopt.check(engines, selecting, data=tmp_path / "samples.npz")
    assert [output.max_abs for subject in checked.subjects for output in subject.outputs] == [0, 0]
    notes = trtopt.bench(engines, duration=0.2, data=tmp_path / "samples.npz").points[0].latency.notes
    print(notes)
    assert any("outputs whose size depends on the data, here: y [" in note for note in notes)
