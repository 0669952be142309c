"""Kinds that leave the graph: settings of the builder, what is said of them, batch sizes, streams."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import graph, node, profiled
from tests.support.trt_exercise import target
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.recipe import Recipe
from trtopt.records import ProfiledLayer
from trtopt.workflows.tune.candidates import Prior
from trtopt.workflows.tune.engine_kinds import (
    BATCH,
    LOTTERY,
    SETTING,
    STREAMS,
    better_build,
    parallel_share,
    per_sample_gain,
)

BRANCHES = graph(node("Relu", "x", "a"), node("Exp", "x", "b"), node("Add", "a b", "y"), inputs={"x": (8, 4)})


def test_onnx_runtime_gets_threads_up_to_its_cores() -> None:
    found = proposed(SETTING, situation("onnxruntime", "1"))
    assert [name for name in found if name.startswith("intra")] == [
        f"intra_op_threads={count}" for count in (1, 2, 4, 8)
    ]
    assert "intra_op_threads=2" not in proposed(SETTING, situation("onnxruntime", "1", cores=1))


def test_the_default_is_tried_where_the_recipe_has_another() -> None:
    lowered = situation("onnxruntime", "1", recipe=Recipe(graph_optimization="basic"))
    assert "graph_optimization=all" in proposed(SETTING, lowered)
    assert "graph_optimization=all" not in proposed(SETTING, situation("onnxruntime", "1"))


def test_branches_off_the_longest_path_are_what_streams_can_hide() -> None:
    beside = evidence(profiled("1", "a", 4.0), profiled("2", "b", 3.0), profiled("3", "y", 1.0), of=BRANCHES)
    assert parallel_share(beside) == pytest.approx(3 / 8)
    assert parallel_share(evidence()) == 0.0
    chain = evidence(profiled("1", "a", 4.0), profiled("3", "y", 4.0), of=BRANCHES)
    assert parallel_share(chain) == 0.0
    with_branches, without = (
        proposed(SETTING, situation(evidence=one))["aux_streams=1"] for one in (beside, chain)
    )
    assert gain(with_branches) > gain(without)


def test_harder_search_promises_more_the_further_layers_are_above_their_floor() -> None:
    layer = profiled("1", "y", 10.0)
    near, far = (evidence(layer, floor_ms=floor) for floor in (9.0, 1.0))
    gains = [gain(proposed(SETTING, situation(evidence=one))["opt_level=5"]) for one in (near, far)]
    assert gains[0] < gains[1]


def test_level_4_is_not_tried_from_level_5() -> None:
    levels = [
        name for name in proposed(SETTING, situation(recipe=Recipe(opt_level=5))) if "opt_level" in name
    ]
    assert levels == []
    assert "opt_level=5" in proposed(SETTING, situation(recipe=Recipe(opt_level=4)))


def test_harder_search_takes_longer_builds() -> None:
    found = proposed(SETTING, situation())
    builds = [found[f"opt_level={level}"].builds for level in (4, 5)]
    assert SETTING.builds < builds[0] < builds[1]  # type: ignore[operator]


def priors(name: str, backend: str, version: str, *layers: ProfiledLayer) -> Prior:
    prior = proposed(SETTING, situation(backend, version, evidence=evidence(*layers)))[name].prior
    assert prior is not None
    return prior


def test_libraries_of_products_promise_more_where_these_take_the_time() -> None:
    name = "tactic_sources=" + ",".join(target("tensorrt-10.16.1.11").tactic_sources)
    conv, relu = profiled("1", "Conv", 9.0), profiled("2", "Relu", 1.0)
    both = priors(name, "tensorrt", "10.16.1.11", conv, relu).gain
    assert both > priors(name, "tensorrt", "10.16.1.11", relu).gain == 0.0


def test_a_latency_has_use_for_neither_other_batches_nor_streams() -> None:
    given = situation(batches=(8, 32))
    assert proposed(BATCH, given) == {}
    assert proposed(STREAMS, given) == {}


def test_a_larger_batch_promises_more_the_more_of_a_query_does_not_grow_with_it() -> None:
    idle, busy = (
        situation(is_rate=True, batches=(8, 32, 1), evidence=evidence(latency_ms=1.0, floor_ms=floor))
        for floor in (0.5, 0.9)
    )
    found = [proposed(BATCH, one) for one in (idle, busy)]
    assert [*found[0]] == ["batch=32", "batch=1"]
    assert gain(found[0]["batch=32"]) == pytest.approx(0.5 * (1 - 8 / 32))
    assert gain(found[0]["batch=32"]) > gain(found[1]["batch=32"])
    smaller = found[0]["batch=1"].prior
    assert smaller is not None
    assert smaller.risk > smaller.probability


@given(share=st.floats(0, 1), before=st.integers(1, 512), after=st.integers(1, 512))
def test_two_steps_of_the_batch_save_what_one_step_saves(share: float, before: int, after: int) -> None:
    whole = 1 - per_sample_gain(share, before, after)
    assert whole == pytest.approx(share + (1 - share) * before / after)


def test_streams_fill_what_one_leaves_idle() -> None:
    found = proposed(STREAMS, situation(is_rate=True, evidence=evidence(latency_ms=1.0, floor_ms=0.4)))
    assert [change.streams for change in found.values()] == [2, 4]
    assert all(gain(change) == pytest.approx(0.3) for change in found.values())
    assert not any(change.builds_engine for change in found.values())
    assert proposed(STREAMS, situation("onnxruntime", "1", is_rate=True)) == {}


def test_another_build_is_worth_the_more_the_more_builds_differ() -> None:
    calm, wild = (proposed(LOTTERY, situation(build_spread=spread)) for spread in (0.001, 0.05))
    assert all(change.fresh for change in wild.values())
    assert gain(wild["build 2"]) > gain(calm["build 2"])
    prior = better_build(0.01, 0.01)
    assert prior.probability == pytest.approx(0.2398, abs=1e-4)  # beyond 0.7071 of a standard normal
    assert prior.gain > 0.01
    assert proposed(LOTTERY, situation("onnxruntime", "1")) == {}
