"""`trtopt lint` as a user reads it."""

from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from trtopt.cli.main import cli


def odd_convolutions(path: Path, count: int) -> Path:
    """A chain of convolutions of 30 channels each."""
    shape = [1, 30, 8, 8]
    weights = numpy_helper.from_array(np.zeros((30, 30, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", [f"x{index}", "w"], [f"x{index + 1}"], f"conv{index}", pads=[1] * 4)
        for index in range(count)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_of_many_findings_of_a_check_five_are_listed_and_with_v_all(tmp_path: Path) -> None:
    model = str(odd_convolutions(tmp_path / "odd.onnx", 9))
    short, whole = (CliRunner().invoke(cli, ["lint", model, *flags]).output for flags in ([], ["-v"]))
    assert short.splitlines()[0] == "17 findings in 9 nodes for TensorRT 10"
    assert (short.count("    conv"), whole.count("    conv")) == (5, 17)
    assert "    and 12 more: -v lists them" in short.splitlines()
    assert "more: -v" not in whole
