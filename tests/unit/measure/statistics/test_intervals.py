import math

import numpy as np
import pytest

from trtopt.measure.statistics.intervals import percentile_interval, student


def autocorrelated(phi: float, count: int, runs: int, seed: int) -> np.ndarray:
    """Log-normal around a median of 1, a row a run."""
    random = np.random.RandomState(seed)
    noise = random.standard_normal((count, runs)) * math.sqrt(1 - phi**2)
    logs = noise.copy()
    logs[0] = random.standard_normal(runs)
    for index in range(1, count):
        logs[index] = phi * logs[index - 1] + noise[index]
    return np.exp(0.05 * logs).T


def covered(runs: np.ndarray, true: float = 1.0, p: float = 50.0) -> int:
    intervals = [percentile_interval(run, p) for run in runs]
    return sum(
        (one.low is None or one.low <= true) and (one.high is None or true <= one.high) for one in intervals
    )


def test_ten_values_give_the_second_and_ninth_as_the_binomial_tables_do() -> None:
    interval = percentile_interval([7, 3, 1, 9, 5, 2, 10, 4, 8, 6], 50.0)
    assert (interval.low, interval.value, interval.high) == (2, 5.5, 9)
    assert interval.relative_half_width == 3.5 / 5.5


def test_five_values_are_too_few_for_an_interval() -> None:
    five = percentile_interval([1, 2, 3, 4, 5], 50.0)
    assert (five.low, five.value, five.high, five.relative_half_width) == (None, 3, None, math.inf)
    six = percentile_interval([1, 2, 3, 4, 5, 6], 50.0)
    assert (six.low, six.high) == (1, 6)


def test_the_interval_of_independent_values_covers_the_median_about_95_times_in_100() -> None:
    assert 475 <= covered(autocorrelated(0.0, 1000, 500, seed=1)) <= 490


def test_the_interval_of_correlated_values_covers_the_median_as_often() -> None:
    assert 470 <= covered(autocorrelated(0.9, 1000, 500, seed=2)) <= 490


def is_known(run: np.ndarray, p: float = 50.0) -> bool:
    return percentile_interval(run, p).relative_half_width < math.inf


@pytest.mark.parametrize("phi", [0.99, 0.998])
def test_noise_as_long_as_a_block_is_seen_in_how_blocks_resemble_their_neighbours(phi: float) -> None:
    """With an inflation by the blocks' variance alone 81 and 53 % were covered."""
    runs = autocorrelated(phi, 5000, 200, seed=8)
    assert sum(map(is_known, runs)) > 50
    assert covered(runs) >= 0.94 * len(runs)


@pytest.mark.parametrize(("off_s", "on_s"), [(0.6, 0.4), (3.0, 2.0), (0.93, 0.4)])
def test_an_interval_of_ten_seconds_in_two_modes_covers_the_median_or_is_open(
    off_s: float, on_s: float
) -> None:
    """Modes that last as long as a twentieth to a third of the run; 20 blocks cover 81 to 88 %."""
    random = np.random.RandomState(3)
    lengths = random.exponential((off_s, on_s), (300, 40, 2)) * 1000
    runs = [np.repeat(np.arange(80) % 2, own.astype(int).ravel())[-10_000:] for own in lengths]
    latencies = np.array([np.exp(0.01 * random.standard_normal(10_000)) * (1 + 0.08 * run) for run in runs])
    assert covered(latencies, float(np.median(latencies))) >= 0.9 * len(runs)


def test_noise_as_long_as_the_run_leaves_the_interval_open() -> None:
    assert not is_known(1 + np.linspace(0, 0.1, 2000))
    wandering = autocorrelated(0.999, 1000, 100, seed=6)
    assert sum(map(is_known, wandering)) < 30


@pytest.mark.parametrize("count", [40, 60, 100, 300, 3000])
def test_the_interval_of_independent_values_is_never_open(count: int) -> None:
    random = np.random.RandomState(count)
    assert sum(is_known(run) for run in random.standard_normal((200, count)) + 10) >= 199


def test_noise_that_the_median_shows_holds_for_other_percentiles() -> None:
    random = np.random.RandomState(2)
    drifting = (1 + np.linspace(0, 0.1, 2000)) * np.where(np.arange(2000) % 40 == 7, 2 + random.rand(2000), 1)
    assert not is_known(drifting, 99.0)


def test_spikes_do_not_widen_the_interval() -> None:
    values = 1 + 0.01 * np.random.RandomState(4).standard_normal(1000)
    spiked = np.where(np.arange(1000) % 50 == 0, 100.0, values)
    plain, with_spikes = (percentile_interval(run, 50.0).relative_half_width for run in (values, spiked))
    assert with_spikes == pytest.approx(plain, rel=0.15)


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.099, *[0.1] * 98, 0.101], 0.001),
        ([*[0.000128] * 99, 0.000192], 0.000064),
        ([0.004] * 100, 0.001),
        ([1.234567] * 100, 0.000001),
    ],
)
def test_an_interval_of_no_width_is_as_wide_as_the_clocks_step(values: list[float], step: float) -> None:
    interval = percentile_interval(values, 50.0)
    assert interval.low == pytest.approx(interval.value - step)
    assert interval.high == pytest.approx(interval.value + step)


@pytest.mark.parametrize("lowest", [-1, 0])
def test_a_coarse_clock_does_not_hide_correlation(lowest: int) -> None:
    """Of two or three ticks each stays for three blocks, even if the median is the lowest."""
    ticks = np.clip(np.round(np.random.RandomState(5).standard_normal((100, 7))), lowest, 1) + 10
    runs = [np.repeat(row, 150) for row in ticks if len(set(row)) > 1]
    assert sum(map(is_known, runs)) < 0.3 * len(runs)


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
    runs = np.random.RandomState(11).exponential(size=(400, 2000))
    assert 375 <= covered(runs, -math.log(1 - p / 100), p) <= 399


def test_few_values_do_not_tell_the_bounds_of_a_high_percentile() -> None:
    interval = percentile_interval(np.random.RandomState(1).permutation(100), 99.0)
    assert interval.low is not None
    assert 90 <= interval.low < 99
    assert interval.high is None
    assert percentile_interval([1.0], 50.0).high is None
    with pytest.raises(ValueError, match="no values"):
        percentile_interval([], 99.0)
