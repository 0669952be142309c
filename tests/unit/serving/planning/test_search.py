"""What is chosen, and which bound costs what."""

import math
import re

import numpy as np
import pytest
from msgspec import structs

from tests.support.engines import MIB, engine
from trtopt.errors import PlanError
from trtopt.measure.load.arrivals import Goal
from trtopt.records import BatchPolicy, Estimate
from trtopt.serving.planning.search import (
    Bounds,
    Demand,
    Outcome,
    Search,
    SearchResult,
    estimate,
    nothing_keeps,
    percentile,
    predict,
    requests_of,
    run_once,
    simplest,
)
from trtopt.serving.planning.setups import Fleet, Setup
from trtopt.serving.planning.simulation import Recorded

GOAL = Goal(99.0, 20.0)
ENGINES = [engine(1, 1.0), engine(4, 2.0), engine(8, 3.0)]


def at(rate: float) -> Demand:
    return Demand("poisson", rate, {0: 1.0})


# ── predictions ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_interval_is_that_of_one_more_run() -> None:
    """Of 2, 4 and 6: mean 4, standard deviation 2, t(2) = 4.303, √(1 + 1/3)."""
    told = estimate([2.0, 4.0, 6.0])
    half = 4.303 * 2 * math.sqrt(4 / 3)
    assert (told.value, told.low, told.high) == pytest.approx((4.0, 0.0, 4 + half))
    assert told.holds(4 + half - 1e-9)
    assert not told.holds(4 + half + 1e-9)


@pytest.mark.long
def test_intervals_hold_19_of_20_runs_with_other_arrivals() -> None:
    """Of 60 runs with the same curves; fewer than 50 would be a chance of 1 in 1,000."""
    setup = Setup(Fleet([engine(1, 7.0)]), 1, BatchPolicy(max_batch=1, max_delay_ms=0.0))
    told = predict(setup, at(100), Goal(90.0, 20.0))
    runs = [run_once(setup, at(100), told.requests, seed) for seed in range(100, 160)]
    assert 50 <= sum(told.goal.holds(percentile(run.latencies_ms, 90.0)) for run in runs) < 60


def test_a_request_that_is_rejected_is_infinitely_late() -> None:
    setup = Setup(Fleet([engine(1, 1.0)]), 1, BatchPolicy(max_batch=1, max_delay_ms=0.0, max_waiting=1))
    run = run_once(setup, at(900), 1000, seed=0)
    assert 0 < (~run.served).sum() < 500
    assert percentile(run.latencies_ms, 99.0) == math.inf
    assert 1.0 <= percentile(run.latencies_ms, 10.0) < 2.1


def test_a_run_is_half_a_minute_or_long_enough_for_the_percentile() -> None:
    assert requests_of(GOAL, 100) == 3000
    assert requests_of(GOAL, 1e6) == 10_000
    assert requests_of(GOAL, 1.0) == 500
    assert requests_of(Goal(99.9, 1.0), 1.0) == 5000


def test_lengths_go_to_the_shortest_bucket_that_holds_them() -> None:
    fleet = Fleet([engine(8, 2.0, length=128), engine(8, 8.0, length=384)])
    demand = Demand("poisson", 100, {64: 1, 128: 2, 200: 1})
    assert demand.shares_of(fleet) == pytest.approx([0.75, 0.25])
    assert Demand("poisson", 100, {64: 1, 400: 1}).shares_of(fleet) is None
    recorded = Demand(Recorded((0.0, 1.0, 2.0), (100, 300, 300)), 1.0, {})
    assert recorded.shares_of(fleet) == pytest.approx([1 / 3, 2 / 3])
    assert recorded.arrivals(fleet, 3, 0).shape.tolist() == [0, 1, 1]


# ── the choice ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("brief")
def test_a_light_load_is_served_by_the_fastest_engine_alone_at_once() -> None:
    found = Search(ENGINES).best(at(10), Bounds(GOAL))
    assert found.chosen is not None
    assert found.chosen.setup.name == "fp16 batch1, 1 worker, batches up to 1, delay 0 ms"
    assert found.chosen.prediction.p50.value == pytest.approx(1.0)


