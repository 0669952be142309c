"""Which inputs of a residual Add carry Q/DQ, and why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.support.networks import Net, as_file, edges, fate, residual_block, silu
from trtopt.data.feeds import seeded_source, specs_of
from trtopt.precision.calibrate import QuantizationJob
from trtopt.precision.placement.draft import PlacementOptions, Plan, View
from trtopt.precision.placement.forms import CHOICES, Forms, parse_forms
from trtopt.precision.placement.place import place
from trtopt.precision.qdq import qdq_format_for
from trtopt.precision.quantize import output_error, quantize_graph

MAPS = ["N", 32, 16, 16]


def test_a_residual_carries_q_dq_on_its_skip_alone_and_shares_it_with_the_next_convolution() -> None:
    net = Net(x=MAPS)
    first = residual_block(net, "one", "x")
    second = residual_block(net, "two", first)
    plan = net.plan(second)
    assert edges(plan) == {
        ("x", "one.c1"), ("x", "one.add"), ("one.r1", "one.c2"),
        ("one.out", "two.c1"), ("one.out", "two.add"), ("two.r1", "two.c2"),
    }  # fmt: skip
    assert plan.tensors == ("x", "one.r1", "one.out", "two.r1")
    assert "'one.out' is read in INT8" in fate(plan, "two.add")[1]


def test_with_a_projection_the_shorter_branch_is_the_skip() -> None:
    net = Net(x=MAPS)
    a = net.node("Relu", "r", net.conv("c1", "x", 32, 32))
    net.conv("c2", a, 32, 64)
    net.conv("project", "x", 32, 64, kernel=1)
    for order in (("c2", "project"), ("project", "c2")):
        again = Net(x=MAPS)
        again._nodes, again._weights = list(net._nodes), list(net._weights)
        again.node("Add", "add", *order)
        assert ("project", "add") in edges(again.plan("add"))
        assert ("c2", "add") not in edges(again.plan("add"))


@pytest.mark.parametrize("order", [("up", "conv"), ("conv", "up")])
def test_of_two_branches_as_deep_the_convolution_takes_the_add_and_not_the_transposed_one(
    order: tuple[str, str],
) -> None:
    net = Net(x=MAPS)
    net.node("ConvTranspose", "up", "x", net.constant("up.w", 32, 32, 3, 3), pads=[1, 1, 1, 1])
    net.conv("conv", "x", 32, 32)
    net.node("Add", "add", *order)
    assert {edge for edge in edges(net.plan("add")) if edge[1] == "add"} == {("up", "add")}


def test_an_add_after_something_else_than_a_convolution_stays_in_float() -> None:
    net = Net(x=MAPS)
    a = net.node("Relu", "relu", net.conv("c", "x", 32, 32))
    net.node("Add", "add", a, "x")
    plan = net.plan("add")
    assert fate(plan, "add") == (
        False,
        "neither branch comes straight from a quantised convolution, for it alone",
    )


@pytest.mark.parametrize("activation", ["silu", "Relu"])
def test_behind_an_activation_a_residual_carries_q_dq_on_both_branches(activation: str) -> None:
    net = Net(x=MAPS)
    inner = net.conv("second", activated(net, "first", net.conv("c", "x", 32, 32), activation), 32, 32)
    total = net.node("Add", "add", "x", activated(net, "main", inner, activation))
    plan = net.plan(net.conv("next", total, 32, 32))
    assert {("x", "add"), ("main", "add"), ("x", "c"), ("add", "next")} <= edges(plan)
    assert fate(plan, "add") == (
        True,
        "both branches are read in INT8: behind an activation no layer takes an Add in",
    )


def activated(net: Net, name: str, x: str, activation: str) -> str:
    return silu(net, name, x) if activation == "silu" else net.node(activation, name, x)


def test_behind_an_activation_nothing_is_read_in_int8_for_the_add_alone() -> None:
    """Neither where the sum goes on in float, nor where nobody else reads the skip in INT8."""
    net = Net(x=MAPS)
    net.node("Add", "add", silu(net, "main", net.conv("c", "x", 32, 32)), "x")
    assert not fate(net.plan("add"), "add")[0]
    net = Net(x=MAPS, y=MAPS)
    total = net.node("Add", "add", silu(net, "main", net.conv("c", "x", 32, 32)), "y")
    assert not fate(net.plan(net.conv("next", total, 32, 32)), "add")[0]


def test_a_main_branch_that_others_read_cannot_take_the_add_in() -> None:
    net = Net(x=MAPS)
    net.node("Add", "add", net.conv("c", "x", 32, 32), "x")
    assert fate(net.plan("add"), "add")[0]
    assert not fate(net.plan("add", "c"), "add")[0]


# ── behind matrix products ──────────────────────────────────────────────────────────────────────────────

WIDTH = 32


def norm(net: Net, name: str, x: str) -> str:
    scale = net.constant(f"{name}.g", value=np.ones(WIDTH, np.float32))
    return net.node("LayerNormalization", name, x, scale, net.constant(f"{name}.o", WIDTH))


def product(net: Net, name: str, x: str) -> str:
    return net.node(
        "Add", f"{name}.bias", net.linear(name, x, WIDTH, WIDTH), net.constant(f"{name}.c", WIDTH)
    )


def encoder(layers: int, *, is_swapped: bool = False, is_pre_norm: bool = False) -> tuple[Net, str]:
    """Feed-forward halves of encoder layers: the sum is normalised, or what goes into the branch is."""
    net = Net(x=["N", 4, WIDTH])
    x = "x" if is_pre_norm else norm(net, "first", "x")
    for number in range(layers):
        inside = norm(net, f"{number}.in", x) if is_pre_norm else x
        hidden = net.node("Relu", f"{number}.relu", product(net, f"{number}.up", inside))
        branches = [product(net, f"{number}.down", hidden), x]
        x = net.node("Add", f"{number}.add", *(branches[::-1] if is_swapped else branches))
        x = x if is_pre_norm else norm(net, f"{number}.norm", x)
    return net, x


def plan_of(net: Net, y: str, residual: str) -> Plan:
    return place(View(net.model(y)), PlacementOptions("int8", forms=parse_forms(f"residual={residual}")))


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    ("residual", "read"),
    [
        ("none", set()),
        ("skip", {("first", "0.add"), ("0.norm", "1.add")}),
        (
            "both",
            {("first", "0.add"), ("0.norm", "1.add"), ("0.down.bias", "0.add"), ("1.down.bias", "1.add")},
        ),
    ],
)
def test_behind_products_a_residual_reads_what_is_asked_for(
    residual: str, read: set[tuple[str, str]], is_swapped: bool
) -> None:
    net, y = encoder(2, is_swapped=is_swapped)
    layers = {("first", "0.up"), ("0.relu", "0.down"), ("0.norm", "1.up"), ("1.relu", "1.down")}
    assert edges(plan_of(net, y, residual)) == layers | read


def test_behind_products_of_another_layout_a_residual_reads_the_skip_of_a_depthwise_convolution() -> None:
    """ConvNeXt's block: channels go last for its products, and back, scaled by channel, for the sum."""
    net = Net(x=MAPS)
    skip = net.node("Relu", "stem", net.conv("first", "x", WIDTH, WIDTH))
    last = net.node(
        "Transpose", "last", net.conv("depthwise", skip, WIDTH, WIDTH, group=WIDTH), perm=[0, 2, 3, 1]
    )
    down = product(net, "down", net.node("Relu", "relu", product(net, "up", norm(net, "norm", last))))
    scaled = net.node("Mul", "gamma", down, net.constant("gamma.w", WIDTH))
    y = net.node("Add", "add", net.node("Transpose", "back", scaled, perm=[0, 3, 1, 2]), skip)
    added = {residual: edges(plan_of(net, y, residual)) for residual in CHOICES["residual"]}
    assert added["skip"] - added["none"] == {("stem", "add")}
    assert added["both"] - added["none"] == {("stem", "add"), ("back", "add")}


