"""GELUs between quantised products, found in graphs that differ in one thing."""

from __future__ import annotations

import pytest
from onnx import NodeProto, helper

from trtopt.precision.casting.rules import gelus_between_products

CONSTANTS = {"w", "bias", "root", "one", "half", "factor", "scale", "zero"}


def node(op: str, inputs: str, output: str) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], f"n_{output}")


def feed_forward(*, product: str = "aq w_dq", last: str = "smooth") -> list[NodeProto]:
    """A product, its bias, GELU by Erf, a factor, Q and DQ; `last` is what Q reads."""
    return [
        node("DequantizeLinear", "a scale zero", "aq"),
        node("DequantizeLinear", "wi scale zero", "w_dq"),
        node("MatMul", product, "y"),
        node("Add", "y bias", "x"),
        node("Div", "x root", "scaled"),
        node("Erf", "scaled", "curve"),
        node("Add", "curve one", "above"),
        node("Mul", "x above", "twice"),
        node("Mul", "twice half", "gelu"),
        node("Mul", "gelu factor", "smooth"),
        node("QuantizeLinear", f"{last} scale zero", "q"),
    ]


ALL = {f"n_{name}" for name in ("x", "scaled", "curve", "above", "twice", "gelu", "smooth")}


def found(nodes: list[NodeProto], missing: str = "") -> set[str]:
    names = {one.name for one in nodes} - {missing}
    return gelus_between_products(nodes, names, CONSTANTS)


def test_the_bias_the_gelu_and_the_factor_behind_it_are_one_group() -> None:
    assert found(feed_forward()) == ALL
    assert found([*feed_forward(), node("QuantizeLinear", "smooth scale zero", "q2")]) == ALL


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(feed_forward(product="x0 w"), id="the product is not quantised"),
        pytest.param(feed_forward(product="aq w"), id="its weight is not quantised"),
        pytest.param([*feed_forward(), node("Relu", "gelu", "other")], id="something else reads it"),
        pytest.param([*feed_forward(), node("Add", "smooth skip", "sum")], id="a sum with something else"),
        pytest.param([one for one in feed_forward() if one.op_type != "Erf"], id="there is no curve"),
    ],
)
def test_a_group_that_meets_anything_but_q_and_quantised_products_is_none(nodes: list[NodeProto]) -> None:
    assert found(nodes) == set()


@pytest.mark.parametrize("missing", sorted(ALL))
def test_a_group_of_which_a_node_must_stay_fp32_is_none(missing: str) -> None:
    assert found(feed_forward(), missing) == set()
