import numpy as np
import pytest

from tests.support.inspected import graph, layer, node, profiled, times, zeros
from trtopt.inspect.fusion import candidates, fused, unfused
from trtopt.inspect.graph import Graph
from trtopt.inspect.layers import join
from trtopt.records import Fusion, Unfused

IMAGE = {"x": (1, 4, 8, 8)}
W = zeros(4, 4, 1, 1)
SCALE = {"s": np.float32(0.1), "z": np.int8(0)}


def separately(made: Graph) -> tuple[Unfused, ...]:
    """Every node a layer of its own."""
    names = [one.name for one in made.nodes]
    layers, _ = join(tuple(map(layer, names)), times(**dict.fromkeys(names, 1.0)), made)
    return unfused(layers, made)


# ── what fused ──────────────────────────────────────────────────────────────────────────────────────────


def test_patterns_that_became_one_layer_are_counted_with_their_time() -> None:
    layers = [
        profiled("1", "Conv Relu", 2.0, kind="CaskConvolution"),
        profiled("2", "Conv Relu", 3.0, kind="CaskConvolution"),
        profiled("3", "Conv Relu", 1.0, kind="CaskGemmConvolution"),
        profiled("4", "MaxPool", 9.0),
        profiled("5", "Conv Relu", 9.0, is_reformat=True),
        profiled("6", " ".join(["Add"] * 13), 4.0, kind="PointWiseV2"),
        profiled("7", "Relu Softmax", 9.0, kind="Myelin", is_opaque=True),
    ]
    assert fused(layers) == (
        Fusion(ops=("Conv", "Relu"), kind="CaskConvolution", count=2, ms=5.0),
        Fusion(ops=("13 nodes",), kind="PointWiseV2", count=1, ms=4.0),
        Fusion(ops=("Conv", "Relu"), kind="CaskGemmConvolution", count=1, ms=1.0),
    )


# ── what did not, and why ───────────────────────────────────────────────────────────────────────────────

CASES = {
    "builder's choice": (
        graph(node("Conv", "x w", "c"), node("Relu", "c", "y"), inputs=IMAGE, weights={"w": W}),
        ("Conv+activation", ("c", "y"), "builder's choice", "nothing in the graph forbids it"),
    ),
    "second consumer": (
        graph(
            node("Conv", "x w", "c"),
            node("Relu", "c", "r"),
            node("Exp", "c", "e"),
            node("Concat", "r e", "y", axis=1),
            inputs=IMAGE,
            weights={"w": W},
        ),
        ("Conv+activation", ("c", "r"), "second-consumer", "c is also read by e"),
    ),
    "an output of the model": (
        graph(
            node("Conv", "x w", "c"),
            node("Relu", "c", "y"),
            inputs=IMAGE,
            weights={"w": W},
            outputs=("c", "y"),
        ),
        ("Conv+activation", ("c", "y"), "second-consumer", "c is also read by an output of the model"),
    ),
    "type change": (
        graph(
            node("Conv", "x w", "c"),
            node("Cast", "c", "t", to=10),
            node("Relu", "t", "y"),
            inputs=IMAGE,
            weights={"w": W},
        ),
        ("Conv+activation", ("c", "y"), "type-change", "t (Cast) stands between"),
    ),
    "Q in between": (
        graph(
            node("Conv", "x w", "c"),
            node("QuantizeLinear", "c s z", "q"),
            node("DequantizeLinear", "q s z", "d"),
            node("Relu", "d", "y"),
            inputs=IMAGE,
            weights={"w": W} | SCALE,
        ),
        ("Conv+activation", ("c", "y"), "quantise-between", "d (DequantizeLinear) stands between"),
    ),
    "a residual of another shape": (
        graph(
            node("Conv", "x w", "c"),
            node("Add", "c skip", "y"),
            inputs=IMAGE | {"skip": (1, 4, 1, 1)},
            weights={"w": W},
        ),
        ("Conv+residual", ("c", "y"), "broadcast", "operands of shapes [1, 4, 8, 8] and [1, 4, 1, 1]"),
    ),
    "a bias that is none": (
        graph(
            node("MatMul", "x w", "m"),
            node("Add", "m b", "y"),
            inputs={"x": (2, 3, 4)},
            weights={"w": zeros(4, 5), "b": zeros(3, 5)},
        ),
        ("MatMul+bias", ("m", "y"), "broadcast", "the constant has shape [3, 5]"),
    ),
    "reflected padding": (
        graph(
            node("Pad", "x p", "a", mode="reflect"),
            node("Conv", "a w", "y"),
            inputs=IMAGE,
            weights={"w": W, "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        ),
        ("Pad+Conv", ("a", "y"), "shape", "the padding is of mode reflect"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_candidate_that_did_not_fuse_has_its_reason(case: str) -> None:
    made, (fusion, nodes, reason, detail) = CASES[case]
    expected = Unfused(fusion=fusion, nodes=nodes, reason=reason, detail=detail, ms=1.0)
    assert separately(made) == (expected,)


def test_what_fused_or_is_named_by_no_layer_is_no_loss() -> None:
    made = CASES["builder's choice"][0]
    together = (layer("c + y"),)
    assert unfused(join(together, None, made)[0], made) == ()
    half = (layer("c"),)
    assert unfused(join(half, None, made)[0], made) == ()


def test_a_neighbour_inside_an_opaque_layer_is_reported_as_such() -> None:
    made = CASES["builder's choice"][0]
    hidden = (layer("c"), layer("{ForeignNode[y...y]}", "Myelin"))
    (found,) = unfused(join(hidden, None, made)[0], made)
    assert (found.reason, found.detail) == ("opaque", "inside {ForeignNode[y...y]}")


# ── attention ───────────────────────────────────────────────────────────────────────────────────────────


def attention(head: int = 64, dtype: str = "float16", *, twice: bool = False) -> Graph:
    shape = (1, 2, 16, head)
    extra = [node("Exp", "p", "e"), node("Add", "o e2", "y")] if twice else []
    kind = {"float16": np.float16, "float32": np.float32}[dtype]
    return graph(
        node("MatMul", "q k", "qk"),
        node("Div", "qk scale", "scaled"),
        node("Add", "scaled mask", "masked"),
        node("Softmax", "masked", "p"),
        node("MatMul", "p v", "o" if twice else "y"),
        *extra,
        inputs={"q": shape, "k": (1, 2, head, 16), "v": shape, "mask": (1, 1, 1, 16), "e2": shape},
        weights={"scale": np.array(8, kind)},
        dtype=dtype,
    )


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (attention(), ""),
        (attention(head=60), "head-size"),
        (attention(head=320), "head-size"),
        (attention(head=256), ""),
        (attention(dtype="float32"), "type-change"),
        (attention(twice=True), "second-consumer"),
    ],
)
def test_attention_is_found_from_its_scores_on(made: Graph, reason: str) -> None:
    (found,) = [one for one in candidates(made) if one.fusion == "attention"]
    assert [one.name for one in found.nodes][:5] == ["qk", "scaled", "masked", "p", made.nodes[4].name]
    assert found.reason == reason


def test_a_softmax_that_is_no_attention_is_none() -> None:
    made = graph(node("Softmax", "x", "p"), node("Relu", "p", "y"), inputs={"x": (2, 5)})
    assert list(candidates(made)) == []
