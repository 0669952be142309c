import math

import numpy as np
import pytest

from trtopt.measure.statistics.intervals import (
    median_interval,
    percentile_interval,
    student,
    variance_inflation,
)


def autocorrelated(phi: float, count: int, runs: int, seed: int) -> np.ndarray:
    """Log-normal around a median of 1, a row a run."""
    random = np.random.RandomState(seed)
    noise = random.standard_normal((count, runs)) * math.sqrt(1 - phi**2)
    logs = noise.copy()
    logs[0] = random.standard_normal(runs)
    for index in range(1, count):
        logs[index] = phi * logs[index - 1] + noise[index]
    return np.exp(0.05 * logs).T


def covered(runs: np.ndarray) -> int:
    intervals = [median_interval(run) for run in runs]
    return sum(interval is not None and interval.low <= 1 <= interval.high for interval in intervals)


def test_ten_values_give_the_second_and_ninth_as_the_binomial_tables_do() -> None:
    interval = median_interval([7, 3, 1, 9, 5, 2, 10, 4, 8, 6])
    assert interval is not None
    assert (interval.low, interval.median, interval.high) == (2, 5.5, 9)
    assert interval.relative_half_width == 3.5 / 5.5


def test_five_values_are_too_few_for_an_interval() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([1, 2, 3, 4, 5, 6]) is not None


def test_the_interval_of_independent_values_covers_the_median_about_95_times_in_100() -> None:
    assert covered(autocorrelated(0.0, 1000, 500, seed=1)) == 485


def test_the_interval_of_correlated_values_covers_the_median_nearly_as_often() -> None:
    assert covered(autocorrelated(0.9, 1000, 500, seed=2)) == 465


def test_correlated_values_count_for_fewer() -> None:
    """Of AR(1) the share below the median has correlation (2/π) asin φ^k at lag k, so τ is one plus twice
    their sum: 13.2 for φ = 0.9."""
    true = 1 + 4 / math.pi * sum(math.asin(0.9**lag) for lag in range(1, 200))
    runs = autocorrelated(0.9, 20_000, 100, seed=3)
    estimates = [variance_inflation(run, float(np.median(run))) for run in runs]
    assert float(np.mean(estimates)) == pytest.approx(true, rel=0.05)


def test_a_run_too_short_for_its_autocorrelation_is_not_called_resolved() -> None:
    runs = autocorrelated(0.98, 1000, 100, seed=6)
    intervals = [median_interval(run) for run in runs]
    assert sum(interval is not None and interval.resolved for interval in intervals) == 0
    assert sum(bool(interval and interval.resolved) for interval in map(median_interval, runs**0)) == 100


def test_spikes_do_not_widen_the_interval() -> None:
    values = 1 + 0.01 * np.random.RandomState(4).standard_normal(1000)
    spiked = np.where(np.arange(1000) % 50 == 0, 100.0, values)
    plain, with_spikes = median_interval(values), median_interval(spiked)
    assert plain is not None
    assert with_spikes is not None
    assert with_spikes.relative_half_width == pytest.approx(plain.relative_half_width, rel=0.15)


def test_equal_values_have_an_interval_of_no_width() -> None:
    interval = median_interval([2.0] * 100)
    assert interval is not None
    assert (interval.low, interval.high, interval.effective_count) == (2.0, 2.0, 100)


@pytest.mark.parametrize("lowest", [-1, 0])
def test_a_coarse_clock_does_not_hide_correlation(lowest: int) -> None:
    """Of two or three ticks each stays for 20 queries, so τ is 20, even if the median is the lowest."""
    ticks = np.clip(np.round(np.random.RandomState(5).standard_normal((100, 1000))), lowest, 1) + 10
    estimates = [variance_inflation(np.repeat(row, 20), 10.0) for row in ticks]
    assert float(np.mean(estimates)) == pytest.approx(20, rel=0.05)


def test_a_coarse_clock_does_not_look_correlated() -> None:
    ticks = np.round(np.random.RandomState(5).standard_normal(10_000)) + 10
    interval = median_interval(ticks)
    assert interval is not None
    assert interval.effective_count > 5_000


@pytest.mark.parametrize("confidence", [0.95, 0.99])
@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 30, 31, 60, 1000])
def test_students_t_encloses_its_confidence(freedom: int, confidence: float) -> None:
    """The density integrated over ±t, with t = √ν tan θ, which makes it cos^(ν-1) θ."""
    edge = math.atan(student(freedom, confidence) / math.sqrt(freedom))
    theta = np.linspace(-edge, edge, 20_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    density = np.cos(theta) ** (freedom - 1) * scale
    area = float((density[1:] + density[:-1]) @ np.diff(theta)) / 2
    assert area == pytest.approx(confidence, abs=5e-5)


def test_degrees_of_freedom_are_rounded_down() -> None:
    assert student(6.9) == student(6)


@pytest.mark.parametrize("freedom", [0, 0.5, -1, math.nan])
def test_students_t_needs_a_degree_of_freedom(freedom: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        student(freedom)


# ── any percentile ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [50.0, 90.0, 99.0])
def test_the_interval_of_a_percentile_covers_it_about_95_times_in_100(p: float) -> None:
    """Of 2,000 exponential values, 400 times: 95 % is 380 ± 4.4, and inflation only widens intervals."""
    random, covered = np.random.RandomState(11), 0
    true = -math.log(1 - p / 100)
    for _ in range(400):
        low, high = percentile_interval(random.exponential(size=2000), p)
        assert low is not None
        assert high is not None
        covered += low <= true <= high
    assert 375 <= covered <= 397


def test_few_values_do_not_tell_the_bounds_of_a_high_percentile() -> None:
    values = list(range(100))
    low, high = percentile_interval(values, 99.0)
    assert low is not None
    assert 90 <= low < 99
    assert high is None
    assert percentile_interval([], 99.0) == (None, None)
    assert percentile_interval([1.0], 50.0) == (None, None)


def test_the_median_has_the_same_interval_either_way() -> None:
    values = np.random.RandomState(12).exponential(size=1000)
    interval = median_interval(values)
    assert interval is not None
    assert percentile_interval(values, 50.0) == (interval.low, interval.high)
