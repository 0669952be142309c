import csv
import io

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support import examples
from tests.support.sweeps import point, report_of, spread
from trtopt.measure.analysis.sweep_points import (
    COLUMNS,
    best_under,
    choices_of,
    csv_of,
    is_decided_busy,
    knee,
    mean_watts,
    pareto_front,
    round_bounds,
)
from trtopt.records import ClockReading, Measurement, PointMemory

SIZES = st.lists(st.integers(1, 4096), min_size=1, max_size=8, unique=True)


# ── choices ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_front_knee_and_bests_are_those_of_p99_and_throughput() -> None:
    points = [point(1, 1.0, 100.0), point(2, 1.2, 190.0), point(4, 3.0, 180.0), point(8, 4.0, 200.0)]
    (choices,) = choices_of(report_of(*points))
    assert choices.front == (points[0], points[1], points[3])
    assert choices.knee == points[1]
    assert choices.bests == ((1.0, points[0]), (2.0, points[1]), (5.0, points[3]))


def test_points_at_other_lengths_are_other_work() -> None:
    short = [point(1, 1.0, 100.0, axes={"seq": 8}), point(2, 2.0, 90.0, axes={"seq": 8})]
    long = [point(1, 10.0, 10.0, axes={"seq": 64})]
    first, second = choices_of(report_of(*short, *long))
    assert (first.axes, first.front) == ({"seq": 8}, (short[0],))
    assert (second.axes, second.front) == ({"seq": 64}, tuple(long))


def test_precisions_and_batch_sizes_compete_on_one_front() -> None:
    slow, fast = point(8, 2.0, 100.0), point(8, 1.0, 200.0, precision="int8")
    (choices,) = choices_of(report_of(slow, fast))
    assert choices.front == (fast,)


def test_several_streams_are_evaluated_by_latency_under_full_load() -> None:
    one = point(1, 1.0, 100.0, busy_latency=spread(2.0))
    two = point(1, 1.0, 150.0, busy_latency=spread(4.0), streams=2)
    assert is_decided_busy(report_of(one, two))
    (choices,) = choices_of(report_of(one, two))
    assert choices.costs_ms == (2.0, 4.0)
    assert choices.front == (one, two)
    assert not is_decided_busy(report_of(one))


def test_too_few_queries_for_a_p99_are_evaluated_by_the_slowest() -> None:
    few = point(1, None, 100.0, latency=spread(None, 7.0))
    (choices,) = choices_of(report_of(few))
    assert choices.costs_ms == (7.0,)


def test_points_without_figures_take_no_part() -> None:
    failed = point(4, 1.0, 1000.0, failure="out of memory")
    unrated = point(2, 1.0, None)
    assert choices_of(report_of(failed, unrated)) == ()
    (choices,) = choices_of(report_of(failed, unrated, point(1, 2.0, 10.0)))
    assert [one.setting.batch for one in choices.points] == [1]


def test_what_is_not_trustworthy_is_recommended_only_where_nothing_is() -> None:
    doubtful = point(8, 1.0, 900.0, untrustworthy=("the clock fell",))
    (choices,) = choices_of(report_of(point(1, 2.0, 100.0), doubtful))
    assert [one.setting.batch for one in choices.points] == [1, 8]
    assert [one.setting.batch for one in choices.front] == [1]
    assert [best.setting.batch for _, best in choices.bests] == [1]
    (alone,) = choices_of(report_of(doubtful))
    assert alone.front == (doubtful,)


def test_a_latency_of_zero_is_none() -> None:
    assert choices_of(report_of(point(1, 0.0, 100.0))) == ()


# ── the table of figures ────────────────────────────────────────────────────────────────────────────────


def rows_of(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_a_row_holds_all_figures_of_a_point_and_nothing_for_what_is_unknown() -> None:
    (row,) = rows_of(csv_of(examples.sweep()))
    assert tuple(row) == tuple(COLUMNS)
    whole = {
        name: row[name] for name in ("label", "precision", "batch", "streams", "axes", "samples_per_joule")
    }
    assert whole == {
        "label": "fp16 batch8 seq=4 streams2",
        "precision": "fp16",
        "batch": "8",
        "streams": "2",
        "axes": "seq=4",
        "samples_per_joule": "32.0",
    }
    assert all(row.values())
    (bare,) = rows_of(csv_of(report_of(point(1, None, None, latency=None, busy_latency=None, failure="x"))))
    known = {name for name, value in bare.items() if value}
    assert known == {"label", "precision", "batch", "streams", "queries", "failure"}


def test_failures_of_several_lines_stay_one_row() -> None:
    told = 'first, "second"\nthird'
    (row,) = rows_of(csv_of(report_of(point(1, 1.0, 1.0, failure=told))))
    assert row["failure"] == told


def test_memory_and_power_are_distinguished_by_their_columns() -> None:
    memory = PointMemory(peak_bytes=3, buffers_bytes=2, context_bytes=1)
    (row,) = rows_of(csv_of(report_of(point(1, 1.0, 8.0, memory=memory, watts=4.0))))
    names = ("memory_bytes", "buffers_bytes", "context_bytes", "watts", "samples_per_joule")
    assert [row[name] for name in names] == ["3", "2", "1", "4.0", "2.0"]


VALUES = st.floats(0.001, 1e6)
POINTS = st.lists(st.tuples(VALUES, VALUES), max_size=12)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] >= other[1] and one != other


