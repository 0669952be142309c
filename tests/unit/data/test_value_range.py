"""Whether samples look as if a step of preprocessing had been left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtopt.data import open_data
from trtopt.data.source import range_notes
from trtopt.records import TensorSpec

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "dtype", "is_noted"),
    [
        (RNG.integers(0, 256, (4, 64)).astype(np.uint8), "float32", True),
        (RNG.integers(0, 256, (4, 64)) / 255, "float32", False),
        (RNG.integers(0, 256, (4, 64)) - 128, "float32", False),
        (RNG.integers(0, 17, (4, 64)), "float32", False),
        (RNG.integers(0, 256, (4, 64)), "int64", False),
    ],
)
def test_whole_numbers_up_to_255_are_noted_for_float_inputs(
    values: np.ndarray, dtype: str, is_noted: bool, tmp_path: Path
) -> None:
    array = (
        values if dtype == "int64" else values.astype(np.uint8 if values.dtype == np.uint8 else np.float32)
    )
    np.savez(tmp_path / "d.npz", x=array)
    notes = range_notes(
        [TensorSpec(name="x", dtype=dtype, shape=("batch", 64))], open_data(tmp_path / "d.npz")
    )
    expected = ("input 'x': values reach 255: if the model expects normalised input, scale it",)
    assert notes == (expected if is_noted else ())


@pytest.mark.parametrize(
    ("stored", "dtype", "is_noted"),
    [("int64", "float32", True), ("float64", "float32", True), ("float32", "float16", True),
     ("uint8", "float32", False), ("float32", "float32", False), ("int64", "int32", False)],
)  # fmt: skip
def test_types_that_are_converted_to_others_that_may_hold_less_are_noted(
    stored: str, dtype: str, is_noted: bool, tmp_path: Path
) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(8).reshape(2, 4).astype(stored))
    notes = range_notes(
        [TensorSpec(name="x", dtype=dtype, shape=("batch", 4))], open_data(tmp_path / "d.npz")
    )
    assert notes == ((f"input 'x': the data is {stored} and was converted to {dtype}",) if is_noted else ())
