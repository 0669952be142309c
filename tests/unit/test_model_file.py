"""Weights stay in the files that a model was read from: those must not change meanwhile."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.errors import InvalidModelError
from trtopt.onnxmodel.model_file import load, save


@pytest.mark.parametrize("changed", ["in.onnx", "in.onnx.data"])
def test_a_model_that_is_written_to_meanwhile_is_not_taken_for_what_was_read(
    changed: str, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    graph = "# w: float[64,64]\ng (float[N,64] x) => (float[N,64] y) {y = MatMul(x, w)}"
    onnx.save(model(graph, 17), source, save_as_external_data=True, location="in.onnx.data", size_threshold=0)
    read = load(source)
    (tmp_path / changed).write_bytes((tmp_path / changed).read_bytes() + b"\0")
    with pytest.raises(InvalidModelError, match=f"{changed} was changed while trtopt worked on it"):
        save(read, out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.onnx", "in.onnx.data"]
