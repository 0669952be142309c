"""Which candidate is next, by predictions that learn of what was measured; what may be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from tests.support.ledgers import entry, won
from tests.support.trt_exercise import DIGITS, VERSIONS, build, target
from tests.support.trt_surface import Surface, load
from tests.support.tuning import proposed, situation
from trtopt.builder_settings import SETTINGS, check_backend, recorded_settings
from trtopt.recipe import Recipe
from trtopt.records import BuildSettings, LedgerEntry
from trtopt.records.tune import CandidateKind
from trtopt.requests.recipe import check_recipe
from trtopt.workflows.tune.kinds import KINDS, Change, Prediction, Situation
from trtopt.workflows.tune.tune import LEAST_EXPECTED, Queued, next_of, predict, predicted_cost_s


def queued(name: str, gain: float, cost_s: float) -> Queued:
    line = entry(candidate=name, predicted_gain=gain, probability=0.5, predicted_cost_s=cost_s)
    return Queued(Change(name), line)


WAITING = st.lists(
    st.builds(queued, st.just("one"), st.floats(0.0001, 0.5), st.floats(0.1, 100.0)), max_size=8
)


def chosen(waiting: list[Queued], left_s: float) -> str | None:
    found = next_of(waiting, left_s)
    return None if isinstance(found, str) else found[0].change.name


def test_a_small_gain_for_little_time_comes_before_a_large_one_for_much() -> None:
    assert chosen([queued("large", 0.2, 100), queued("small", 0.05, 10)], 1000) == "small"


def test_what_does_not_fit_is_passed_over() -> None:
    waiting = [queued("best", 0.5, 50), queued("fits", 0.05, 20)]
    assert chosen(waiting, 30) == "fits"
    assert next_of(waiting, 10) == (
        "the budget has 10 s left, and 2 candidates wait that take from 20 s each: "
        "continue with --resume and a larger --budget"
    )


def test_equal_candidates_are_tried_in_their_order() -> None:
    assert chosen([queued("first", 0.1, 10), queued("second", 0.1, 10)], 100) == "first"


def test_an_end_is_explained() -> None:
    assert next_of([], 100) == "no candidate is left to try"
    assert next_of([queued("idle", LEAST_EXPECTED, 1)], 100) == "no candidate is expected to gain 0.05%"


@given(waiting=WAITING, left_s=st.floats(-10, 120))
def test_no_other_candidate_that_fits_and_pays_gains_more_per_second(
    waiting: list[Queued], left_s: float
) -> None:
    found = next_of(waiting, left_s)
    lines = [(one, one.entry) for one in waiting]
    able = [
        one for one, line in lines if line.predicted_cost_s <= left_s and line.expected_gain >= LEAST_EXPECTED
    ]
    if isinstance(found, str):
        assert not able
    else:
        assert [one in able for one in found] == [True]
        assert all(one.gain_per_s <= found[0].gain_per_s for one in able)
        assert len(next_of(waiting, left_s, 3)) == min(len(able), 3)


GUESS = Prediction(0.1, 0.5)
SHARES = st.floats(0.01, 0.95)


def predicted(history: list[LedgerEntry]) -> Prediction:
    """Of another value of the setting that the history's candidates have."""
    return predict("opt_level=4", GUESS, history)


def test_without_history_the_guess_is_the_prediction() -> None:
    assert predicted([]) == GUESS


def test_what_came_out_as_believed_changes_nothing() -> None:
    found = predicted([won(0.1), entry()])
    assert (found.gain, found.probability) == pytest.approx((0.1, 0.5))


def test_four_outcomes_weigh_as_much_as_the_guess() -> None:
    assert predicted([entry()] * 4).probability == pytest.approx(0.25)
    assert predicted([won(0.3)] * 4).gain == pytest.approx(0.2)


def test_other_settings_of_the_kind_say_nothing() -> None:
    lost = entry(candidate="aux_streams=4", measured_gain=-1.0, verdict="slower")
    assert predicted([lost] * 9) == predicted([])


