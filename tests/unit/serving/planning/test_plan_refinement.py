"""Searches and trial runs in turns."""

import itertools
from collections.abc import Sequence

import pytest

from tests.support.engines import engine
from trtopt.errors import PlanError
from trtopt.measure.load.arrivals import Goal
from trtopt.records import BatchPolicy, Beyond, ServingCost
from trtopt.serving.planning.plan_refinement import (
    AT_EACH_RATE,
    AT_ONE_RATE,
    MOST_TRIALS,
    PlanRefinement,
    RefinedPlan,
    with_scatter,
)
from trtopt.serving.planning.prediction import Demand, predict
from trtopt.serving.planning.search import Bounds, Outcome, SearchResult
from trtopt.serving.planning.setups import Fleet, Setup

pytestmark = pytest.mark.usefixtures("brief")

BOUNDS = Bounds(Goal(99.0, 20.0), max_engines=1)
ENGINES = [engine(1, 1.0), engine(4, 2.0), engine(8, 3.0)]
NOTHING = ServingCost()


class Host:
    """Adds so much to a batch and to a request, by the rate that it serves; notes what had a trial run."""

    def __init__(self, *, batch_ms: float = 0.0, late_ms: float = 0.0, beyond: float = 0.0) -> None:
        self.batch_ms, self.late_ms, self.beyond = batch_ms, late_ms, beyond
        self.heard: list[tuple[str, float]] = []

    def trial_run(self, outcome: Outcome, demand: Demand) -> ServingCost:
        self.heard.append((outcome.setup.name, demand.rate))
        late_ms = self.late_ms if demand.rate > self.beyond else 0.0
        return ServingCost(batch_ms=self.batch_ms, jitter_ms=(0.0,), late_ms=(late_ms,))


class Forgotten(dict[int, ServingCost]):
    """What was seen of one setup says nothing of others."""

    def __setitem__(self, workers: int, cost: ServingCost) -> None:
        """Keep nothing."""


def settled(host: Host, rate: float | None) -> RefinedPlan:
    demand = Demand("poisson", rate or 1.0, {0: 1.0})
    refinement = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, host.trial_run)
    return refinement.refine_rate(demand) if rate is None else refinement.refine_at_rate(demand)


def test_a_host_that_adds_nothing_is_asked_once() -> None:
    host = Host()
    found = settled(host, 100.0)
    assert host.heard == [(found.chosen.setup.name, 100.0)]


def test_what_is_selected_had_a_trial_run_and_is_predicted_with_what_was_seen() -> None:
    host = Host(late_ms=3.0)
    found = settled(host, 100.0)
    assert host.heard[-1] == (found.chosen.setup.name, 100.0)
    assert found.chosen.setup.cost.late_ms == (3.0,)
    assert found.chosen.prediction.p50.value == pytest.approx(1.0 + 3.0, abs=0.1)


def test_a_setup_that_a_trial_run_shows_to_be_too_slow_gives_way_to_another() -> None:
    """Batches of one keep up with 200 requests/s only as long as nothing is added to them."""
    host = Host(batch_ms=5.0)
    found = settled(host, 200.0)
    assert len(host.heard) == 2
    assert "batch1" in host.heard[0][0]
    assert host.heard[1] == (found.chosen.setup.name, 200.0)
    assert "batch1" not in found.chosen.setup.name


def test_of_what_had_a_trial_run_the_best_is_selected_however_much_others_promise() -> None:
    """Whatever has a trial run turns out slower than what was not, and so on until enough has been seen."""
    costs = iter([9.0, 5.0, 7.0, 8.0])

    def trial_run(outcome: Outcome, demand: Demand) -> ServingCost:
        heard.append(outcome.setup.name)
        return ServingCost(late_ms=(next(costs),))

    heard: list[str] = []
    forgetful = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, trial_run)
    forgetful._known = Forgotten()
    found = forgetful.refine_at_rate(Demand("poisson", 100.0, {0: 1.0}))
    assert len(heard) == len(set(heard)) == AT_ONE_RATE
    assert found.chosen.setup.name == heard[1]
    assert found.chosen.setup.cost.late_ms == (5.0,)
    told = {one.setup: one.reason for one in found.choice.rejected}
    assert heard[1] not in told
    assert [reason for reason in told.values() if reason.endswith("had no trial run")]


