import numpy as np
import pytest

from tests.unit.measure.statistics.test_intervals import autocorrelated
from trtopt.measure.loop.stopping import Limits, StopCode, StoppingRule, has_stalled


def run(values: list[float] | np.ndarray, precision: StoppingRule, query_s: float = 1e-3) -> int:
    """Feed latencies, `query_s` apart; how many it took."""
    for count, value in enumerate(values, 1):
        precision.add(value)
        if precision.is_finished(count * query_s):
            return count
    return len(values)


def noise(sigma: float, count: int, seed: int = 0) -> np.ndarray:
    return np.exp(sigma * np.random.RandomState(seed).standard_normal(count))


def test_a_steady_run_ends_at_its_minimum_time() -> None:
    precision = StoppingRule(0.005, min_s=0.5)
    assert run([1.0] * 3000, precision) == 500
    assert precision.ended_by is StopCode.PRECISE
    assert precision.reason == (
        "precise: its median is known to ±0.00% from 500 queries, the target is ±0.50%"
    )


def test_a_steady_run_of_fast_queries_ends_no_sooner_than_at_a_hundred() -> None:
    assert run([1.0] * 3000, StoppingRule(0.005, min_s=0)) == 100


def test_a_noisier_run_takes_longer() -> None:
    """σ = 5 %: n for a half-width of 0.5 % is about (2.09 · 1.25 · 10)² = 690, met at the next look."""
    precision = StoppingRule(0.005, min_s=0, max_s=60)
    assert run(noise(0.05, 60_000), precision) == 757
    assert precision.ended_by is StopCode.PRECISE
    assert precision.interval is not None
    assert precision.interval.relative_half_width <= 0.005


def test_a_run_too_noisy_for_its_time_ends_at_the_limit_with_what_is_known() -> None:
    precision = StoppingRule(0.005, max_s=1.0)
    assert run(noise(0.5, 3000), precision) == 1000
    assert precision.ended_by is StopCode.TIME_LIMIT
    assert precision.interval is not None
    assert precision.interval.count == 1000
    assert precision.reason.startswith("time limit of 1 s: its median is known to ±3.81% from 1000")


def test_a_run_that_wanders_ends_when_more_samples_stop_helping() -> None:
    """Clocks that go up and down by 15 % every 20,000 queries."""
    wandering = noise(0.02, 30_000) * (1 + 0.15 * np.sin(np.arange(30_000) * 2 * np.pi / 20_000))
    precision = StoppingRule(0.005, min_s=2, max_s=60)
    assert run(wandering, precision) == 11925
    assert precision.ended_by is StopCode.STALLED
    assert precision.reason.startswith("noise has stabilised at ±")
    assert precision.reason.endswith("% after 11925 queries, above the target of ±0.50%")


def test_steady_noise_is_not_taken_for_a_stalled_run() -> None:
    """50 runs whose target is out of reach; every one has to go on to its time limit."""
    ended = []
    for seed in range(50):
        precision = StoppingRule(1e-6, min_s=0, max_s=30)
        run(noise(0.05, 30_000, seed), precision)
        ended.append(precision.ended_by)
    assert ended.count(StopCode.TIME_LIMIT) == 50


def test_correlated_latencies_are_not_called_precise_as_soon_as_independent_ones() -> None:
    independent = noise(0.02, 30_000)
    correlated = np.repeat(independent, 20)[:30_000]
    counts = [run(values, StoppingRule(0.002, min_s=0, max_s=60)) for values in (independent, correlated)]
    assert counts == [757, 13794]


def test_a_run_called_precise_is_so_nine_times_in_ten_even_if_strongly_correlated() -> None:
    """AR(1), φ = 0.9, σ = 5 %, the true median 1: of 100 runs, those that are precise and within 0.5 %."""
    right = 0
    for values in autocorrelated(0.9, 30_000, 100, seed=3):
        precision = StoppingRule(0.005, min_s=0, max_s=60)
        taken = run(values, precision)
        right += precision.ended_by is StopCode.PRECISE and abs(np.median(values[:taken]) - 1) <= 0.005
    assert right == 94


