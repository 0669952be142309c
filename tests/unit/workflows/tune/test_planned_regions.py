"""Regions that quantising would make: those of the graph that it does make, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs.case import model
from trtopt.inspect.graph import read_graph
from trtopt.inspect.regions import find_regions
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.build.candidates import planned_regions
from trtopt.workflows.precision.quantize import quantize

TWO = """
    # v: float[16,16]
    # w: float[16,16]
    g (float[n,16] x) => (float[n,16] y) {
        i = Identity(x)
        a = MatMul(i, v)
        s = Softmax(a)
        y = MatMul(s, w)
    }"""


@pytest.mark.parametrize("target", ["8.6", "10", "rtx"])
def test_they_are_those_of_the_quantised_graph(target: str, tmp_path: Path) -> None:
    source, out = tmp_path / "model.onnx", tmp_path / "int8.onnx"
    onnx.save(model(TWO), source)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((8, 16), np.float32))
    quantize(source, out, QuantizeOptions(precision="int8", target=target, data=str(tmp_path / "x.npz")))
    made = [one.nodes for one in find_regions(read_graph(onnx.load(out), {}))]
    assert len(made) == 2
    assert [one.nodes for one in planned_regions(source, "a", target, ())] == made
    assert [one.nodes for one in planned_regions(source, "a", target, made[0])] == made[1:]


def test_what_cannot_be_quantised_has_none(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(model(TWO), source)
    assert planned_regions(source, "a", "10", ("no such node",)) == ()
