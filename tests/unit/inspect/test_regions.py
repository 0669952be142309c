"""Regions of quantised nodes, and what each costs: graphs and lists of layer times."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.inspected import graph, node, profiled, zeros
from tests.unit.inspect.test_explanation import engine
from trtopt.inspect.graph import Graph
from trtopt.inspect.regions import (
    Region,
    find_regions,
    losing,
    region_times,
)
from trtopt.records import ProfiledLayer, RegionTime

SCALE = {"s": np.float32(0.1), "z": np.int8(0)}


def pair(tensor: str) -> list[object]:
    """Q and DQ of a tensor: `TENSOR_q`, `TENSOR_dq`."""
    return [
        node("QuantizeLinear", f"{tensor} s z", f"{tensor}_q"),
        node("DequantizeLinear", f"{tensor}_q s z", f"{tensor}_dq"),
    ]


def conv(read: str, made: str) -> list[object]:
    """A convolution with a quantised weight."""
    return [*pair("w"), node("Conv", f"{read} w_dq", made)]


def made_of(*nodes: object, outputs: tuple[str, ...] = ("y",)) -> Graph:
    unique = {one.output[0]: one for one in nodes}  # type: ignore[attr-defined]
    weights = {"w": zeros(4, 4, 1, 1), "k": zeros(4, 4), **SCALE}
    return graph(*unique.values(), inputs={"x": (1, 4, 8, 8)}, outputs=outputs, weights=weights)  # type: ignore[arg-type]


def names(found: Graph) -> list[tuple[str, ...]]:
    return [one.nodes for one in find_regions(found)]


def test_layers_with_nothing_but_activations_and_q_dq_between_are_one_region() -> None:
    found = made_of(*pair("x"), *conv("x_dq", "a"), node("Relu", "a", "r"), *pair("r"), *conv("r_dq", "y"))
    (region,) = find_regions(found)
    assert region == Region(("a", "y"), frozenset({"x_q", "x_dq", "w_q", "w_dq", "r_q", "r_dq"}))


def test_a_float_layer_between_parts_regions() -> None:
    found = made_of(*pair("x"), *conv("x_dq", "a"), node("Softmax", "a", "f"), *pair("f"), *conv("f_dq", "y"))
    # the weight is read by both, through one pair: constants tie nothing together
    assert names(found) == [("a",), ("y",)]


def test_what_reads_a_dq_through_a_cast_is_quantised_and_not_the_cast() -> None:
    found = made_of(
        *pair("x"), *conv("x_dq", "a"), node("Softmax", "a", "f"), *pair("f"),
        node("Cast", "f_dq", "c", to=10), node("Cast", "x", "d", to=10), node("Add", "c d", "y"),
    )  # fmt: skip
    (*_, region) = find_regions(found)
    assert region == Region(("y",), frozenset({"f_q", "f_dq", "c"}))
    assert names(found) == [("a",), ("y",)]


def test_layers_that_read_one_quantised_tensor_are_one_region() -> None:
    found = made_of(
        *pair("x"), *conv("x_dq", "a"), *conv("x_dq", "b"),
        node("Softmax", "a", "f"), node("Softmax", "b", "y"), outputs=("f", "y"),
    )  # fmt: skip
    assert names(found) == [("a", "b")]


def test_a_residual_whose_skip_is_quantised_belongs_to_the_convolution_that_takes_it_in() -> None:
    found = made_of(*pair("x"), *conv("x_dq", "a"), node("Add", "a x_dq", "sum"), node("Relu", "sum", "y"))
    assert names(found) == [("a", "sum")]


def test_a_graph_without_q_dq_has_no_regions() -> None:
    assert find_regions(made_of(node("Relu", "x", "y"))) == ()


# ── times ───────────────────────────────────────────────────────────────────────────────────────────────

ONE, OTHER = Region(("conv1",), frozenset({"q1", "dq1"})), Region(("conv2",), frozenset({"q2"}))
FLOAT = [profiled("c1", "conv1 relu1", 2.0), profiled("c2", "conv2 add", 1.0), profiled("s", "softmax", 0.5)]


def int8(name: str, onnx: str, ms: float, **rest: object) -> ProfiledLayer:
    return profiled(name, onnx, ms, dtype="int8", requested_dtype="int8", **rest)


def quantiser(name: str, ms: float) -> ProfiledLayer:
    return replace(profiled(name, name, ms), onnx_ops=("QuantizeLinear",))


def times(*layers: ProfiledLayer, regions: tuple[Region, ...] = (ONE, OTHER)) -> list[RegionTime]:
    return list(region_times(regions, engine("a", *FLOAT), engine("b", *layers), 0.01))


def test_every_region_has_its_layers_times_and_what_is_left_is_told_last() -> None:
    one, other, rest = times(
        int8("c1", "conv1 relu1", 1.0), int8("c2", "conv2 add", 0.75), profiled("s", "softmax", 0.5)
    )
    assert (one.nodes, one.float_ms, one.quantised_ms, one.change_ms) == (("conv1",), 2.0, 1.0, -1.0)
    assert (other.nodes, other.change_ms, other.loses) == (("conv2",), -0.25, False)
    assert (rest.nodes, rest.regions, rest.float_ms, rest.change_ms) == ((), 0, 0.5, 0.0)


def test_reformats_and_quantisers_count_to_the_region_that_they_serve() -> None:
    reformat = profiled("Reformatting CopyNode …", "conv1 relu1", 0.5, is_reformat=True)
    one, *_ = times(int8("c1", "conv1 relu1", 1.5), quantiser("q1", 0.25), reformat)
    assert (one.quantised_ms, one.loses) == (2.25, True)


@pytest.mark.parametrize(
    "layers",
    [
        [int8("c1", "conv1", 1.5), profiled("r1", "relu1", 0.25), quantiser("q1", 0.125)],
        [int8("all", "conv1 relu1 conv2 add softmax", 3.0)],
        [profiled("c1", "conv1", 1.5, dtype="float32", requested_dtype="int8"), profiled("r1", "relu1", 1.0)],
        [profiled("new", "cast", 1.0)],
    ],
)
def test_regions_add_up_to_the_engines(layers: list[ProfiledLayer]) -> None:
    found = times(*layers)
    assert sum(one.float_ms for one in found) == pytest.approx(3.5)
    assert sum(one.quantised_ms for one in found) == pytest.approx(sum(layer.ms or 0 for layer in layers))


def test_regions_that_share_a_layer_cannot_be_split() -> None:
    both, _ = times(int8("all", "conv1 relu1 conv2 add", 2.0))
    assert (both.nodes, both.regions, both.float_ms, both.quantised_ms) == (("conv1", "conv2"), 2, 3.0, 2.0)


def test_a_region_that_the_float_engine_has_no_layer_of_is_not_evaluated() -> None:
    unknown = Region(("nowhere",), frozenset())
    found = times(int8("n", "nowhere", 5.0), regions=(unknown,))
    assert (found[0].quantised_ms, found[0].loses) == (5.0, False)


# ── what to leave out ───────────────────────────────────────────────────────────────────────────────────


def region(name: str, change: float, *, loses: bool) -> RegionTime:
    return RegionTime(nodes=(name,), float_ms=1.0, quantised_ms=1.0 + change, loses=loses)


def test_the_nodes_of_losing_regions_are_left_out_if_that_gains_something() -> None:
    wins, loses = region("a", -0.5, loses=False), region("b", 0.1, loses=True)
    assert losing([wins, loses], total_ms=2.0, threshold=0.01) == ("b",)
    assert losing([wins, loses], total_ms=20.0, threshold=0.01) == ()


def test_nothing_is_left_out_where_all_win_or_all_lose() -> None:
    assert losing([region("a", -0.5, loses=False)], 2.0, 0.01) == ()
    assert losing([region("a", 0.5, loses=True), region("b", 0.5, loses=True)], 2.0, 0.01) == ()
