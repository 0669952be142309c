"""Which optimisation profile runs which batch, and how profiles are requested."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from trtopt.builder.shapes import over_all, profiles_for
from trtopt.errors import FixedBatchError, UsageError
from trtopt.recipe import Recipe
from trtopt.records import (
    Backend,
    BuildPlan,
    BuildSettings,
    OnnxArtifact,
    ShapeRange,
    TensorSpec,
    suited,
)
from trtopt.records.tensors import spans_of
from trtopt.requests.recipe import make_recipe
from trtopt.requests.shared import parse_range


def batches(low: int, best: int, high: int) -> ShapeRange:
    return ShapeRange(min=(low,), opt=(best,), max=(high,))


def model(*axes: int | str) -> OnnxArtifact:
    spec = TensorSpec(name="x", dtype="float32", shape=axes)
    return OnnxArtifact(path="model.onnx", sha256="a" * 64, opset=17, inputs=(spec,), outputs=(), types=())


def plan(*ranges: tuple[int, ...]) -> BuildPlan:
    profiles = profiles_for(model("N", 4), ranges)
    reach = over_all(profiles)
    return BuildPlan(
        onnx_sha256="a" * 64,
        batch=reach.batch,
        shapes=reach.shapes,
        settings=BuildSettings(),
        backend=Backend(name="tensorrt", version="8.6.0"),
        multi_profile=profiles if len(profiles) > 1 else (),
    )


# ── which one runs ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ranges", "spans"),
    [
        ([(1, 8, 32)], [(1, 32, 0)]),
        ([(1, 1, 4), (4, 8, 16), (16, 32, 32)], [(1, 4, 0), (5, 16, 1), (17, 32, 2)]),
        ([(1, 1, 1), (8, 8, 8)], [(1, 1, 0), (8, 8, 1)]),
        ([(1, 32, 32), (8, 8, 8)], [(1, 7, 0), (8, 8, 1), (9, 32, 0)]),  # the narrow one within the wide one
        ([(1, 1, 9), (3, 11, 11)], [(1, 6, 0), (7, 11, 1)]),  # equally narrow: as near to 1 as to 11 at 6
        ([(2, 11, 11), (1, 1, 10)], [(1, 5, 1), (6, 11, 0)]),  # there the first
    ],
)
def test_every_batch_runs_under_the_narrowest_profile_that_holds_it_or_the_one_tuned_nearest(
    ranges: list[tuple[int, int, int]], spans: list[tuple[int, int, int]]
) -> None:
    assert spans_of([batches(*one) for one in ranges]) == tuple(spans)


RANGES = st.lists(st.integers(1, 24), min_size=3, max_size=3).map(lambda sizes: batches(*sorted(sizes)))


@given(st.lists(RANGES, min_size=1, max_size=6))
def test_spans_are_what_suits_each_batch_taken_by_itself(ranges: list[ShapeRange]) -> None:
    spans = spans_of(ranges)
    by_batch = {batch: span.profile for span in spans for batch in range(span.low, span.high + 1)}
    one_by_one = {
        batch: found
        for batch in range(30)
        if (found := suited([{"x": one} for one in ranges], {"x": (batch,)})) is not None
    }
    assert by_batch == one_by_one
    assert sum(span.high - span.low + 1 for span in spans) == len(by_batch)
    assert list(spans) == sorted(spans)


@given(st.lists(RANGES, min_size=1, max_size=6), st.integers(1, 24))
def test_what_suits_a_batch_suits_it_with_the_other_axes_too(ranges: list[ShapeRange], batch: int) -> None:
    """A session looks at whole shapes, spans at batches alone: they must come to one answer."""
    wider = [
        {
            "x": ShapeRange(min=(*one.min, 1, 7), opt=(*one.opt, 2, 7), max=(*one.max, 3, 7)),
            "y": ShapeRange(min=one.min, opt=one.opt, max=one.max),
        }
        for one in ranges
    ]
    alone = suited([{"x": one} for one in ranges], {"x": (batch,)})
    assert suited(wider, {"x": (batch, 3, 7), "y": (batch,)}) == alone


def test_a_shape_of_another_rank_suits_nothing() -> None:
    assert suited([{"x": batches(1, 1, 4)}], {"x": (1, 1)}) is None


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_with_profiles_reaches_over_all_of_them_and_is_named_by_each() -> None:
    made = plan((16, 32, 32), (1, 1, 4), (4, 8, 16))
    assert made.label == "batch1-1-4+4-8-16+16-32-32"
    assert made.batch == batches(1, 32, 32)
    assert made.shapes == {"x": ShapeRange(min=(1, 4), opt=(32, 4), max=(32, 4))}
    assert [profile.batch.opt for profile in made.profiles] == [(1,), (8,), (32,)]
    assert [profile.shapes["x"].max for profile in made.profiles] == [(4, 4), (16, 4), (32, 4)]


def test_a_plan_with_one_range_has_one_profile_and_says_nothing_of_several() -> None:
    made = plan((1, 8, 32))
    assert made.multi_profile == ()
    assert [profile.batch for profile in made.profiles] == [made.batch]
    assert made.label == "batch1-8-32"


def test_a_batch_between_profiles_is_in_none() -> None:
    made = plan((1,), (8,))
    assert [made.span_of(batch) is None for batch in (1, 4, 8)] == [False, True, False]


@pytest.mark.parametrize("ranges", [((1, 1, 4), (1, 2, 4)), ((8,), (8,))])
def test_two_profiles_for_the_same_batches_are_refused(ranges: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(UsageError, match="only one of them would ever run"):
        plan(*ranges)


def test_more_profiles_than_an_engine_takes_are_refused_with_their_number() -> None:
    with pytest.raises(UsageError, match="17 optimisation profiles in one engine: at most 16"):
        plan(*((size,) for size in range(1, 18)))


def test_profiles_of_a_model_with_a_fixed_batch_are_refused() -> None:
    with pytest.raises(FixedBatchError, match="fixed at 4; requested 8"):
        profiles_for(model(4, 4), ((4,), (8,)))


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeat_tells_what_a_range_is_tuned_for() -> None:
    assert parse_range("4,1,1") == (1, 1, 4)
    assert plan(parse_range("1,1,4")).batch == batches(1, 1, 4)


def test_ranges_without_dynamic_or_next_to_batch_sizes_are_refused() -> None:
    for flags in ({"ranges": [(1, 4)]}, {"ranges": [(1, 4)], "dynamic": True, "batch": [1]}):
        with pytest.raises(UsageError, match="optimisation profiles of a dynamic engine"):
            make_recipe(None, flags)


@pytest.mark.parametrize("ranges", [[[0, 4]], [[]], [[1, 2**31]]])
def test_ranges_of_what_is_no_batch_size_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="whole numbers from 1 on"):
        make_recipe(None, {"ranges": ranges, "dynamic": True})


def test_batch_sizes_that_are_given_override_a_profiles_ranges_and_the_other_way_round() -> None:
    assert make_recipe("throughput", {"dynamic": True, "ranges": [(1, 4)]}).batch is None
    assert Recipe().ranges == ()