class Sees:
    """A search that chooses as it is told to, by number of workers."""

    def __init__(self, refinement: PlanRefinement, workers: Sequence[int]) -> None:
        self._settling, self._workers = refinement, iter(workers)

    def best(self, demand: Demand, bounds: Bounds) -> SearchResult:
        fleet = Fleet([engine(1, 1.0, among_two=1.0)], self._settling._now())
        setup = Setup(fleet, next(self._workers), BatchPolicy(max_batch=1, max_delay_ms=0.0))
        outcome = Outcome(setup, predict(setup, demand, bounds.goal))
        return SearchResult(outcome, (outcome,), ())


def test_a_simpler_one_is_selected_where_the_faster_one_had_a_trial_run_as_well() -> None:
    """One worker is slower than two, but within the interval of what little was seen of them."""
    seen = {
        1: ServingCost(late_ms=(4.0,)),
        2: ServingCost(
            late_ms=(4.0,),
            from_trials=5,
            beyond=(Beyond(p=99.0, factor=1.0, error=0.1, spread=0.2, trials=4),),
        ),
    }
    heard: list[int] = []

    def trial_run(outcome: Outcome, demand: Demand) -> ServingCost:
        heard.append(outcome.setup.workers)
        return seen[outcome.setup.workers]

    refinement = PlanRefinement(ENGINES, {1: NOTHING, 2: NOTHING}, BOUNDS, trial_run)
    told = Sees(refinement, [1, 2, 2])
    refinement._search = lambda: told  # type: ignore[method-assign,return-value,assignment]
    found = refinement.refine_at_rate(Demand("poisson", 500.0, {0: 1.0}))
    assert heard == [1, 2]
    assert found.chosen.setup.workers == 1
    assert found.chosen.prediction.goal.value > 1.1 * found.choice.finalists[0].prediction.goal.value


@pytest.mark.long
def test_nothing_keeps_the_goal_on_a_host_that_is_later_than_that() -> None:
    host = Host(late_ms=25.0)
    with pytest.raises(PlanError, match="the closest comes to"):
        settled(host, 100.0)
    assert len(host.heard) <= 2


@pytest.mark.long
def test_the_highest_rate_is_looked_for_below_where_a_host_is_late() -> None:
    host = Host(late_ms=25.0, beyond=400.0)
    found = settled(host, None)
    assert host.heard[0][1] > 1000  # what engines could do
    assert 200 <= found.demand.rate <= 400
    assert found.chosen.setup.cost.late_ms == (0.0,)
    assert (found.chosen.setup.name, found.demand.rate) in host.heard
    assert len(host.heard) <= MOST_TRIALS


def test_the_highest_rate_is_looked_for_above_where_serving_adds_less_than_it_was_taken_to() -> None:
    heard: list[float] = []

    def trial_run(outcome: Outcome, demand: Demand) -> ServingCost:
        heard.append(demand.rate)
        return ServingCost(from_trials=100)

    refinement = PlanRefinement(ENGINES, {1: ServingCost(batch_ms=6.0)}, BOUNDS, trial_run)
    found = refinement.refine_rate(Demand("poisson", 1.0, {0: 1.0}))
    assert found.demand.rate == heard[-1] > 2 * heard[0]
    assert len(set(heard)) == 2


