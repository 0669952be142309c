import math
from collections.abc import Callable

import numpy as np
import pytest

from trtopt.errors import UsageError
from trtopt.measure.load.arrivals import (
    MAX_REQUESTS,
    Goal,
    Load,
    RateSearch,
    arrivals_s,
    may_be_late,
    parse_goal,
    parse_load,
    probe_s,
    window_s,
)
from trtopt.measure.statistics.summaries import needed_for, percentile

GOAL = Goal(99.0, 5.0)


# ── loads ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("500", Load(500.0)),
        ("0.5", Load(0.5)),
        ("1e3", Load(1000.0)),
        ("poisson:200", Load(200.0, "poisson")),
        (" poisson:2.5 ", Load(2.5, "poisson")),
    ],
)
def test_a_load_is_a_rate_or_a_poisson_rate(text: str, load: Load) -> None:
    assert parse_load(text) == load


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a number"),
        ("fast", "is not a number"),
        ("poisson:", "is not a number"),
        ("uniform:5", "unknown kind of arrivals 'uniform'"),
        (":5", "unknown kind of arrivals ''"),
        ("poisson:poisson:5", "unknown kind of arrivals"),
        ("0", "positive and finite"),
        ("-3", "positive and finite"),
        ("inf", "positive and finite"),
        ("poisson:nan", "positive and finite"),
    ],
)
def test_other_loads_are_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match="requests per second") as caught:
        parse_load(text)
    assert problem in caught.value.problem


def test_constant_arrivals_are_evenly_spaced_and_end_before_the_time() -> None:
    assert arrivals_s(Load(4.0), 1.0) == [0.0, 0.25, 0.5, 0.75]
    assert arrivals_s(Load(4.0), 1.01) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert len(arrivals_s(Load(100.0), 0.07)) == 7  # 0.07 · 100 is a little more than 7
    assert arrivals_s(Load(1e-9), 1.0) == [0.0]  # the first one comes at once, however rare they are


def test_no_time_means_no_arrivals() -> None:
    assert arrivals_s(Load(4.0), 0.0) == []
    assert arrivals_s(Load(4.0, "poisson"), -1.0) == []


def test_poisson_arrivals_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    load = Load(100.0, "poisson")
    assert arrivals_s(load, 10.0, seed=1) == arrivals_s(load, 10.0, seed=1)
    assert arrivals_s(load, 10.0, seed=1) != arrivals_s(load, 10.0, seed=2)


def test_poisson_gaps_are_exponential_at_the_rate() -> None:
    """Mean and standard deviation are 1 / rate; a share of 1/e of the gaps is longer."""
    times = arrivals_s(Load(100.0, "poisson"), 1000.0, seed=3)
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert times[-1] < 1000.0
    assert len(times) == pytest.approx(100_000, rel=0.01)
    assert gaps.mean() == pytest.approx(0.01, rel=0.01)
    assert gaps.std() == pytest.approx(0.01, rel=0.02)
    assert (gaps > 0.01).mean() == pytest.approx(1 / math.e, rel=0.02)


def test_a_longer_time_begins_with_the_same_poisson_arrivals() -> None:
    """Chunks differ in length, the stream of gaps does not."""
    short, long = (arrivals_s(Load(50.0, "poisson"), duration, seed=4) for duration in (2.0, 20.0))
    assert long[: len(short)] == pytest.approx(short)


def test_requests_arrive_for_as_long_as_wanted_unless_they_became_too_many() -> None:
    assert window_s(Load(1000.0), 3.0) == 3.0
    assert window_s(Load(1e9), 3.0) == MAX_REQUESTS / 1e9
    assert len(arrivals_s(Load(1e9), window_s(Load(1e9), 3.0))) == MAX_REQUESTS


# ── goals ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("p99=5ms", GOAL),
        ("p99.9=250us", Goal(99.9, 0.25)),
        ("p50=1.5s", Goal(50.0, 1500.0)),
    ],
)
def test_a_goal_is_a_percentile_and_a_limit(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert parse_goal(str(goal)) == goal


@pytest.mark.parametrize(
    "text",
    ["", "p99", "p99=", "p99=5", "99=5ms", "p99=5 m", "p100=5ms", "p0=5ms", "p99=0ms", "p99=-1ms", "p99=61s"],
)
def test_other_goals_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="p99=5ms"):
        parse_goal(text)


