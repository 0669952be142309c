"""The next candidate is the one with the highest expected gain per second that the budget allows."""

from __future__ import annotations

from hypothesis import given, strategies as st

from trtopt.workflows.tune.candidates import Change, Prior, Queued, predict
from trtopt.workflows.tune.tune import LEAST_EXPECTED, next_of


def queued(name: str, gain: float, cost_s: float) -> Queued:
    return Queued(
        "builder-setting", Change(name), predict(name, Prior(gain, 0.5), Prior(gain, 0.5), [], 0.015), cost_s
    )


WAITING = st.lists(
    st.builds(queued, st.just("one"), st.floats(0.0001, 0.5), st.floats(0.1, 100.0)), max_size=8
)


def chosen(waiting: list[Queued], left_s: float) -> str | None:
    found = next_of(waiting, left_s).candidate
    return found.change.name if found else None


def test_a_small_gain_for_little_time_comes_before_a_large_one_for_much() -> None:
    assert chosen([queued("large", 0.2, 100), queued("small", 0.05, 10)], 1000) == "small"


def test_what_does_not_fit_is_passed_over() -> None:
    waiting = [queued("best", 0.5, 50), queued("fits", 0.05, 20)]
    assert chosen(waiting, 30) == "fits"
    ended = next_of(waiting, 10)
    assert ended.candidate is None
    assert ended.stopped == (
        "the budget has 10 s left, and 2 candidates wait that take from 20 s each: "
        "continue with --resume and a larger --budget"
    )


def test_equal_candidates_are_tried_in_their_order() -> None:
    assert chosen([queued("first", 0.1, 10), queued("second", 0.1, 10)], 100) == "first"


def test_an_end_is_explained() -> None:
    assert next_of([], 100).stopped == "no candidate is left to try"
    assert (
        next_of([queued("idle", LEAST_EXPECTED, 1)], 100).stopped == "no candidate is expected to gain 0.05%"
    )


@given(waiting=WAITING, left_s=st.floats(-10, 120))
def test_no_other_candidate_that_fits_and_pays_gains_more_per_second(
    waiting: list[Queued], left_s: float
) -> None:
    found = next_of(waiting, left_s)
    able = [one for one in waiting if one.cost_s <= left_s and one.prediction.expected >= LEAST_EXPECTED]
    if found.candidate is None:
        assert not able
        assert found.stopped
    else:
        assert found.candidate in able
        assert all(one.gain_per_s <= found.candidate.gain_per_s for one in able)