# ── the front ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("costs", "gains", "front"),
    [
        ([], [], []),
        ([1.0], [5.0], [0]),
        ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [0, 1, 2]),
        ([3.0, 2.0, 1.0], [30.0, 20.0, 10.0], [2, 1, 0]),
        ([1.0, 2.0, 3.0], [10.0, 10.0, 9.0], [0]),
        ([1.0, 1.0], [10.0, 11.0], [1]),
        ([1.0, 1.0], [10.0, 10.0], [0]),
    ],
)
def test_the_front_is_what_nothing_beats(costs: list[float], gains: list[float], front: list[int]) -> None:
    assert pareto_front(costs, gains) == front


@given(POINTS)
def test_nothing_beats_the_front_and_the_front_beats_or_equals_all_else(
    points: list[tuple[float, float]],
) -> None:
    front = [points[index] for index in pareto_front([p[0] for p in points], [p[1] for p in points])]
    assert not any(beats(other, one) for one in front for other in points)
    assert all(point in front or any(beats(one, point) for one in front) for point in points)
    assert front == sorted(front)
    assert len(set(front)) == len(front)


# ── its knee ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_knee_is_where_the_curve_turns() -> None:
    assert knee([1.0, 2.0, 3.0, 4.0, 8.0], [100.0, 200.0, 300.0, 310.0, 320.0]) == 2


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=1, max_size=12))
def test_the_knee_is_on_the_front_and_does_not_depend_on_units(points: list[tuple[int, int]]) -> None:
    costs, gains = [float(p[0]) for p in points], [float(p[1]) for p in points]
    found = knee(costs, gains)
    assert points[found] in [points[index] for index in pareto_front(costs, gains)]
    scaled = knee([cost * 1024 for cost in costs], [gain / 4096 for gain in gains])
    assert scaled == found  # powers of two: not a bit is lost


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_under_a_bound_gains_most_and_of_two_alike_costs_less() -> None:
    costs, gains = [1.0, 5.0, 4.0, 9.0], [10.0, 30.0, 30.0, 40.0]
    assert best_under(0.5, costs, gains) is None
    assert best_under(1.0, costs, gains) == 0
    assert best_under(5.0, costs, gains) == 2
    assert best_under(9.0, costs, gains) == 3


@given(POINTS, VALUES)
def test_nothing_under_the_bound_gains_more(points: list[tuple[float, float]], bound: float) -> None:
    found = best_under(bound, [p[0] for p in points], [p[1] for p in points])
    fitting = [point for point in points if point[0] <= bound]
    if found is None:
        assert fitting == []
    else:
        assert points[found] in fitting
        assert points[found][1] == max(gain for _, gain in fitting)


@pytest.mark.parametrize(
    ("low", "high", "bounds"),
    [
        (0.3, 4.0, [0.5, 1.0, 2.0, 5.0]),
        (1.0, 1.0, [1.0]),
        (0.06, 0.06, [0.1]),
        (7.0, 21.0, [10.0, 20.0, 50.0]),
        (0.002, 0.005, [0.002, 0.005]),
    ],
)
def test_bounds_are_round_numbers_around_what_was_measured(
    low: float, high: float, bounds: list[float]
) -> None:
    assert round_bounds(low, high) == bounds


@given(VALUES, VALUES)
def test_the_first_bound_admits_the_least_and_the_last_all(one: float, other: float) -> None:
    low, high = sorted((one, other))
    bounds = round_bounds(low, high)
    assert low <= bounds[0] <= 2.5 * low * (1 + 1e-9)
    assert bounds[-1] >= high
    assert all(bound < high for bound in bounds[:-1])
    assert bounds == sorted(set(bounds))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)])
def test_bounds_need_a_span_of_positive_numbers(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="no span"):
        round_bounds(low, high)


# ── power ───────────────────────────────────────────────────────────────────────────────────────────────


def read(at_ms: float, energy_j: float | None = None) -> ClockReading:
    return ClockReading(at_ms=at_ms, sm_mhz=1980, power_w=100.0, energy_j=energy_j)


def measured(clocks: list[ClockReading], groups: list[tuple[str, ...]]) -> Measurement:
    return msgspec.structs.replace(examples.measurement(), clocks=tuple(clocks), groups=tuple(groups))


def test_the_counter_gives_energy_over_time_of_the_groups_that_count() -> None:
    clocks = [read(0.0, 50.0), read(250.0, 100.0), read(500.0, 900.0), read(1000.0, 1000.0)]
    assert mean_watts(measured(clocks, [(), ("hw_slowdown",), ()])) == (50.0 + 100.0) / 0.75


def test_a_device_that_drew_nothing_that_the_counter_could_see_drew_nothing() -> None:
    assert mean_watts(measured([read(0.0, 50.0), read(10.0, 50.0)], [()])) == 0.0


def test_where_the_energy_is_unknown_there_is_no_power() -> None:
    assert mean_watts(measured([read(0.0, 50.0), read(1000.0), read(4000.0, 99.0)], [(), ()])) is None
    assert mean_watts(measured([], [()])) is None
    assert mean_watts(measured([read(0.0, 1.0), read(10.0, 1.0)], [("hw_slowdown",)])) is None
    assert mean_watts(measured([read(5.0, 1.0), read(5.0, 1.0)], [()])) is None
