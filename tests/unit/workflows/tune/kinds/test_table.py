"""What may be tried on each backend."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tests.support import examples
from tests.support.trt_exercise import VERSIONS, build, target
from tests.support.trt_surface import Surface, load
from trtopt.builder_settings import SETTINGS, check_backend, check_ranges
from trtopt.recipe import Recipe
from trtopt.records import Backend, BuildSettings
from trtopt.records.tuning import CandidateKind
from trtopt.workflows.tune.kinds.kind import Change, Situation
from trtopt.workflows.tune.kinds.table import KINDS

ORT = Situation(
    backend=Backend(name="onnxruntime", version="1"),
    device=examples.GPU,
    cores=8,
    batch=8,
    batches=(8,),
    streams=1,
    is_rate=False,
    recipe=Recipe(),
    selected=None,
    data=None,
)


def names(situation: Situation) -> list[str]:
    return [change.name for kind in KINDS for change in kind.changes(situation)]


def settings_of(situation: Situation) -> list[Change]:
    return [
        change for kind in KINDS for change in kind.changes(situation) if change.kind == "builder-setting"
    ]


def on(dump: str) -> Situation:
    version = dump.rpartition("-")[2]
    return replace(ORT, backend=Backend(name=target(dump).backend, version=version))


def test_every_kind_has_an_entry_and_its_own_changes() -> None:
    assert {kind.name for kind in KINDS} == {*get_args(CandidateKind)}
    situation = replace(on("tensorrt-10.16.1.11"), is_rate=True, batches=(8, 32), data="samples.npz")
    for kind in KINDS:
        found = [*kind.changes(situation)]
        assert found
        assert {change.kind for change in found} == {kind.name}
    assert len(names(situation)) == len(set(names(situation)))


def test_what_a_latency_cannot_use_is_not_tried() -> None:
    assert not any(name.startswith(("batch=", "streams=")) for name in names(on("tensorrt-10.16.1.11")))


def test_without_samples_or_on_a_changed_graph_no_precision_is_tried() -> None:
    given = replace(ORT, data="samples.npz")
    assert "precision=best" in names(given)
    assert "precision=best" not in names(ORT)
    assert "precision=best" not in names(replace(given, selected="int8"))


def test_onnx_runtime_has_no_lottery_and_threads_up_to_its_cores() -> None:
    found = names(ORT)
    assert not any(name.startswith("build ") for name in found)
    assert [name for name in found if name.startswith("intra")] == [
        f"intra_op_threads={count}" for count in (1, 2, 4, 8)
    ]
    assert "intra_op_threads=2" not in names(replace(ORT, cores=1))


def test_what_the_incumbent_has_is_not_tried_and_the_default_is_where_it_has_another() -> None:
    basic = names(replace(ORT, recipe=Recipe(graph_optimization="basic")))
    assert "graph_optimization=basic" not in basic
    assert "graph_optimization=all" in basic
    assert "graph_optimization=all" not in names(ORT)


@pytest.mark.parametrize("dump", VERSIONS)
def test_settings_are_those_of_the_version_and_reach_its_builder(dump: str) -> None:
    """By what TensorRT's bindings themselves list."""
    situation = on(dump)
    for change in settings_of(situation):
        build(Surface(dump), BuildSettings(**change.recipe))
    tries_tiling = any("tiling" in change.recipe for change in settings_of(situation))
    assert tries_tiling == ("TilingOptimizationLevel" in load(dump)["enums"])


@pytest.mark.parametrize("dump", VERSIONS)
def test_the_tactic_sources_of_a_target_are_those_of_its_bindings(dump: str) -> None:
    assert set(target(dump).tactic_sources) == {*load(dump)["enums"]["TacticSource"]}


@pytest.mark.parametrize("situation", [ORT, *map(on, VERSIONS)])
def test_settings_are_ones_that_a_recipe_may_have(situation: Situation) -> None:
    tuned = {one.name for one in SETTINGS if one.tuned}
    for change in settings_of(situation):
        assert change.recipe.keys() <= tuned
        check_ranges(Recipe(**change.recipe))
        check_backend(BuildSettings(**change.recipe), situation.backend)