@pytest.mark.usefixtures("brief")
def test_a_heavy_load_needs_a_larger_batch() -> None:
    found = Search(ENGINES).best(at(2200), Bounds(GOAL))
    assert found.chosen is not None
    assert found.chosen.setup.policy.max_batch == 8
    assert found.chosen.prediction.goal.high <= 20.0
    assert len(found.chosen.setup.fleet.engines) <= 3


@pytest.mark.usefixtures("brief")
def test_among_equals_the_simpler_one_is_chosen() -> None:
    """Batches of 8 take as long on both engines; one that also has a slower engine of 1 is no better."""
    found = Search([engine(8, 3.0), engine(1, 2.95)]).best(at(2200), Bounds(GOAL))
    assert found.chosen is not None
    assert found.chosen.setup.fleet.name == "fp16 batch8"


@pytest.mark.parametrize(("ms", "chosen"), [(10.4, "fp16 batch8"), (10.6, "fp16 batch1 + fp16 batch8")])
def test_a_simpler_one_may_be_slower_by_a_twentieth(ms: float, chosen: str) -> None:
    both, alone = (
        Setup(Fleet(engines), 1, BatchPolicy(max_batch=8, max_delay_ms=0.0))
        for engines in (ENGINES[::2], ENGINES[2:])
    )
    known = predict(alone, at(10), GOAL, runs=2)
    outcomes = [
        Outcome(setup, structs.replace(known, goal=Estimate(value=value, low=value, high=value)))
        for setup, value in ((both, 10.0), (alone, ms))
    ]
    found = simplest(outcomes)
    assert found is not None
    assert found.setup.fleet.name == chosen


def test_memory_is_kept() -> None:
    free = Search(ENGINES).best(at(1500), Bounds(GOAL)).chosen
    bound = Search(ENGINES).best(at(1500), Bounds(GOAL, memory_bytes=150 * MIB))
    assert free is not None
    assert bound.chosen is not None
    assert (free.setup.memory_bytes() or 0) > 150 * MIB
    assert (bound.chosen.setup.memory_bytes() or 0) <= 150 * MIB


@pytest.mark.usefixtures("brief")
def test_a_memory_bound_is_not_kept_by_engines_that_no_one_measured() -> None:
    found = Search([engine(8, 3.0, memory_mib=None)]).best(at(100), Bounds(GOAL, memory_bytes=MIB))
    assert (found.chosen, found.closest) == (None, None)


@pytest.mark.usefixtures("brief")
def test_for_triton_requests_have_one_length() -> None:
    search = Search([engine(1, 1.0, length=128), engine(1, 8.0, length=384)])
    lengths = Demand("poisson", 10, {128: 0.9, 384: 0.1})
    for for_triton, served in ((False, (128, 384)), (True, (384,))):
        found = search.best(lengths, Bounds(GOAL, for_triton=for_triton)).chosen
        assert found is not None
        assert found.setup.fleet.lengths == served


@pytest.mark.usefixtures("brief")
def test_the_highest_rate_is_below_the_capacity_and_beyond_it_nothing_keeps_the_goal() -> None:
    search = Search(ENGINES)
    found = search.highest_rate(at(1), Bounds(GOAL))
    assert found is not None
    rate, choice = found
    assert choice.chosen is not None
    assert 0.85 * 8 / 0.003 < rate < 8 / 0.003
    assert search.best(at(8 / 0.003), Bounds(GOAL)).chosen is None


class Doubtful(Search):
    """Where the bounds are kept up to 50/s, but by chance not at 4/s."""

    def best(self, demand: Demand, bounds: Bounds) -> SearchResult:
        """Nothing is simulated."""
        setup = Setup(Fleet(ENGINES[:1]), 1, BatchPolicy(max_batch=1, max_delay_ms=0.0))
        kept = Outcome(setup, predict(setup, at(50), GOAL, runs=2))
        return SearchResult(kept if demand.rate <= 50 and demand.rate != 4 else None, kept)


