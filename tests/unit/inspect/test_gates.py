"""Gates of squeeze-and-excitation, as they stand in a graph with Q/DQ."""

import numpy as np
import pytest

from tests.support.inspected import graph, node
from trtopt.inspect.profile import float_gates

GATE = ("pool", "fc", "sigmoid", "y")


def gated(signal: str = "sigmoid", pooled: str = "maps") -> set[str]:
    made = graph(
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "maps"),
        node("GlobalAveragePool", pooled, "pool"),
        node("Conv", "pool w", "fc"),
        node("Sigmoid", "fc", "sigmoid"),
        node("QuantizeLinear", "sigmoid s z", "narrow"),
        node("DequantizeLinear", "narrow s z", "wide"),
        node("Mul", f"maps {signal}", "y"),
        inputs={"x": (1, 4, 2, 2), "other": (1, 4, 2, 2)},
        weights={"w": np.zeros((4, 4, 1, 1), np.float32), "s": np.ones((), np.float32)},
    )
    return {*float_gates(made)}


def test_a_gate_in_float_is_from_its_pool_to_its_product() -> None:
    assert gated() == {*GATE}


def test_maps_may_be_pooled_in_front_of_their_pair() -> None:
    assert gated(pooled="x") == {*GATE}


@pytest.mark.parametrize("other", [{"signal": "wide"}, {"pooled": "other"}, {"signal": "fc"}])
def test_none_with_a_pair_inside_nor_of_other_maps_nor_without_a_bound(other: dict[str, str]) -> None:
    assert gated(**other) == set()