def test_a_candidate_that_changed_nothing_says_nothing_of_its_kind() -> None:
    unchanged = entry(verdict="unchanged", measured_gain=None)
    assert predicted([unchanged] * 9) == predicted([])


@given(gain=SHARES, probability=SHARES, wins=st.integers(0, 20), losses=st.integers(0, 20), won_by=SHARES)
def test_a_correction_lies_between_the_guess_and_what_was_seen(
    gain: float, probability: float, wins: int, losses: int, won_by: float
) -> None:
    history = [won(won_by)] * wins + [entry(measured_gain=-0.5, verdict="slower")] * losses
    found = predict("opt_level=4", Prediction(gain, probability), history)
    seen = wins / len(history) if history else probability
    assert min(probability, seen) - 1e-9 <= found.probability <= max(probability, seen) + 1e-9
    gained = won_by if wins else gain
    assert min(gain, gained) - 1e-9 <= found.gain <= max(gain, gained) + 1e-9


@given(history=st.lists(st.booleans(), max_size=20))
def test_one_more_success_makes_the_next_more_likely_and_a_failure_less(history: list[bool]) -> None:
    past = [won(0.1) if worked else entry() for worked in history]
    now = predicted(past).probability
    assert predicted([*past, entry()]).probability < now
    assert predicted([*past, won(0.1)]).probability >= now


@given(factor=st.floats(0.1, 10), count=st.integers(1, 50))
def test_costs_shrink_towards_what_they_were(factor: float, count: int) -> None:
    history = [entry(predicted_cost_s=10.0, cost_s=10.0 * factor)] * count
    found = predicted_cost_s(100.0, history)
    assert min(100.0, 100.0 * factor) - 1e-6 <= found <= max(100.0, 100.0 * factor) + 1e-6
    more = predicted_cost_s(100.0, history * 20)
    assert abs(more - 100.0 * factor) <= abs(found - 100.0 * factor) + 1e-6


ORT = situation("onnxruntime", "1")


def on(dump: str) -> Situation:
    return situation(target(dump).backend, dump.rpartition("-")[2])


def of_a_model(given: Situation) -> Situation:
    return replace(given, model=DIGITS)


def test_every_kind_is_in_the_table_once() -> None:
    assert sorted(kind.name for kind in KINDS) == sorted(get_args(CandidateKind))


@pytest.mark.parametrize("given", [ORT, *map(on, VERSIONS)])
def test_names_differ_between_kinds_too(given: Situation) -> None:
    names = [name for kind in KINDS for name in proposed(kind.name, of_a_model(given))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dump", VERSIONS)
def test_settings_are_those_of_the_version_and_reach_its_builder(dump: str) -> None:
    """By what TensorRT's bindings themselves list."""
    found = proposed("builder-setting", on(dump)).values()
    for change in found:
        build(Surface(dump), recorded_settings(Recipe(**change.recipe), BuildSettings))
    tries_tiling = any("tiling" in change.recipe for change in found)
    assert tries_tiling == ("TilingOptimizationLevel" in load(dump)["enums"])


@pytest.mark.parametrize("dump", VERSIONS)
def test_the_tactic_sources_of_a_target_are_those_of_its_bindings(dump: str) -> None:
    assert set(target(dump).tactic_sources) == {*load(dump)["enums"]["TacticSource"]}


@pytest.mark.parametrize("given", [ORT, *map(on, VERSIONS)])
def test_settings_are_ones_that_a_recipe_may_have(given: Situation) -> None:
    names = {one.name for one in SETTINGS}
    for change in proposed("builder-setting", given).values():
        recipe = Recipe(**change.recipe)
        assert change.recipe.keys() <= names
        assert not change.makes_graph
        check_recipe(recipe)
        check_backend(recorded_settings(recipe, BuildSettings), given.backend)
