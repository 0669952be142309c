import pytest
from hypothesis import given, strategies as st

from trtopt.measure.analysis.sweep_choices import best_under, knee, pareto_front, round_bounds

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


def test_a_line_has_no_knee_and_neither_has_a_curve_below_it() -> None:
    assert knee([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) is None
    assert knee([1.0, 2.0, 3.0], [10.0, 11.0, 30.0]) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_points_have_no_knee(count: int) -> None:
    assert knee([1.0, 2.0][:count], [10.0, 20.0][:count]) is None


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), min_size=3, max_size=12))
def test_the_knee_is_inside_and_does_not_depend_on_units(points: list[tuple[int, int]]) -> None:
    costs, gains = [float(p[0]) for p in points], [float(p[1]) for p in points]
    front = pareto_front(costs, gains)
    costs, gains = [costs[i] for i in front], [gains[i] for i in front]
    found = knee(costs, gains)
    assert found is None or 0 < found < len(costs) - 1
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
