"""Bounds and the ranking of layers: pure judgement."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given, strategies as st
from onnx import helper

from trtopt.errors import UsageError
from trtopt.precision.bounds import HOPELESS, Bounds, allowance_used, violations
from trtopt.precision.compare import ranked
from trtopt.records.precision import OutputDifference

CLOSE = OutputDifference(output="y", values=9, cosine=0.99, sqnr_db=40.0, max_abs=0.1, top1=0.95)
EQUAL = OutputDifference(output="z", values=9, cosine=1.0, sqnr_db=None, max_abs=0.0)


@pytest.mark.parametrize(
    ("bounds", "broken"),
    [
        ({}, []),
        ({"min_cosine": 0.99, "min_sqnr": 40.0, "max_error": 0.1, "min_top1": 0.95}, []),
        ({"min_cosine": 0.991}, ["cosine"]),
        ({"min_sqnr": 40.1}, ["SQNR in dB"]),
        ({"max_error": 0.09}, ["max error"]),
        ({"min_top1": 0.96}, ["top-1 agreement"]),
        ({"min_cosine": 0.991, "max_error": 0.0}, ["cosine", "max error"]),
        ({"min_sqnr": nan}, ["SQNR in dB"]),
    ],
)
def test_a_bound_that_is_just_met_holds_and_one_beyond_does_not(
    bounds: dict[str, float], broken: list[str]
) -> None:
    found = violations([CLOSE, EQUAL], Bounds(**bounds))
    assert [item.measure for item in found] == broken
    assert {item.output for item in found} <= {"y"}


def test_values_that_are_not_finite_break_any_bound() -> None:
    odd = OutputDifference(output="y", values=9, cosine=1.0, sqnr_db=None, max_abs=0.0, mismatched=2)
    assert violations([odd], Bounds()) == ()
    (found,) = violations([odd], Bounds(min_cosine=0.1))
    assert (found.measure, found.found, found.bound) == ("NaN or infinite values", 2.0, 0.0)


def test_an_output_without_a_finite_value_breaks_any_bound_and_an_empty_one_none() -> None:
    nothing = OutputDifference(output="y", values=9, cosine=1.0, sqnr_db=None, max_abs=0.0, nonfinite=9)
    assert violations([nothing], Bounds()) == ()
    (found,) = violations([nothing], Bounds(max_error=1.0))
    assert found.text == "finite values of 'y' is 0, the bound is 1"
    assert allowance_used([nothing], Bounds(max_error=1.0)) > 1
    empty = OutputDifference(output="y", values=0, cosine=1.0, sqnr_db=None, max_abs=0.0)
    assert violations([empty], Bounds(max_error=1.0)) == ()


def test_top1_of_what_classifies_nothing_is_no_bound_that_is_met() -> None:
    with pytest.raises(UsageError, match="no output looks like scores"):
        violations([EQUAL], Bounds(min_top1=0.5))


@pytest.mark.parametrize(
    ("bounds", "used"),
    [
        ({"min_cosine": 0.98}, 0.5),
        ({"min_sqnr": 20.0}, 0.1),
        ({"min_sqnr": 60.0}, 10.0),
        ({"max_error": 0.4}, 0.25),
        ({"min_top1": 0.9}, 0.5),
        ({"min_cosine": 0.98, "max_error": 0.05}, 2.0),
        ({"min_cosine": 1.0}, HOPELESS),
        ({"max_error": 0.0}, HOPELESS),
    ],
)
def test_what_is_used_of_an_allowance_is_that_of_the_worst_output_and_bound(
    bounds: dict[str, float], used: float
) -> None:
    assert allowance_used([CLOSE, EQUAL], Bounds(**bounds)) == pytest.approx(used)
    assert allowance_used([EQUAL], Bounds(min_cosine=1.0, min_sqnr=200.0, max_error=0.0)) == 0.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-20, 200), st.floats(-20, 200))
def test_an_allowance_is_used_up_exactly_where_a_bound_is_violated(
    cosine: float, least: float, sqnr: float, bound: float
) -> None:
    item = OutputDifference(output="y", values=9, cosine=cosine, sqnr_db=sqnr, max_abs=1.0)
    for bounds in (Bounds(min_cosine=least), Bounds(min_sqnr=bound), Bounds(min_sqnr=sqnr)):
        assert (allowance_used([item], bounds) > 1) == bool(violations([item], bounds))


def test_values_that_are_not_finite_leave_no_hope() -> None:
    odd = OutputDifference(output="y", values=9, cosine=1.0, sqnr_db=None, max_abs=0.0, mismatched=1)
    assert allowance_used([odd], Bounds(min_cosine=0.1)) == HOPELESS


def test_figures_that_are_no_number_meet_no_bound_and_extreme_bounds_are_judged() -> None:
    unknown = OutputDifference(output="y", values=9, cosine=nan, sqnr_db=nan, max_abs=nan)
    for bounds in (Bounds(min_cosine=-1.0), Bounds(min_sqnr=-1e9), Bounds(max_error=1e300)):
        assert violations([unknown], bounds)
        assert allowance_used([unknown], bounds) == HOPELESS
    assert allowance_used([CLOSE], Bounds(min_sqnr=1e9)) == HOPELESS


def test_layers_are_ranked_by_what_their_nodes_add() -> None:
    made = {
        "a": helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        "cast": helper.make_node("Cast", ["a"], ["cast"], "cast"),
        "b": helper.make_node("Exp", ["cast"], ["b"], "second"),
        "c": helper.make_node("Add", ["b", "a"], ["c"], "third"),
        "d": helper.make_node("Relu", ["c"], ["d"], "fourth"),
    }
    rows = ranked(made, {"a": 60.0, "b": 20.0, "c": 30.0, "d": None})
    assert [row.node for row in rows] == ["second", "first", "third", "fourth"]
    assert rows[0].added == pytest.approx(1e-2 - 1e-6)
    assert rows[1].added == pytest.approx(1e-6)
    assert [row.added for row in rows[2:]] == [0.0, 0.0]
