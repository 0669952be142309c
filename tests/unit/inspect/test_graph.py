# ruff: noqa: E501 - graphs read best one statement after another
"""Shapes that a graph computes from the shapes of its inputs."""

from tests.rewrite_graphs import model
from trtopt.inspect.graph import read_graph

# positions up to the length of x, and a target of Expand by Equal and Where: ONNX's inference follows neither
COMPUTED = """g (float[N,S,8] x) => (float[A,B,C,8] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64 at = {1}, int64[1] minus = {-1}, int64[1,6] table = {5,4,3,2,1,0},
     float[6,8] rows = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
    {s = Shape(x) n = Gather(s, at) end = Unsqueeze(n, zero)
     places = Slice(table, zero, end, one) picked = Gather(rows, places)
     first = Slice(s, zero, one) both = Concat<axis=0>(minus, first, end, minus) is = Equal(both, minus)
     target = Where(is, one, both) wide = Expand(x, target) y = Add(wide, picked)}"""


def test_what_is_computed_about_shapes_is_known_once_the_inputs_shapes_are() -> None:
    graph = read_graph(model(COMPUTED), {"x": (2, 4, 8)})
    assert graph.shapes["picked"] == (1, 4, 8)
    assert graph.shapes["target"] == (4,)
    assert graph.shapes["y"] == (1, 2, 4, 8)
    assert [node.op for node in graph.nodes][-1] == "Add"
    assert len(graph.nodes) == 11
    assert "end" not in graph.constants


def test_open_axes_stay_open() -> None:
    graph = read_graph(model(COMPUTED), {})
    assert graph.shapes["s"] == (3,)
    assert "y" not in graph.shapes
