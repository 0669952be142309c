"""The table of kinds: each proposes what its backend's version can build, under names of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tests.support.trt_exercise import DIGITS, VERSIONS, build, target
from tests.support.trt_surface import Surface, load
from tests.support.tuning import proposed, situation
from trtopt.builder_settings import SETTINGS, check_backend, check_ranges, recorded_settings
from trtopt.recipe import Recipe
from trtopt.records import BuildSettings
from trtopt.records.tune import CandidateKind
from trtopt.workflows.tune.candidates import Situation
from trtopt.workflows.tune.engine_kinds import SETTING
from trtopt.workflows.tune.tune import KINDS

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
    tuned = {one.name for one in SETTINGS if one.tuned}
    for change in proposed(SETTING, given).values():
        recipe = Recipe(**change.recipe)
        assert change.recipe.keys() <= tuned
        assert not change.makes_graph
        check_ranges(recipe)
        check_backend(recorded_settings(recipe, BuildSettings), given.backend)
