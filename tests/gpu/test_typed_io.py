"""Inputs in every type and format of the GPU's TensorRT: built, filled by `pack`, and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, IMAGES, SOURCES, close
from trtopt.device.backends import open_builder
from trtopt.records.tensors import TYPES
from trtopt.serving import EnginePool
from trtopt.targets import target_of

BATCH = 8


def layouts_of(dtype: str) -> tuple[str, ...]:
    """The linear one, and the vectorised ones of the TensorRT here."""
    return ("nchw", *target_of(open_builder("tensorrt").backend).io_formats[TYPES[dtype]])


def answers(model: Path, folder: Path, io: str) -> np.ndarray:
    """What an engine with that input makes of the first images."""
    given = {"batch": BATCH, "io": {"images": io}, "tactic_sources": SOURCES}
    trtopt.build(model, folder, backend="tensorrt", **given)
    with EnginePool.open(folder) as pool:
        packed = trtopt.pack(folder, as_given(IMAGES[:BATCH], io), saturate=True)
        return np.asarray(pool.run({"images": packed})["logits"])


def as_given(images: np.ndarray, io: str) -> np.ndarray:
    """Values of the input's type; `pack` itself makes those of INT8."""
    return images.astype(np.float16) if io.startswith("fp16") else images


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_floats_in_every_format_give_the_logits_of_the_model(
    dtype: str, binding: str, right: np.ndarray, tmp_path: Path
) -> None:
    for layout in layouts_of(dtype):
        assert close(answers(DIGITS, tmp_path / layout, f"{dtype}:{layout}"), right[:BATCH]), layout


def test_int8_in_every_format_gives_the_classes_of_the_model(
    binding: str, right: np.ndarray, tmp_path: Path
) -> None:
    model = tmp_path / "int8.onnx"
    trtopt.quantize(DIGITS, model, precision="int8", data=HELDOUT, target="8.6", io={"images": "int8"})
    for layout in layouts_of("int8"):
        found = answers(model, tmp_path / layout, f"int8:{layout}")
        assert found.argmax(1).tolist() == right[:BATCH].argmax(1).tolist(), layout
        assert np.abs(found - right[:BATCH]).max() < 0.1 * np.abs(right[:BATCH]).max(), layout
