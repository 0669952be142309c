"""Graphs by the public functions, with paths as plain text."""

from pathlib import Path

import onnx

import trtopt
from tests.support.command_line import DIGITS


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(str(path)).graph.node}


def test_a_graph_is_rewritten_cast_and_quantised_by_keywords(tmp_path: Path) -> None:
    rewritten, cast, quantised = (tmp_path / f"{name}.onnx" for name in ("rewritten", "cast", "quantised"))
    trtopt.rewrite(str(DIGITS), str(rewritten))
    assert trtopt.cast(str(rewritten), str(cast), precision="bf16", target="11").precision == "bf16"
    trtopt.quantize(str(rewritten), str(quantised), precision="int8", random_data=True)
    assert "Cast" in operators(cast) - operators(DIGITS)
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators(quantised)
