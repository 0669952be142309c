"""Weights stay in the files that a model was read from: those must not change meanwhile."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.errors import InvalidModelError
from trtopt.onnxio.model_file import load, save


@pytest.mark.parametrize("external", [False, True])
def test_what_a_large_weight_is_said_to_be_is_kept(external: bool, tmp_path: Path) -> None:
    graph = "g (float[N,64] x) => (float[N,64] y) {a = MatMul(x, w) y = MatMul(a, v)}"
    made = model(f"# w: float[64,64]\n# v: float[64,64]\n{graph}")
    data = [item.raw_data for item in made.graph.initializer]
    made.graph.initializer[0].doc_string = "words"
    made.graph.initializer[0].metadata_props.add(key="author", value="us")
    onnx.save(
        made, tmp_path / "in.onnx", save_as_external_data=external, location="in.data", size_threshold=0
    )
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    first, second = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert (first.doc_string, first.metadata_props[0].value) == ("words", "us")
    assert not second.HasField("doc_string")
    assert [item.raw_data for item in (first, second)] == data


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