@pytest.mark.parametrize("residual", ["skip", "both"])
def test_a_skip_that_no_layer_reads_in_int8_gets_no_pair_for_the_add_alone(residual: str) -> None:
    net, y = encoder(2, is_pre_norm=True)
    assert edges(plan_of(net, y, residual)) == edges(plan_of(net, y, "none"))
    assert not fate(plan_of(net, y, residual), "0.add")[0]


def test_a_branch_that_others_read_or_that_is_left_in_float_keeps_the_add_in_float() -> None:
    net, y = encoder(1)
    shared = plan_of(net, y, "both")
    assert fate(shared, "0.add")[0]
    read_twice = place(
        View(net.model(y, "0.down.bias")), PlacementOptions("int8", forms=Forms(residual="both"))
    )
    left = place(
        View(net.model(y)), PlacementOptions("int8", exclude=("0.down",), forms=Forms(residual="both"))
    )
    for plan in (read_twice, left):
        assert not fate(plan, "0.add")[0]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.booleans(), st.sampled_from(CHOICES["residual"]))
def test_the_graph_computes_the_same_up_to_quantisation_with_one_pair_a_tensor(
    layers: int, is_swapped: bool, residual: str
) -> None:
    net, y = encoder(layers, is_swapped=is_swapped)
    model = as_file(net.model(y))
    source = seeded_source(model)
    asked = QuantizationJob(
        "int8",
        forms=parse_forms(f"residual={residual},smoothing=off"),
        qdq=qdq_format_for("int8", "8.6"),
        method="max",
        source=source,
    )
    made = quantize_graph(model, asked)
    pairs = [
        node.input[0]
        for node in made.model.proto.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in View(made.model.proto).constants
    ]
    assert sorted(pairs) == sorted(made.plan.tensors)
    assert len(pairs) == 2 * layers + (layers if residual == "both" else 0)
    errors, _, _ = output_error(model, made.model, source)
    assert errors[y] > 25
    assert specs_of(made.model.proto) == specs_of(model.proto)
