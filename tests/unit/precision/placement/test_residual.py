"""Which inputs of a residual Add carry Q/DQ, and why."""

from __future__ import annotations

import pytest

from tests.support.networks import Net, edges, fate, residual_block, silu

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