def test_few_slow_queries_end_at_the_time_limit_but_not_below_the_minimum_count() -> None:
    precision = StoppingRule(0.005, min_count=10, max_s=3.0)
    assert run([1000.0] * 20, precision, query_s=1.0) == 10
    assert precision.ended_by is StopCode.TIME_LIMIT


def test_too_few_queries_for_an_interval_report_it() -> None:
    precision = StoppingRule(0.005, min_count=2, max_s=3.0)
    run([1000.0] * 5, precision, query_s=1.0)
    assert precision.reason == (
        "time limit of 3 s: 3 queries are too few, or too correlated, to estimate its precision, "
        "the target is ±0.50%"
    )


def test_looks_grow_so_rare_that_thirty_thousand_queries_need_only_a_few() -> None:
    precision = StoppingRule(1e-9, min_s=0, max_s=60)
    run(noise(0.05, 30_000), precision)
    assert len(precision._looks) == 26


def test_an_ended_pass_stays_ended() -> None:
    precision = StoppingRule(0.005, min_s=0)
    run([1.0] * 100, precision)
    precision.add(50.0)
    assert precision.is_finished(0.0)
    assert precision.ended_by is StopCode.PRECISE


@pytest.mark.parametrize(
    ("looks", "stalled"),
    [
        ([], False),
        ([(2000, 0.04)], False),
        ([(2000, 0.04), (7999, 0.04)], False),
        ([(2000, 0.04), (8000, 0.02)], False),
        ([(2000, 0.04), (8000, 0.032)], False),
        ([(2000, 0.04), (8000, 0.033)], True),
        ([(1999, 0.04), (8000, 0.04)], False),
    ],
)
def test_a_run_has_stalled_when_four_times_the_samples_leave_over_four_fifths_of_the_interval(
    looks: list[tuple[int, float]], stalled: bool
) -> None:
    assert has_stalled(looks) is stalled


def test_limits_keep_their_order_of_fields() -> None:
    limits = Limits(0.1, 1.0, 2, 5)
    assert (limits.warmup_s, limits.duration_s, limits.min_warmups, limits.min_queries) == (0.1, 1.0, 2, 5)


# ── queries that do not count after all ─────────────────────────────────────────────────────────────────


def test_queries_taken_back_leave_no_trace_on_the_median() -> None:
    interfered, calm = StoppingRule(min_s=0), StoppingRule(min_s=0)
    values = noise(0.3, 2900)
    run(values, interfered)
    run([9.0] * 500, interfered)
    interfered.take_back(500)
    run(values, calm)
    for precision in (interfered, calm):
        assert precision.is_finished(3.0)  # the time limit, where the interval is looked at once more
    assert interfered.interval == calm.interval
    assert interfered.reason == calm.reason


def test_a_precision_that_rests_on_queries_taken_back_is_none() -> None:
    precision = StoppingRule(min_s=0)
    assert run([1.0] * 400, precision) == 100
    precision.take_back(100)
    assert precision.ended_by is None
    assert not precision.is_finished(0.1)
    assert precision.reason.startswith("not ended: 0 queries")
    assert run([1.0] * 400, precision) == 100


def test_a_time_limit_stays_reached_whatever_is_taken_back() -> None:
    precision = StoppingRule(min_s=0, max_s=0.02)
    assert run([1.0] * 30, precision) == 20
    assert precision.ended_by is StopCode.TIME_LIMIT
    precision.take_back(20)
    assert precision.is_finished(0.02)
    assert precision.reason.startswith("time limit of 0.02 s: 0 queries")


def test_taking_nothing_back_changes_nothing() -> None:
    precision = StoppingRule(min_s=0)
    run([1.0] * 100, precision)
    precision.take_back(0)
    assert precision.ended_by is StopCode.PRECISE
