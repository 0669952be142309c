"""Launches of one layer and the ONNX nodes that they serve: an encoder's attention and what follows it."""

from tests.support.inspected import graph, node, zeros
from trtopt.inspect.graph import Graph
from trtopt.inspect.kernels.attribution import Served, attribute, weight_copies
from trtopt.inspect.kernels.names import KernelTraits, read_name
from trtopt.records import KernelFamily


def encoder() -> Graph:
    """Q, K and V of one tensor, attention, projection with a residual sum, LayerNormalization."""
    weights = {name: zeros(8, 8) for name in ("wq", "wk", "wv", "wo")} | {"scale": zeros(8)}
    return graph(
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k"),
        node("MatMul", "x wv", "v"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores"),
        node("Softmax", "scores", "p"),
        node("MatMul", "p v", "context"),
        node("MatMul", "context wo", "projected"),
        node("Add", "projected x", "sum"),
        node("LayerNormalization", "sum scale", "y"),
        inputs={"x": (1, 4, 8)},
        weights=weights,
    )


def served(*families: KernelFamily, shortest: int | None = None) -> list[tuple[str, str]]:
    """`a+b` and the confidence for each launch."""
    found = encoder()
    launches = [KernelTraits(family) for family in families]
    given = attribute(launches, found.nodes, found, lambda index, nodes: index != shortest)
    return [("+".join(one.name for one in item.nodes), item.confidence) for item in given]


LIKELY = "likely"
OTHER = KernelTraits("other")
UNKNOWN = ("", "unknown")


def test_as_many_products_as_kernels_are_paired_in_order_with_what_runs_between() -> None:
    assert served(
        "product", "product", "product", "product", "softmax", "product", "product", "normalisation"
    ) == [
        ("q", LIKELY), ("k", LIKELY), ("v", LIKELY), ("scores", LIKELY), ("p", LIKELY), ("context", LIKELY),
        ("projected", LIKELY), ("sum+y", LIKELY),
    ]  # fmt: skip


def test_merged_products_and_a_fused_attention_are_recognised_by_their_number() -> None:
    assert served("product", "attention", "product", "normalisation") == [
        ("q+k+v", LIKELY), ("scores+p+context", LIKELY), ("projected", LIKELY), ("sum+y", LIKELY),
    ]  # fmt: skip
    assert served("product", "product", "product", "attention", "product") == [
        ("q", LIKELY), ("k", LIKELY), ("v", LIKELY), ("scores+p+context", LIKELY), ("projected", LIKELY),
    ]  # fmt: skip


def test_another_number_of_products_leaves_all_of_them_unknown() -> None:
    assert served("product", "product", "softmax") == [UNKNOWN] * 3
    assert served("softmax", "pointwise") == [UNKNOWN] * 2


def test_a_kernel_too_short_for_its_product_and_one_of_another_kind_are_unknown() -> None:
    found = served("product", "attention", "softmax", "product", "other", shortest=3)
    assert found == [("q+k+v", LIKELY), ("scores+p+context", LIKELY), UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_split_product_counts_with_its_reduction() -> None:
    found = served("product", "split-k", "attention", "product")
    assert found[:2] == [("q+k+v", LIKELY)] * 2


def test_one_launch_or_one_working_node_leaves_no_choice() -> None:
    whole = encoder()
    assert attribute([OTHER], whole.nodes, whole) == [Served(whole.nodes, "certain")]
    two = attribute([OTHER, KernelTraits("product")], whole.nodes[:1], whole)
    assert two == [Served(whole.nodes[:1], "certain")] * 2
    assert attribute([OTHER], (), whole) == [Served((), "unknown")]


def test_the_operators_in_a_name_choose_among_the_nodes_between() -> None:
    found = encoder()
    names = (
        "gemm",
        "mha0",
        "gemm",
        "__myl_bb0_2_AddCas",
        "__myl_bb0_1_CasMeaSubMulMeaAddSqrDivMul",
        "__myl_bb0_0_Erf",
    )
    given = attribute([read_name(name) for name in names], found.nodes, found)
    assert ["+".join(node.name for node in one.nodes) for one in given[3:]] == ["sum", "sum+y", ""]


# Kernels that copy the weights of merged products together, by how much they move.


FOUND = graph(
    node("MatMul", "x wq", "q"),
    node("MatMul", "x wk", "k"),
    node("MatMul", "x wv", "v"),
    node("MatMul", "v wo", "y"),
    inputs={"x": (1, 4, 8)},
    weights={"wq": zeros(8, 8), "wk": zeros(8, 8), "wv": zeros(8, 8), "wo": zeros(8, 8)},
)
MERGED = FOUND.nodes[:3]
MOVE, JOIN = read_name("__myl_bb0_87_Mov"), read_name("__myl_bb0_84_Res")
PRODUCT, ADD = KernelTraits("product"), read_name("__myl_bb0_3_AddMov")


def copies(*launches: tuple[KernelTraits, int], at: int | None = None) -> list[int]:
    """Which launches, by index, serve the merged products; their kernel is the last one, or `at`."""
    place = len(launches) - 1 if at is None else at
    found = weight_copies(
        [traits for traits, _ in launches], [threads for _, threads in launches], {place: MERGED}, FOUND
    )
    assert all(nodes == MERGED for nodes in found.values())
    return [*found]


def test_each_weight_and_all_of_them_are_copied_once() -> None:
    assert copies((MOVE, 4), (MOVE, 16), (MOVE, 64), (JOIN, 192), (PRODUCT, 32)) == [0, 1, 2, 3]
    assert copies((MOVE, 4), (MOVE, 4), (MOVE, 4), (MOVE, 4), (PRODUCT, 32)) == [0, 1, 2]


def test_what_computes_moves_something_else_or_runs_later_copies_no_weights() -> None:
    assert copies((ADD, 4), (MOVE, 5), (MOVE, 2), (PRODUCT, 4), (PRODUCT, 32)) == []
    assert copies((PRODUCT, 32), (MOVE, 4), at=0) == []
