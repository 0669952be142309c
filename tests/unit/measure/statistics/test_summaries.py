import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

import trtopt
from trtopt.measure.statistics.summaries import percentile, summarise, throughput
from trtopt.records import Samples

TIMES = st.floats(1e-6, 1e6)


def samples(*queries: tuple[float, float]) -> Samples:
    """Queries by their start and end; the device's own times do not matter here."""
    starts, ends = ([query[side] for query in queries] for side in (0, 1))
    nothing = [0.0] * len(queries)
    return Samples(
        start_ms=starts,
        end_ms=ends,
        enqueue_ms=nothing,
        gpu_compute_ms=nothing,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * len(queries),
    )


# ── percentiles ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([7.0], 50.0, 7.0),
        ([4.0, 1.0, 3.0, 2.0], 50.0, 2.5),
        ([5.0, 1.0, 3.0], 50.0, 3.0),
        ([float(n) for n in range(1, 11)], 90.0, 9.1),
        ([float(n) for n in range(20, 0, -1)], 95.0, 19.05),
        ([float(n) for n in range(1, 101)], 99.0, 99.01),
        ([float(n) for n in range(1, 1001)], 99.9, 999.001),
        ([3.0, 1.0, 2.0], 0.0, 1.0),
    ],
)
def test_percentiles_are_interpolated_linearly(values: list[float], p: float, expected: float) -> None:
    assert percentile(values, p) == pytest.approx(expected, rel=1e-12)


@given(st.lists(TIMES, min_size=100, max_size=150), st.sampled_from([50.0, 90.0, 95.0, 99.0]))
def test_a_percentile_lies_between_its_two_neighbours_by_its_distance_from_them(
    values: list[float], p: float
) -> None:
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    expected = below + (above - below) * (place - math.floor(place))
    assert percentile(values, p) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("p", "needed"), [(50.0, 1), (90.0, 10), (95.0, 20), (99.0, 100), (99.9, 1000)])
def test_a_percentile_is_withheld_below_the_count_that_supports_it(p: float, needed: int) -> None:
    assert percentile([1.0] * (needed - 1), p) is None
    assert percentile([1.0] * needed, p) == 1.0
    assert summarise([1.0] * needed).percentiles[p] == 1.0
    if needed > 1:
        assert summarise([1.0] * (needed - 1)).percentiles[p] is None


def test_a_percentile_that_no_table_lists_is_withheld_by_the_same_rule() -> None:
    assert percentile([1.0] * 100, 99.5) is None
    assert percentile([1.0] * 5000, 99.99) is None
    assert percentile([1.0] * 201, 99.5) == 1.0


# ── summaries ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_summary_of_known_values_is_known() -> None:
    summary = summarise([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert summary.count == 8
    assert (summary.mean, summary.minimum, summary.maximum) == (5.0, 2.0, 9.0)
    assert summary.cv == pytest.approx(2.0 / 5.0, rel=1e-12)
    assert summary.median == 4.5
    assert summary.percentiles == {50.0: 4.5, 90.0: None, 95.0: None, 99.0: None, 99.9: None}


@given(st.lists(TIMES, min_size=1, max_size=60))
def test_a_summary_agrees_with_numpy(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.count == len(values)
    assert summary.minimum == min(values)
    assert summary.maximum == max(values)
    assert summary.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-9)
    assert summary.cv == pytest.approx(np.std(values) / np.mean(values), rel=1e-6, abs=1e-9)
    assert summary.median == pytest.approx(float(np.median(values)), rel=1e-12)


@given(st.lists(TIMES, min_size=1, max_size=60), st.randoms())
def test_a_summary_does_not_depend_on_the_order_of_the_values(values: list[float], random: Random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    assert summarise(shuffled).percentiles == summarise(values).percentiles


def test_values_that_are_all_zero_have_no_spread() -> None:
    assert summarise([0.0, 0.0]).cv == 0.0


def test_nothing_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="no values"):
        summarise([])


# ── throughput ──────────────────────────────────────────────────────────────────────────────────────────


def test_throughput_is_queries_over_the_time_from_the_first_start_to_the_last_end() -> None:
    rate = throughput(samples((10.0, 12.0), (12.0, 14.0), (14.0, 16.0)), batch=8)
    assert rate.queries_per_s == pytest.approx(500.0, rel=1e-12)
    assert rate.samples_per_s == pytest.approx(4000.0, rel=1e-12)


def test_throughput_is_not_inferred_from_latency() -> None:
    overlapping = samples((0.0, 4.0), (1.0, 5.0), (2.0, 6.0))
    assert [round(ms, 9) for ms in overlapping.latency_ms] == [4.0, 4.0, 4.0]
    assert throughput(overlapping, batch=1).queries_per_s == pytest.approx(500.0, rel=1e-12)


def test_pauses_between_queries_count_against_throughput() -> None:
    assert throughput(samples((0.0, 1.0), (9.0, 10.0)), batch=1).queries_per_s == pytest.approx(200.0)


def test_the_last_end_need_not_be_that_of_the_last_query() -> None:
    assert throughput(samples((0.0, 10.0), (1.0, 5.0)), batch=2).samples_per_s == pytest.approx(400.0)


def test_a_pass_without_queries_has_no_throughput() -> None:
    with pytest.raises(ValueError, match="no quer"):
        throughput(samples(), batch=1)


def test_the_public_functions_are_these() -> None:
    assert trtopt.summarise is summarise
    assert trtopt.throughput is throughput
