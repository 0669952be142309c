"""Batch sizes, streams and further builds: where they are tried, and what they promise."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.workflows.tune.engine_kinds import BATCH, LOTTERY, STREAMS, better_build, per_sample_gain


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
