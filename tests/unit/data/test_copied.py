"""Samples of a function, copied to files: what is read of them is what the function yielded."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trtopt.data import open_data
from trtopt.data.source import SamplesJob, write_samples
from trtopt.errors import DataError
from trtopt.records import TensorSpec

LOADER = """
import numpy as np

def varied():  # pieces of unlike sizes and lengths, with an input more than the model has
    for count, length in ((40, 3), (1, 3), (5, 7)):
        x = np.arange(count * length, dtype=np.float64).reshape(count, length)
        yield {"x": x, "wide": np.float32([[1, 2]]), "more": np.zeros(count)}

def exits():
    raise SystemExit(3)
    yield
"""
INPUTS = (
    TensorSpec(name="x", dtype="float32", shape=("n", "length")),
    TensorSpec(name="wide", dtype="bfloat16", shape=(1, 2)),
)


@pytest.fixture
def loader(tmp_path: Path) -> str:
    (tmp_path / "loader.py").write_text(LOADER)
    (tmp_path / "copied").mkdir()
    return f"{tmp_path}/loader.py"


def copied(data: str, folder: Path) -> int:
    return write_samples(SamplesJob(data=data, inputs=INPUTS, folder=str(folder)), lambda phase, share: None)


@pytest.mark.parametrize("size", [1, 8, 64])
def test_batches_of_the_copy_are_those_of_the_function(loader: str, size: int, tmp_path: Path) -> None:
    data, folder = f"{loader}:varied", tmp_path / "copied"
    assert copied(data, folder) == 3  # 32, 9 of the same length, 5 of another
    here, there = (list(open_data(text).batches(INPUTS, size)) for text in (folder, data))
    assert len(here) == len(there)
    for first, second in zip(here, there, strict=True):
        assert first.keys() == second.keys() == {"x", "wide"}
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])
            assert first[name].dtype == second[name].dtype


def test_a_function_that_ends_the_process_has_failed(loader: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exits failed: SystemExit: 3"):
        copied(f"{loader}:exits", tmp_path / "copied")


def test_a_function_that_yields_more_than_the_disk_holds_is_ended(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 30))
    with pytest.raises(DataError, match="is full after 0 samples"):
        copied(f"{loader}:varied", tmp_path / "copied")
