"""Writing what an exporter left: the file holds all of it, wherever the exporter put the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtopt.export.export import _save
from trtopt.onnxio import model_file
from trtopt.onnxio.external_data import external_files

_VALUES = {
    name: np.arange(rows * 40, dtype=np.float32).reshape(rows, 40) for name, rows in (("w", 40), ("s", 1))
}
_TABLE = np.arange(1600, dtype=np.float32).reshape(40, 40)


def _raw(folder: Path) -> tuple[onnx.ModelProto, Path]:
    """As torchscript writes beyond 2 GiB: weights in files of their own, constants of nodes too."""
    nodes = [
        helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(_TABLE, "table")),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "s"], ["b"]),
        helper.make_node("MatMul", ["b", "table"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 40]) for name in "xy"]
    weights = [numpy_helper.from_array(values, name) for name, values in _VALUES.items()]
    model = helper.make_model(helper.make_graph(nodes, "net", ends[:1], ends[1:], weights))
    raw = folder / "raw.onnx"
    onnx.save(
        model,
        str(raw),
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=100,
        convert_attribute=True,
    )
    return onnx.load(str(raw), load_external_data=False), raw


@pytest.mark.parametrize("outside", [False, True])
def test_a_file_needs_nothing_of_what_the_exporter_left(tmp_path: Path, outside: bool) -> None:
    model, raw = _raw(tmp_path)
    left = external_files(model, raw)
    assert len(left) == 3
    candidate = tmp_path / "net.onnx"
    _save(model, tmp_path, candidate, outside)
    for file in left:
        file.unlink()
    assert (tmp_path / "net.onnx.data").exists() == outside
    graph = onnx.load(str(candidate)).graph
    for tensor in graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), _VALUES[tensor.name])
    assert np.array_equal(numpy_helper.to_array(graph.node[0].attribute[0].t), _TABLE)
    assert len(model_file.load(candidate).proto.graph.initializer) == len(_VALUES)
