"""Kernels that copy the weights of merged products together, by how much they move."""

from tests.support.inspected import graph, node, zeros
from trtopt.inspect.kernels.merged_weights import weight_copies
from trtopt.inspect.kernels.names import KernelTraits, read_name

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
