import numpy as np
import pytest

from trtopt.measure.loop.stopping import (
    Limits,
    StoppingRule,
    WarmUp,
    halves_agree,
    is_steady,
)


def warm_up(values: list[float], warmup: WarmUp) -> tuple[int, str | None]:
    """Feed latencies in milliseconds, one after the other; how many it took and what ended it."""
    elapsed_s = 0.0
    for count, value in enumerate(values, 1):
        warmup.add(value)
        elapsed_s += value / 1e3
        if warmup.is_finished(elapsed_s):
            return count, warmup.ended_by
    return len(values), warmup.ended_by


def test_a_steady_run_is_warm_after_twenty_values() -> None:
    assert warm_up([1.0] * 100, WarmUp(min_s=0)) == (20, "settled")


def test_a_steady_run_is_not_warm_before_its_minimum_time() -> None:
    assert warm_up([1.0] * 1000, WarmUp(min_s=0.1995)) == (200, "settled")


def test_a_steady_run_is_not_warm_before_its_minimum_count() -> None:
    assert warm_up([1.0] * 1000, WarmUp(min_s=0, min_count=50)) == (50, "settled")


def test_a_run_that_speeds_up_is_warm_once_it_is_steady() -> None:
    speeding_up = [2.0 - 0.02 * index for index in range(50)] + [1.0] * 100
    assert warm_up(speeding_up, WarmUp(min_s=0)) == (70, "settled")


def test_a_slow_first_query_does_not_hold_warm_up_back() -> None:
    assert warm_up([500.0] + [1.0] * 100, WarmUp(min_s=0)) == (20, "settled")


def test_a_run_that_never_settles_ends_at_the_time_limit() -> None:
    warmup = WarmUp(min_s=0, max_s=1.0)
    assert warm_up([1.1**index for index in range(100)], warmup)[1] == "time limit"
    assert warmup.reason == "time limit of 1 s: the halves of the last 20 of 49 queries disagree"


def test_a_few_slow_queries_end_at_the_time_limit_and_it_says_that_they_are_few() -> None:
    warmup = WarmUp(max_s=5.0, min_count=3)
    assert warm_up([1000.0] * 10, warmup) == (5, "time limit")
    assert warmup.reason == "time limit of 5 s: 5 queries are too few to tell whether it settled"


def test_the_minimum_count_outlasts_the_time_limit() -> None:
    assert warm_up([1000.0] * 10, WarmUp(max_s=1.0, min_count=3)) == (3, "time limit")


def test_the_reason_counts_the_queries_it_took() -> None:
    warmup = WarmUp(min_s=0)
    warm_up([1.0] * 20, warmup)
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


TEN = Limits(duration_s=10.0)
EARLY = Limits(duration_s=10.0, stop_early=True)


def run(values: list[float] | np.ndarray, rule: StoppingRule, query_s: float = 1e-3) -> int:
    """Feed latencies, `query_s` apart; how many it took."""
    for count, value in enumerate(values, 1):
        rule.add(value)
        if rule.is_finished(count * query_s):
            return count
    return len(values)


def noise(sigma: float, count: int, seed: int = 0) -> np.ndarray:
    return np.exp(sigma * np.random.RandomState(seed).standard_normal(count))


def test_a_steady_run_takes_its_whole_duration() -> None:
    rule = StoppingRule(TEN)
    assert run(noise(0.01, 12_000), rule) == 10_000
    assert rule.ended_by == "duration"
    assert rule.reason.startswith("sampled for 10 s: median known to ±0.0")


def test_a_steady_run_may_stop_early_but_not_before_eight_seconds() -> None:
    rule = StoppingRule(EARLY)
    assert run(noise(0.01, 12_000), rule) == 8000
    assert rule.ended_by == "steady"
    assert rule.reason.startswith("steady: 20 blocks agree within ±0.50%, median known to ±0.0")


def test_no_run_stops_before_a_third_of_its_duration() -> None:
    assert run(noise(0.01, 12_000), StoppingRule(Limits(duration_s=27.0, stop_early=True))) == 9000


def test_modes_that_last_for_half_a_second_are_not_steady() -> None:
    """Of 100 runs; a rule that asks for a narrow interval stops in a tenth of them while one mode lasts."""
    random = np.random.RandomState(3)
    ended = []
    for _ in range(100):
        lengths = random.exponential(500, 100).astype(int) + 1
        modes = np.repeat(np.arange(100) % 2, lengths)[:10_000]
        rule = StoppingRule(EARLY)
        run(noise(0.01, len(modes), random.randint(1000)) * (1 + 0.08 * modes), rule)
        ended.append(rule.ended_by)
    assert ended.count("steady") <= 1


@pytest.mark.parametrize(
    ("values", "steady"),
    [
        (np.ones(100), True),
        (np.ones(19), False),
        (np.linspace(1, 1.009, 2000), True),
        (np.linspace(1, 1.02, 2000), False),
        (np.where(np.arange(2000) < 1900, 1.0, 1.01), False),
    ],
)
def test_a_run_is_steady_if_all_of_its_blocks_agree(values: np.ndarray, steady: bool) -> None:
    assert is_steady(values) is steady


def test_few_slow_queries_end_after_the_duration_but_not_below_the_minimum_count() -> None:
    rule = StoppingRule(Limits(duration_s=3.0, min_queries=10))
    assert run([1000.0] * 20, rule, query_s=1.0) == 10
    assert rule.ended_by == "duration"


def test_too_few_queries_for_an_interval_report_it() -> None:
    rule = StoppingRule(Limits(duration_s=3.0, min_queries=2))
    run([1000.0] * 5, rule, query_s=1.0)
    assert (
        rule.reason
        == "sampled for 3 s: median of 3 queries, too few for their noise to tell how well it is known"
    )


# ── queries that do not count after all ─────────────────────────────────────────────────────────────────


def test_queries_taken_back_leave_no_trace_on_the_median() -> None:
    interfered, calm = StoppingRule(TEN), StoppingRule(TEN)
    values = noise(0.3, 2900)
    run(values, interfered)
    run([9.0] * 500, interfered)
    interfered.take_back(500)
    run(values, calm)
    for rule in (interfered, calm):
        assert rule.is_finished(10.0)
    assert interfered.reason == calm.reason


def test_steadiness_that_rests_on_queries_taken_back_is_none() -> None:
    rule = StoppingRule(EARLY)
    run(noise(0.01, 12_000), rule)
    rule.take_back(8000)
    assert rule.ended_by is None
    rule.take_back(0)
    assert not rule.is_finished(9.0)


def test_a_duration_stays_reached_whatever_is_taken_back() -> None:
    rule = StoppingRule(Limits(duration_s=0.02))
    assert run([1.0] * 30, rule) == 20
    rule.take_back(20)
    assert rule.is_finished(0.02)
    assert rule.reason.startswith("sampled for 0.02 s: 0 queries")
