import numpy as np

from trtopt.measure.loop.warmup import WarmUp, WarmUpEnd, halves_agree


def run(values: list[float], warmup: WarmUp) -> tuple[int, WarmUpEnd | None]:
    """Feed latencies in milliseconds, one after the other; how many it took and what ended it."""
    elapsed_s = 0.0
    for count, value in enumerate(values, 1):
        warmup.add(value)
        elapsed_s += value / 1e3
        if warmup.is_finished(elapsed_s):
            return count, warmup.ended_by
    return len(values), warmup.ended_by


def test_a_steady_run_is_warm_after_twenty_values() -> None:
    assert run([1.0] * 100, WarmUp(min_s=0)) == (20, WarmUpEnd.SETTLED)


def test_a_steady_run_is_not_warm_before_its_minimum_time() -> None:
    assert run([1.0] * 1000, WarmUp(min_s=0.1995)) == (200, WarmUpEnd.SETTLED)


def test_a_steady_run_is_not_warm_before_its_minimum_count() -> None:
    assert run([1.0] * 1000, WarmUp(min_s=0, min_count=50)) == (50, WarmUpEnd.SETTLED)


def test_a_run_that_speeds_up_is_warm_once_it_is_steady() -> None:
    speeding_up = [2.0 - 0.02 * index for index in range(50)] + [1.0] * 100
    assert run(speeding_up, WarmUp(min_s=0)) == (70, WarmUpEnd.SETTLED)


def test_a_slow_first_query_does_not_hold_warm_up_back() -> None:
    assert run([500.0] + [1.0] * 100, WarmUp(min_s=0)) == (20, WarmUpEnd.SETTLED)


def test_a_run_that_never_settles_ends_at_the_time_limit() -> None:
    warmup = WarmUp(min_s=0, max_s=1.0)
    assert run([1.1**index for index in range(100)], warmup)[1] is WarmUpEnd.TIME_LIMIT
    assert warmup.reason == "time limit of 1 s: the halves of the last 20 of 49 queries disagree"


def test_a_few_slow_queries_end_at_the_time_limit_and_it_says_that_they_are_few() -> None:
    warmup = WarmUp(max_s=5.0, min_count=3)
    assert run([1000.0] * 10, warmup) == (5, WarmUpEnd.TIME_LIMIT)
    assert warmup.reason == "time limit of 5 s: 5 queries are too few to tell whether it settled"


def test_the_minimum_count_outlasts_the_time_limit() -> None:
    assert run([1000.0] * 10, WarmUp(max_s=1.0, min_count=3)) == (3, WarmUpEnd.TIME_LIMIT)


def test_the_reason_counts_the_queries_it_took() -> None:
    warmup = WarmUp(min_s=0)
    assert warmup.reason == "still warming up after 0 queries"
    run([1.0] * 20, warmup)
    assert warmup.reason == "settled after 20 queries: the halves of the last 20 agree"


def test_halves_within_one_percent_agree_and_halves_beyond_it_do_not() -> None:
    assert halves_agree([1.0] * 10 + [1.009] * 10)
    assert not halves_agree([1.0] * 10 + [1.02] * 10)


def test_halves_within_their_own_noise_agree() -> None:
    noisy = [1.0, 1.2] * 5
    assert halves_agree(noisy + [value + 0.1 for value in noisy])
    assert not halves_agree(noisy + [value + 0.3 for value in noisy])


def test_halves_of_noise_without_trend_seldom_disagree() -> None:
    """σ of ten values' deviations from their own median is somewhat too small, hence more than 5 %."""
    values = 1 + 0.1 * np.random.RandomState(0).standard_normal((1000, 20))
    assert sum(not halves_agree(list(row)) for row in values) == 86
