"""Operations and bytes against formulas written out with other numbers."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from onnx import NodeProto

from tests.support.inspected import graph, node, profiled, zeros
from trtopt.inspect.costs import (
    cost_of,
    floor_of,
    furthest_above,
    node_flops,
    peaks_of,
    tensor_bytes,
    total,
    with_floors,
)
from trtopt.inspect.graph import Graph
from trtopt.records import DevicePeaks, LayerCost, Peak, ProfiledLayer


def one(made: NodeProto, inputs: dict[str, tuple[int, ...]], **weights: np.ndarray) -> Graph:
    return graph(made, inputs=inputs, weights=weights)


PRODUCTS = [
    (one(node("Conv", "x w", "y"), {"x": (2, 3, 8, 8)}, w=zeros(16, 3, 3, 3)), 2 * (2 * 16 * 6 * 6) * 27),
    (
        one(node("Conv", "x w", "y", group=4, strides=[2, 2]), {"x": (1, 4, 9, 9)}, w=zeros(8, 1, 3, 3)),
        2 * (8 * 4 * 4) * 9,
    ),
    (
        one(node("ConvTranspose", "x w", "y", strides=[2, 2]), {"x": (1, 4, 5, 5)}, w=zeros(4, 6, 2, 2)),
        2 * (4 * 5 * 5) * 6 * 4,
    ),
    (one(node("MatMul", "x w", "y"), {"x": (2, 5, 7)}, w=zeros(7, 3)), 2 * 2 * 5 * 7 * 3),
    (one(node("Gemm", "x w", "y", transA=1), {"x": (7, 5)}, w=zeros(7, 3)), 2 * 5 * 7 * 3),
    (one(node("Gemm", "x w", "y", transB=1), {"x": (5, 7)}, w=zeros(3, 7)), 2 * 5 * 7 * 3),
    (
        one(
            node("LSTM", "x w r", "y", hidden_size=4), {"x": (6, 2, 3)}, w=zeros(1, 16, 3), r=zeros(1, 16, 4)
        ),
        2 * 6 * 2 * (16 * 3 + 16 * 4),
    ),
]
OTHERS = [
    (one(node("Relu", "x", "y"), {"x": (2, 5)}), 10),
    (one(node("Add", "x w", "y"), {"x": (2, 5)}, w=zeros(3, 1, 1)), 30),
    (one(node("GlobalAveragePool", "x", "y"), {"x": (2, 3, 4, 4)}), 96),
    (one(node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2]), {"x": (1, 3, 4, 4)}), 12 * 4),
    (one(node("Softmax", "x", "y"), {"x": (2, 5)}), 50),
    (one(node("Reshape", "x w", "y"), {"x": (2, 6)}, w=np.array([3, 4])), 0),
    (one(node("Transpose", "x", "y"), {"x": (2, 6)}), 0),
    (one(node("Concat", "x x", "y", axis=0), {"x": (2, 6)}), 0),
]


@pytest.mark.parametrize(("made", "flops"), [*PRODUCTS, *OTHERS])
def test_operations_follow_their_formula(made: Graph, flops: int) -> None:
    assert node_flops(made, made.nodes[0]) == flops


def test_a_batch_scales_operations_and_activations_and_leaves_weights_alone() -> None:
    def at(batch: int) -> LayerCost:
        made = graph(
            node("Conv", "x w", "y"),
            inputs={"x": ("N", 3, 8, 8)},
            weights={"w": zeros(16, 3, 1, 1)},
            shapes={"x": (batch, 3, 8, 8)},
        )
        found = cost_of(made, made.nodes)
        assert found is not None
        return found

    weights = 16 * 3 * 4
    assert at(8).flops == 8 * at(1).flops
    assert at(8).bytes_moved - weights == 8 * (at(1).bytes_moved - weights)


def test_an_unknown_operator_or_shape_has_no_cost() -> None:
    strange = one(node("NonsenseOp", "x", "y"), {"x": (2, 5)})
    assert node_flops(strange, strange.nodes[0]) is None
    assert cost_of(strange, strange.nodes) is None
    open_ = one(node("Relu", "x", "y"), {"x": ("N", 5)})  # type: ignore[dict-item]
    assert cost_of(open_, open_.nodes) is None


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_passes_between_fused_nodes_is_never_moved() -> None:
    made = graph(
        node("Conv", "x w b", "a"),
        node("Relu", "a", "r"),
        node("Add", "r x2", "y"),
        inputs={"x": (1, 3, 4, 4), "x2": (1, 8, 4, 4)},
        weights={"w": zeros(8, 3, 1, 1), "b": zeros(8)},
    )
    conv, relu, add = made.nodes
    plane = 4 * 4 * 4  # bytes of one channel
    weights = (8 * 3 + 8) * 4
    assert cost_of(made, [conv]) == LayerCost(flops=768, bytes_moved=11 * plane + weights)
    assert cost_of(made, [conv, relu]) == LayerCost(flops=896, bytes_moved=11 * plane + weights)
    assert cost_of(made, [conv, relu, add]) == LayerCost(flops=1024, bytes_moved=19 * plane + weights)


def test_a_tensor_that_others_read_too_leaves_the_layer() -> None:
    made = graph(
        node("Relu", "x", "a"),
        node("Exp", "a", "b"),
        node("Add", "a b", "y"),
        inputs={"x": (16,)},
    )
    relu, exp, _ = made.nodes
    found = cost_of(made, [relu, exp])
    assert found is not None
    assert found.bytes_moved == 3 * 16 * 4


def test_a_tensor_read_twice_is_moved_once() -> None:
    made = one(node("Mul", "x x", "y"), {"x": (16,)})
    assert cost_of(made, made.nodes) == LayerCost(flops=16, bytes_moved=2 * 16 * 4)


def test_a_gather_reads_no_more_of_its_table_than_it_writes() -> None:
    made = graph(
        node("Gather", "table ids", "y"),
        inputs={"ids": (4,)},
        weights={"table": zeros(1000, 8)},
        dtype="int64",
    )
    assert cost_of(made, made.nodes) == LayerCost(flops=0, bytes_moved=4 * 8 + 4 * 8 * 4)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2)])
def test_bytes_follow_the_type(dtype: str, size: int) -> None:
    made = graph(node("Relu", "x", "y"), inputs={"x": (3, 5)}, dtype=dtype)
    assert tensor_bytes(made, "x") == 15 * size
    assert cost_of(made, made.nodes) == LayerCost(flops=15, bytes_moved=2 * 15 * size)


def quantised() -> Graph:
    return graph(
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("DequantizeLinear", "w ws", "wd"),
        node("Conv", "xd wd", "c", "conv"),
        node("Relu", "c", "r", "relu"),
        node("QuantizeLinear", "r s z", "rq"),
        node("DequantizeLinear", "rq s z", "y"),
        inputs={"x": (1, 3, 4, 4)},
        weights={
            "s": np.float32(0.1),
            "z": np.int8(0),
            "w": zeros(8, 3, 1, 1, dtype="int8"),
            "ws": np.float32(0.1),
        },
    )


def test_quantised_tensors_are_moved_in_their_narrow_type() -> None:
    made = quantised()
    conv, relu = made.by_name["conv"], made.by_name["relu"]
    found = cost_of(made, [conv, relu])
    assert found is not None
    assert found.bytes_moved == 3 * 16 + 8 * 3 + 8 * 16  # one byte each


def test_a_quantised_node_is_requested_in_the_narrow_type_and_its_neighbour_is_not() -> None:
    made = quantised()
    assert made.requested_dtype(made.by_name["conv"]) == "int8"
    assert made.requested_dtype(made.by_name["relu"]) == "float32"
    assert made.weight_of(made.by_name["conv"]) == "wd"
    assert made.weight_of(made.by_name["relu"]) is None


PEAKS = DevicePeaks(
    device="a device",
    bandwidth=Peak(value=1e9, source="here"),
    flops={"float32": Peak(value=1e10, source="here"), "float16": Peak(value=4e10, source="here")},
)


def costing(name: str, flops: int, moved: int, ms: float | None = 1.0, **rest: object) -> ProfiledLayer:
    return profiled(name, ms=ms, cost=LayerCost(flops=flops, bytes_moved=moved), **rest)


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "floor_ms", "bound"),
    [
        (20_000_000, 1_000_000, "float32", 2.0, "compute"),
        (20_000_000, 1_000_000, "float16", 1.0, "memory"),
        (80_000_000, 1_000_000, "float16", 2.0, "compute"),
        (80_000_000, 1_000_000, "int8", 2.0, "compute"),  # no rate for it: the fastest
        (0, 3_000_000, "float32", 3.0, "memory"),
    ],
)
def test_the_floor_is_the_longer_of_computing_and_moving(
    flops: int, moved: int, dtype: str, floor_ms: float, bound: str
) -> None:
    found = floor_of(LayerCost(flops=flops, bytes_moved=moved), dtype, PEAKS)
    assert (found.floor_ms, found.bound) == (pytest.approx(floor_ms), bound)


def test_a_device_that_is_not_in_the_table_gives_no_floor() -> None:
    cost = LayerCost(flops=1, bytes_moved=1)
    assert peaks_of("a device") is None
    assert floor_of(cost, "float32", None) == cost
    layers = with_floors([costing("1", 1, 1)], None)
    assert furthest_above(layers) == ()
    assert total(layers).floor_ms is None


def test_where_no_rate_could_be_measured_the_bandwidth_alone_gives_the_floor() -> None:
    bare = msgspec.structs.replace(PEAKS, flops={})
    found = floor_of(LayerCost(flops=80_000_000, bytes_moved=1_000_000), "float32", bare)
    assert (found.floor_ms, found.bound) == (pytest.approx(1.0), "memory")


def test_a_layer_is_costed_in_the_type_that_it_ran_in_and_else_in_the_one_requested() -> None:
    ran = costing("1", 80_000_000, 0, dtype="float32", requested_dtype="float16")
    hidden = costing("2", 80_000_000, 0, dtype="", requested_dtype="float16")
    floors = [layer.cost.floor_ms for layer in with_floors([ran, hidden], PEAKS) if layer.cost]
    assert floors == [pytest.approx(8.0), pytest.approx(2.0)]


def test_the_layers_furthest_above_their_floor_come_first_and_reformats_count_whole() -> None:
    layers = with_floors(
        [
            costing("at its floor", 0, 1_000_000, 1.0),
            costing("long but near", 0, 9_000_000, 10.0),
            costing("short but far", 0, 1_000_000, 4.0),
            profiled("reformat", ms=2.0, is_reformat=True),
            profiled("no cost", ms=50.0),
            costing("below its floor", 0, 5_000_000, 1.0),
            costing("never timed", 0, 5_000_000, None),
        ],
        PEAKS,
    )
    assert furthest_above(layers) == ("short but far", "reformat", "long but near")


def test_the_whole_models_floor_and_how_much_of_the_time_it_speaks_of() -> None:
    layers = with_floors(
        [
            costing("1", 10, 1_000_000, 4.0),
            costing("2", 5, 2_000_000, 3.0),
            profiled("reformat", ms=1.0, is_reformat=True),
            profiled("no cost", ms=2.0),
        ],
        PEAKS,
    )
    found = total(layers)
    assert (found.flops, found.bytes_moved, found.measured_ms) == (15, 3_000_000, 10.0)
    assert found.floor_ms == pytest.approx(3.0)
    assert found.costed_share == pytest.approx(0.8)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from(["float32", "float16", "", "int4"]))
def test_a_floor_is_below_neither_of_its_parts(flops: int, moved: int, dtype: str) -> None:
    floor_ms = floor_of(LayerCost(flops=flops, bytes_moved=moved), dtype, PEAKS).floor_ms
    assert floor_ms is not None
    assert floor_ms >= moved / 1e9 * 1e3 * (1 - 1e-12)
    assert floor_ms >= flops / 4e10 * 1e3 * (1 - 1e-12)
