"""Histograms and calibration methods against plain reference implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from trtopt.errors import DataError
from trtopt.precision.observe import check_finite
from trtopt.precision.ranges import BINS, METHODS, Histogram, all_amax, entropy, mse, percentile

Floats = NDArray[np.float32]


def seen(*parts: Floats) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part)
    return histogram


def distribution(name: str) -> Floats:
    random = np.random.default_rng(5)
    values: dict[str, Floats] = {
        "normal": random.standard_normal(40_000).astype(np.float32),
        "heavy tails": random.standard_t(2, 40_000).astype(np.float32),
        "half zero": np.maximum(random.standard_normal(40_000), 0).astype(np.float32),
        "exponential": random.exponential(0.01, 40_000).astype(np.float32),
        "one outlier": np.append(random.uniform(-1, 1, 40_000), 500.0).astype(np.float32),
        "constant": np.full(5_000, -2.5, np.float32),
    }
    return values[name]


NAMES = ["normal", "heavy tails", "half zero", "exponential", "one outlier", "constant"]


# ── the histogram ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_numpy_over_the_same_range(name: str) -> None:
    values = distribution(name)
    histogram = seen(values)
    expected, _ = np.histogram(np.abs(values[values != 0]), BINS, (0, histogram.limit))
    assert np.array_equal(histogram.counts, expected)
    assert histogram.peak == np.abs(values).max()
    assert histogram.limit / 2 <= histogram.peak < histogram.limit
    assert histogram.total == values.size


finite = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**90), 2.0**90, width=32))


@given(st.lists(finite, max_size=6), st.randoms())
def test_batches_and_their_order_make_no_difference(parts: list[Floats], random: object) -> None:
    whole = seen(np.concatenate([np.zeros(0, np.float32), *parts]))
    pieces = seen(*reversed(parts))
    assert np.array_equal(pieces.counts, whole.counts)
    assert (pieces.peak, pieces.limit, pieces.zeros) == (whole.peak, whole.limit, whole.zeros)


def test_memory_does_not_grow_with_the_data() -> None:
    few, many = seen(distribution("normal")), seen(*[distribution("heavy tails")] * 20)
    size = {name: value.nbytes for name, value in vars(few).items() if isinstance(value, np.ndarray)}
    assert size == {name: value.nbytes for name, value in vars(many).items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_sample(bad: float) -> None:
    values = np.ones((7, 3, 2), np.float32)
    values[4, 1, 0] = bad
    histogram = seen(np.ones((3, 3, 2), np.float32))
    with pytest.raises(ValueError, match="finite"):
        histogram.add(values)
    assert histogram.total == 18
    with pytest.raises(DataError, match="sample 17"):
        check_finite("x", values, range(13, 20))


def test_other_float_types_count_the_same() -> None:
    values = distribution("normal").astype(np.float16)
    assert np.array_equal(seen(values).counts, seen(values.astype(np.float32)).counts)


# ── the methods ─────────────────────────────────────────────────────────────────────────────────────────


def reference_entropy(histogram: Histogram) -> float:
    """Threshold by threshold, bin by bin."""
    counts = histogram.counts.astype(float)
    best, best_divergence = BINS, np.inf
    for bins in range(128, BINS + 1):
        p = counts[:bins].copy()
        p[-1] += counts[bins:].sum()
        level = np.searchsorted(np.arange(129) * bins // 128, np.arange(bins), side="right") - 1
        filled = np.bincount(level, counts[:bins] > 0, minlength=128)
        means = np.bincount(level, counts[:bins], minlength=128) / np.maximum(filled, 1)
        q = np.where(counts[:bins] > 0, means[level], 0.0)
        if not q.sum() or (q[p > 0] == 0).any():
            continue
        p, q = p / p.sum(), q / q.sum()
        divergence = float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())
        if divergence < best_divergence - 1e-12 or abs(divergence - best_divergence) <= 1e-12:
            best, best_divergence = bins, min(divergence, best_divergence)
    return min(best * histogram.width, histogram.peak)


@pytest.mark.parametrize("name", ["heavy tails", "half zero", "one outlier", "constant"])
def test_entropy_is_the_reference_s(name: str) -> None:
    histogram = seen(distribution(name))
    assert entropy(histogram) == pytest.approx(reference_entropy(histogram), rel=1e-9)


@pytest.mark.parametrize("name", ["normal", "heavy tails", "half zero", "exponential"])
@pytest.mark.parametrize("percent", [99.9, 99.99])
def test_a_percentile_is_numpy_s_to_within_a_bin(name: str, percent: float) -> None:
    values = distribution(name)
    histogram = seen(values)
    exact = float(np.percentile(np.abs(values), percent, method="inverted_cdf"))
    assert abs(percentile(histogram, percent) - exact) <= histogram.width


@pytest.mark.parametrize("name", NAMES)
def test_mse_is_as_good_as_a_search_over_the_values_themselves(name: str) -> None:
    values = distribution(name).astype(np.float64)

    def error(amax: float) -> float:
        scale = amax / 127
        return float(np.mean((values - np.clip(np.rint(values / scale), -127, 127) * scale) ** 2))

    peak = float(np.abs(values).max())
    best = min(error(float(amax)) for amax in np.linspace(peak / 100, peak, 100))
    histogram = seen(values.astype(np.float32))
    assert error(mse(histogram)) <= best + histogram.width**2 / 4


@pytest.mark.parametrize("name", ["normal", "heavy tails", "exponential"])
def test_mse_judges_by_the_scale_that_is_written(name: str) -> None:
    histogram = seen(distribution(name))
    centres = (np.arange(BINS) + 0.5) * histogram.width

    def error(amax: float) -> float:
        scale = amax / 127
        return float(histogram.counts @ (centres - np.minimum(np.rint(centres / scale), 127) * scale) ** 2)

    found = mse(histogram)
    for other in (found * share for share in (0.95, 0.99, 1.01, 1.05)):
        assert error(found) <= error(other) * 1.002


def test_heavy_tails_are_clipped_by_all_but_max() -> None:
    amax = all_amax(seen(distribution("heavy tails")))
    assert amax["max"] > 50
    assert amax["percentile-99.9"] < amax["percentile-99.99"] < amax["percentile-99.999"] < amax["max"]
    assert amax["mse"] < 0.85 * amax["max"]
    assert amax["entropy"] < 0.2 * amax["max"]


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_is_represented_exactly(method: str) -> None:
    assert METHODS[method](seen(distribution("constant"))) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_but_zeros_gives_zero(method: str) -> None:
    assert METHODS[method](seen(np.zeros(100, np.float32))) == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_no_method_exceeds_the_peak_or_clips_everything(method: str) -> None:
    for name in NAMES:
        histogram = seen(distribution(name))
        assert 0.0 < METHODS[method](histogram) <= histogram.peak


def test_almost_only_zeros_do_not_make_a_percentile_vanish() -> None:
    values = np.zeros(100_000, np.float32)
    values[:3] = [1.0, 2.0, 3.0]
    assert percentile(seen(values), 99.9) == 3.0
