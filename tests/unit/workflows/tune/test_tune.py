"""Which candidate is next, and how a run is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from tests.support.ledgers import entry
from tests.support.trt_exercise import DIGITS, VERSIONS, build, target
from tests.support.trt_surface import Surface, load
from tests.support.tuning import proposed, situation
from trtopt.builder_settings import SETTINGS, check_backend, recorded_settings
from trtopt.recipe import Recipe
from trtopt.records import BuildSettings
from trtopt.records.tune import CandidateKind
from trtopt.requests.recipe import check_recipe
from trtopt.workflows.tune.candidates import Change, Queued, Situation
from trtopt.workflows.tune.kinds import KINDS, SETTING
from trtopt.workflows.tune.tune import LEAST_EXPECTED, next_of


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


ORT = situation("onnxruntime", "1")


def on(dump: str) -> Situation:
    return situation(target(dump).backend, dump.rpartition("-")[2])


def of_a_model(given: Situation) -> Situation:
    return replace(given, evidence=replace(given.evidence, model=DIGITS))


def test_every_kind_is_in_the_table_once() -> None:
    assert sorted(kind.name for kind in KINDS) == sorted(get_args(CandidateKind))


@pytest.mark.parametrize("given", [ORT, *map(on, VERSIONS)])
def test_names_differ_between_kinds_too(given: Situation) -> None:
    names = [name for kind in KINDS for name in proposed(kind, of_a_model(given))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dump", VERSIONS)
def test_settings_are_those_of_the_version_and_reach_its_builder(dump: str) -> None:
    """By what TensorRT's bindings themselves list."""
    found = proposed(SETTING, on(dump)).values()
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
    for change in proposed(SETTING, given).values():
        recipe = Recipe(**change.recipe)
        assert change.recipe.keys() <= names
        assert not change.makes_graph
        check_recipe(recipe)
        check_backend(recorded_settings(recipe, BuildSettings), given.backend)