def test_the_highest_rate_is_found_however_far_it_lies_below_the_capacity() -> None:
    found = Doubtful(ENGINES).highest_rate(at(1), Bounds(GOAL))
    assert found is not None
    assert 50 / 1.05 < found[0] <= 50


def test_where_a_rate_has_failed_a_lower_one_is_named() -> None:
    search, bounds = Doubtful(ENGINES), Bounds(GOAL)
    error = nothing_keeps(search, at(4), bounds, search.best(at(4), bounds), rate_given=True)
    (named,) = re.findall(r"rate 4/s: up to (\S+)/s keep", str(error))
    assert 4 / 1.05 < float(named) < 4


def test_no_rate_keeps_a_latency_that_one_request_exceeds() -> None:
    assert Search(ENGINES).highest_rate(at(1), Bounds(Goal(99.0, 0.5))) is None


# ── nothing keeps the bounds ────────────────────────────────────────────────────────────────────────────


def told_by(engines: list, demand: Demand, bounds: Bounds) -> str:
    search = Search(engines)
    found = search.best(demand, bounds)
    assert found.chosen is None
    error = nothing_keeps(search, demand, bounds, found, rate_given=True)
    assert isinstance(error, PlanError)
    return str(error)


@pytest.mark.usefixtures("brief")
def test_one_that_is_fast_for_whom_it_does_not_reject_is_reported() -> None:
    """A queue of one at 90 % load rejects many, and a quarter of the requests are answered at once."""
    setup = Setup(Fleet([engine(1, 1.0)]), 1, BatchPolicy(max_batch=1, max_delay_ms=0.0, max_waiting=1))
    demand, bounds = at(900), Bounds(Goal(25.0, 20.0))
    found = SearchResult(None, Outcome(setup, predict(setup, demand, bounds.goal)))
    error = nothing_keeps(Search([engine(1, 1.0)]), demand, bounds, found, rate_given=False)
    assert re.search(r"p25=20ms: the closest comes to 1 ms \(.*\), and rejects more than 1 %", str(error))


@pytest.mark.usefixtures("brief")
def test_of_contradictory_bounds_each_is_reported_with_what_it_costs() -> None:
    told = told_by(ENGINES, at(900), Bounds(Goal(99.0, 2.5), memory_bytes=105 * MIB, max_engines=1))
    assert "p99=2.5ms: the closest comes to" in told
    assert re.search(r"rate 900/s: up to 1\d\d/s keep the other bounds", told)
    assert "memory 105 MiB: dropping it alone does not help" in told
    assert "max-engines 1: dropping it alone does not help" in told


@pytest.mark.usefixtures("brief")
def test_a_memory_bound_on_engines_whose_memory_no_one_measured_says_that() -> None:
    told = told_by([engine(1, 1.0, memory_mib=None)], at(100), Bounds(GOAL, memory_bytes=8192 * MIB))
    assert "memory 8 GiB, and no engine's memory was measured: without it there is fp16 batch1" in told


@pytest.mark.usefixtures("brief")
def test_a_memory_bound_that_is_the_one_in_the_way_is_named_with_what_would_do() -> None:
    told = told_by(ENGINES, at(900), Bounds(GOAL, memory_bytes=50 * MIB))
    assert "p99=20ms: dropping it does not help" in told
    assert "memory 50 MiB: without it there is fp16" in told


@pytest.mark.usefixtures("brief")
def test_where_no_single_bound_helps_each_line_says_so() -> None:
    told = told_by(ENGINES, at(5000), Bounds(Goal(99.0, 0.1), memory_bytes=1024, max_engines=1))
    assert "p99=0.1ms: dropping it does not help" in told
    assert "memory 1 KiB: dropping it alone does not help" in told
    assert "rate 5,000/s: no rate keeps the other bounds" in told


@pytest.mark.usefixtures("brief")
def test_the_same_search_gives_the_same_answer() -> None:
    first, again = (Search(ENGINES).best(at(2000), Bounds(GOAL)).chosen for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.prediction == again.prediction
    assert np.isfinite(first.prediction.goal.high)
