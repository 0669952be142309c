"""Which outputs have a size that the inputs' values decide."""

import pytest

from tests.rewrite_graphs import model
from trtopt.onnxio.graph_walk import data_dependent_outputs


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ("g (float[N,4] x) => (int64[2,M] y) {y = NonZero(x)}", {"y"}),
        ("g (float[N,4] x) => (float[N,4] y) {y = Relu(x)}", set()),
        # a size that is computed from shapes alone
        ("g (float[N,4] x) => (int64[1,M] y) {s = Shape(x) y = NonZero(s)}", set()),
        # what is computed from such a tensor has its size, its shape has its value
        ("g (float[N,4] x) => (float[2,M] y) {i = NonZero(x) y = Cast<to=1>(i)}", {"y"}),
        ("g (float[N,4] x) => (int64[2] y) {i = NonZero(x) y = Shape(i)}", set()),
        ("g (float[N,4] x) => (float[M] y) {i = NonZero(x) s = Shape(i) y = ConstantOfShape(s)}", {"y"}),
        # K of TopK: an input, a constant
        ("g (float[N,8] x, int64[1] k) => (float[N,M] y, int64[N,M] z) {y, z = TopK(x, k)}", {"y", "z"}),
        (
            "g (float[N,8] x) => (float[N,M] y, int64[N,M] z) <int64[1] k = {2}> {y, z = TopK(x, k)}",
            set(),
        ),
        (
            "g (float[N] x, bool c) => (float[M] y) {y = If(c) <then_branch = t () => (float[N] p)"
            " {p = Relu(x)}, else_branch = e () => (float[K] q) {q = Concat<axis=0>(x, x)}>}",
            {"y"},
        ),
        ("g (float[N,4] x, bool[N] c) => (float[M,4] y) {y = Compress<axis=0>(x, c)}", {"y"}),
    ],
)  # fmt: skip
def test_sizes_that_values_decide_are_told_from_sizes_that_shapes_decide(graph: str, found: set[str]) -> None:
    assert set(data_dependent_outputs(model(graph).graph)) == found


def test_the_first_node_that_decides_a_size_is_its_cause() -> None:
    graph = model("g (float[N,4] x) => (float[2,M] y) {i = NonZero(x) y = Cast<to=1>(i)}").graph
    graph.node[0].name = "where"
    assert data_dependent_outputs(graph) == {"y": "where"}