def test_a_limit_alone_is_answered_with_what_to_write() -> None:
    with pytest.raises(UsageError) as caught:
        parse_goal("10ms", "--slo")
    assert caught.value.remedy.endswith("--slo p99=10ms")


def test_a_percentile_that_no_run_has_the_requests_for_is_refused() -> None:
    assert parse_goal("p99.999=5ms").p == 99.999
    with pytest.raises(UsageError, match="enough requests"):
        parse_goal("p99.9999=5ms")


@pytest.mark.parametrize(
    ("goal", "rate", "seconds"),
    [
        (GOAL, 1000.0, 3.0),  # 3,000 requests are plenty
        (GOAL, 100.0, 5.0),  # 500 requests, five times 100
        (GOAL, 10.0, 30.0),  # ten times the duration
        (GOAL, 1.0, 150.0),  # 150 requests, whatever it takes
        (Goal(99.9, 5.0), 1000.0, 5.0),
        (Goal(50.0, 5.0), 1.0, 150.0),
        (Goal(99.0, 1000.0), 1000.0, 20.0),  # twenty times the limit
        (Goal(99.0, 60_000.0), 1000.0, 30.0),  # but no longer than ten times the duration
    ],
)
def test_a_probe_is_as_long_as_its_percentile_needs(goal: Goal, rate: float, seconds: float) -> None:
    assert probe_s(goal, rate, 3.0) == pytest.approx(seconds)
    assert probe_s(goal, rate, 3.0) * rate >= 1.5 * needed_for(goal.p) * (1 - 1e-9)


@pytest.mark.parametrize("p", [50.0, 90.0, 99.0])
@pytest.mark.parametrize("count", [100, 101, 150, 199, 200, 1000])
def test_one_late_request_more_than_may_be_takes_the_percentile_over_the_limit(p: float, count: int) -> None:
    """However little late those are, and however early the others."""
    allowed, goal = may_be_late(Goal(p, 5.0), count), Goal(p, 5.0)
    missed = percentile([0.0] * (count - allowed - 1) + [5.0 + 1e-9] * (allowed + 1), p)
    kept = percentile([0.0] * (count - allowed) + [5.0 + 1e-9] * allowed, p)
    assert missed is not None
    assert kept is not None
    assert kept < goal.limit_ms < missed


# ── the search ──────────────────────────────────────────────────────────────────────────────────────────


def search(keeps: Callable[[float], bool], first: float, **options: float) -> tuple[RateSearch, list[float]]:
    driver, rates = RateSearch(first, **options), list[float]()  # type: ignore[arg-type]
    while (rate := driver.next_rate) is not None:
        rates.append(rate)
        driver.add(keeps(rate))
    return driver, rates


@pytest.mark.parametrize("first", [1.0, 100.0, 700.0, 20_000.0])
def test_the_highest_rate_is_found_from_any_first_rate(first: float) -> None:
    driver, rates = search(lambda rate: rate <= 78.97, first)
    assert driver.best is not None
    assert 78.97 / 1.02 <= driver.best <= 78.97
    assert len(rates) <= 15


def test_rates_double_then_bisect() -> None:
    driver, rates = search(lambda rate: rate <= 500, 100, resolution=0.2)
    assert [round(rate, 1) for rate in rates] == [100, 200, 400, 800, 565.7, 475.7]
    assert driver.reason(GOAL) == "475.683 requests/s keep p99=5ms, 565.685 do not"


def test_a_goal_that_no_rate_keeps_is_out_of_reach() -> None:
    driver, _ = search(lambda rate: False, 1024.0)
    assert driver.best is None
    assert driver.reason(GOAL) == "p99=5ms is out of reach: not even 1 requests/s keep it"


def test_a_server_without_limit_spends_its_probes_and_reports_it() -> None:
    driver, _ = search(lambda rate: True, 1.0, max_probes=5)
    assert driver.reason(GOAL) == "16 requests/s keep p99=5ms, the highest of 5 rates tried that does"


def test_a_rate_above_one_that_failed_is_never_tried() -> None:
    """A server with luck: it keeps every third rate whatever it is."""
    answers = [True, False, False] * 10
    given = iter(answers)
    _, rates = search(lambda rate: next(given), 100.0)
    lowest = math.inf
    for rate, kept in zip(rates, answers, strict=False):
        assert rate < lowest
        lowest = lowest if kept else rate