@pytest.mark.long
def test_what_queues_at_too_high_a_rate_says_nothing_of_lower_ones() -> None:
    """Where more than 400 requests/s come, processes take ten times what is simulated, and a batch alone
    would keep the goal with that.
    """
    heard: list[float] = []

    def trial_run(outcome: Outcome, demand: Demand) -> ServingCost:
        heard.append(demand.rate)
        far = Beyond(p=99.0, factor=10.0, error=0.1, spread=0.2, trials=4)
        return ServingCost(from_trials=100, beyond=(far,) if demand.rate > 400 else ())

    refinement = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, trial_run)
    found = refinement.refine_rate(Demand("poisson", 1.0, {0: 1.0}))
    assert 360 < found.demand.rate <= 400
    rates = list(dict.fromkeys(heard))
    assert all(below > above / 2.1 for above, below in itertools.pairwise(rates))
    assert all(heard.count(rate) <= AT_EACH_RATE for rate in heard)
    assert len(heard) <= MOST_TRIALS


def test_where_nothing_that_had_a_trial_run_keeps_its_promise_the_error_reports_it() -> None:
    refinement = PlanRefinement(
        ENGINES, {1: NOTHING}, BOUNDS, lambda outcome, load: ServingCost(late_ms=(25.0,))
    )
    refinement._known = Forgotten()
    with pytest.raises(
        PlanError, match=r"(?s)in a trial run:.*the closest came to 2\d.*had no trial run any more"
    ):
        refinement.refine_at_rate(Demand("poisson", 100.0, {0: 1.0}))


def test_a_trial_run_that_fails_takes_nothing_from_what_had_a_trial_run_before() -> None:
    costs = iter([ServingCost(late_ms=(9.0,), from_trials=500), None])
    heard: list[str] = []

    def trial_run(outcome: Outcome, demand: Demand) -> ServingCost | None:
        heard.append(outcome.setup.name)
        return next(costs)

    refinement = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, trial_run)
    refinement._known = Forgotten()
    found = refinement.refine_at_rate(Demand("poisson", 100.0, {0: 1.0}))
    assert len(heard) == 2
    assert (found.chosen.setup.name, found.chosen.setup.cost.from_trials) == (heard[0], 500)


def test_what_is_taken_over_from_another_setup_had_no_trial_run() -> None:
    seen = ServingCost(
        late_ms=(1.0,),
        from_trials=500,
        beyond=(Beyond(p=50.0, factor=1.1, error=0.1, spread=0.2, trials=4),),
    )
    refinement = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, lambda outcome, load: seen)
    found = refinement.refine_at_rate(Demand("poisson", 100.0, {0: 1.0}))
    assert found.chosen.setup.cost == seen
    other = refinement._now().of("another setup", 1)
    assert (other.from_trials, other.late_ms, other.beyond) == (0, (1.0,), (Beyond(p=50.0, factor=1.1),))


def test_a_trial_run_that_cannot_be_held_leaves_what_is_known() -> None:
    demand = Demand("poisson", 100.0, {0: 1.0})
    found = PlanRefinement(ENGINES, {1: NOTHING}, BOUNDS, lambda outcome, load: None).refine_at_rate(demand)
    assert found.chosen.setup.cost == NOTHING


def test_what_scatters_is_taken_over_from_the_nearest_number_of_workers() -> None:
    costs = {workers: ServingCost(batch_ms=float(workers)) for workers in (1, 2, 4)}
    seen = ServingCost(batch_ms=9.0, late_ms=(1.0,), wake_ms=(2.0,), jitter_ms=(3.0,))
    assert with_scatter(costs, {}) == costs
    held = with_scatter(costs, {2: seen})
    assert held[2] == seen
    for workers in (1, 4):
        assert held[workers].batch_ms == workers
        assert (held[workers].late_ms, held[workers].wake_ms, held[workers].jitter_ms) == (
            (1.0,),
            (2.0,),
            (3.0,),
        )
    assert with_scatter({1: NOTHING}, {1: NOTHING, 4: seen})[4] == seen
