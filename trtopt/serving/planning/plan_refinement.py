"""Alternates searches and trial runs until the chosen setup has had one. Pure but for the trial runs.

The overhead and scatter of serving depend on the setup and its load, and the best setup depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from trtopt.errors import PlanError
from trtopt.records import Beyond, Rejected, ServingCost
from trtopt.serving.planning.prediction import Demand, predict
from trtopt.serving.planning.search import (
    Bounds,
    Outcome,
    Search,
    SearchResult,
    against,
    in_ms,
    nothing_keeps,
    simplest,
)
from trtopt.serving.planning.service_times import Costs
from trtopt.serving.planning.setups import Fleet, MeasuredEngine

MOST_TRIALS, AT_ONE_RATE, AT_EACH_RATE = 8, 4, 2
"""Trial runs at most: in all, at a requested rate, at each rate of a search for the highest. Then the best
setup of those is taken.
"""

_AS_GOOD = 1.1
"""A setup without a trial run replaces one that had it only if predicted to be better by this factor."""

_CLOSE = 1.1
"""The search for the highest rate ends when a kept rate and a missed one are this close."""

TrialRunner = Callable[[Outcome, Demand], ServingCost | None]
"""Serves the load with a setup, and says what serving adds; None if that cannot be done."""


@dataclass(frozen=True)
class RefinedPlan:
    """What is chosen, of which choice and for which demand."""

    chosen: Outcome
    choice: SearchResult
    demand: Demand


class PlanRefinement:
    """At first `costs` have no scatter, so that the first choice is too optimistic.

    A trial run's measurements hold for its setup. Its scatter and factors are used for other setups, of as
    many workers or not, until these have trial runs of their own.
    """

    def __init__(
        self,
        engines: Sequence[MeasuredEngine],
        costs: Mapping[int, ServingCost],
        bounds: Bounds,
        trial_run: TrialRunner,
    ) -> None:
        self._engines, self._costs, self._bounds, self._trial_run = engines, costs, bounds, trial_run
        self._known: dict[int, ServingCost] = {}
        """What other setups use of trial runs, by number of workers."""
        self._from_trials: dict[str, ServingCost] = {}
        """At the present rate."""
        self._promising: Outcome | None = None
        """The best setup without a trial run, if none that had one kept the bounds."""
        self._left = MOST_TRIALS

    def refine_at_rate(self, demand: Demand) -> RefinedPlan:
        """The setup that keeps the bounds with the serving overhead of its trial run."""
        choice = self._chosen_at(demand, AT_ONE_RATE)
        if choice.chosen is None:
            raise self._nothing_keeps(demand, choice, rate_given=True)
        return RefinedPlan(choice.chosen, choice, demand)

    def refine_rate(self, demand: Demand) -> RefinedPlan:
        """The same at the highest rate that keeps the bounds, instead of the demand's: within 10 %, or as
        close as `MOST_TRIALS` get.
        """
        rate = self._promised(demand)
        if rate is None:  # even where nothing scatters
            choice = self._search().best(demand, self._bounds)
            raise self._nothing_keeps(demand, choice, rate_given=False)
        kept: RefinedPlan | None = None
        missed = math.inf
        while rate is not None:
            choice = self._chosen_at(demand.at(rate), AT_EACH_RATE)
            if choice.chosen is None:
                missed = rate
            elif kept is None or choice.chosen.setup.cost.from_trials:
                kept = RefinedPlan(choice.chosen, choice, demand.at(rate))
            rate = self._next_rate(demand, kept, missed) if self._left else None
        if kept is None:
            raise self._nothing_keeps(demand.at(missed), choice, rate_given=False)
        return kept

    def _next_rate(self, demand: Demand, kept: RefinedPlan | None, missed: float) -> float | None:
        if kept is None:
            promised = self._promised(demand)
            return promised if promised is not None and promised * _CLOSE < missed else missed / 2
        if math.isinf(missed):  # serving may have added less than it was taken to
            promised = self._promised(demand)
            return promised if promised is not None and promised > kept.demand.rate * _CLOSE else None
        return None if missed <= kept.demand.rate * _CLOSE else math.sqrt(kept.demand.rate * missed)

    def _promised(self, demand: Demand) -> float | None:
        """The highest rate by what is known; what scatters at one rate does so less at a lower one.

        Without factors, which queues make large where a rate is too high.
        """
        known = with_scatter(self._costs, self._known)
        costs = {many: msgspec.structs.replace(cost, beyond=()) for many, cost in known.items()}
        found = Search(self._engines, Costs(costs)).highest_rate(demand, self._bounds)
        return found[0] if found is not None else None

    def _chosen_at(self, demand: Demand, most: int) -> SearchResult:
        """The choice among at most `most` setups that had a trial run at this rate; none if none keeps the
        bounds.
        """
        self._from_trials, self._promising = {}, None
        tried: list[Outcome] = []
        """Those with a trial run, the fastest first."""
        while True:
            choice = self._search().best(demand, self._bounds)
            held = simplest([one for one in tried if one.keeps(self._bounds.goal)])
            promised = choice.chosen.prediction.goal.value if choice.chosen is not None else math.inf
            outcome = choice.chosen or choice.closest
            may_continue = self._left > 0 and len(tried) < most and self._is_worth_a_trial(outcome)
            if held is not None and (held.prediction.goal.value <= _AS_GOOD * promised or not may_continue):
                return self._instead(choice, held)
            if outcome is None or not may_continue:
                self._promising = choice.chosen
                return SearchResult(None, tuple(tried) or choice.finalists, choice.rejected)
            cost = self._trial_run(outcome, demand)
            if cost is None:  # nor can others, most likely
                self._left = 0
                return self._instead(choice, held) if held is not None else choice
            self._left -= 1
            self._from_trials[outcome.setup.name] = cost
            self._known[outcome.setup.workers] = _taken_over(cost)
            setup = replace(outcome.setup, fleet=Fleet(outcome.setup.fleet.engines, self._now()))
            tried.append(Outcome(setup, predict(setup, demand, self._bounds.goal)))
            tried.sort(key=lambda one: one.prediction.goal.value)

    def _is_worth_a_trial(self, outcome: Outcome | None) -> bool:
        """Not once more, nor if it would reject what comes."""
        if outcome is None:
            return False
        return outcome.setup.name not in self._from_trials and math.isfinite(outcome.prediction.p99.value)

    def _instead(self, choice: SearchResult, held: Outcome) -> SearchResult:
        """The choice with a setup chosen that had a trial run, and the others' reasons for that."""
        finalists = {one.setup.name: one for one in choice.finalists if one.setup.name != held.setup.name}
        rejected = [
            msgspec.structs.replace(one, count=one.count - (one.setup == held.setup.name))
            for one in choice.rejected
            if one.setup not in finalists
        ]
        for name, one in finalists.items():
            reason = against(one, held, self._bounds.goal)
            if one.keeps(self._bounds.goal) and name not in self._from_trials:
                reason = f"promises {in_ms(one.prediction.goal)}, but had no trial run"
            rejected.append(Rejected(setup=name, reason=reason))
        return SearchResult(held, choice.finalists, tuple(one for one in rejected if one.count))

    def _nothing_keeps(self, demand: Demand, choice: SearchResult, *, rate_given: bool) -> PlanError:
        closest, promising = choice.closest, self._promising
        if closest is None or promising is None:
            return nothing_keeps(self._search(), demand, self._bounds, choice, rate_given)
        return PlanError(
            f"no setup kept {self._bounds.goal} at {demand.rate:,.4g} requests/s in a trial run:\n"
            f"  the closest came to {in_ms(closest.prediction.goal)}: {closest.setup.name}\n"
            f"  {promising.setup.name} promises {in_ms(promising.prediction.goal)}, but had no trial run "
            "any more",
            "plan again when the machine is quiet; else relax the SLO or the rate, or sweep more batch "
            "sizes, precisions and streams",
        )

    def _search(self) -> Search:
        return Search(self._engines, self._now())

    def _now(self) -> Costs:
        """For setups without a trial run, with what others' trial runs measured."""
        return Costs(with_scatter(self._costs, self._known), dict(self._from_trials))


def with_scatter(
    costs: Mapping[int, ServingCost], known: Mapping[int, ServingCost]
) -> Mapping[int, ServingCost]:
    """What is known by number of workers; the others scatter as the nearest one of fewer, or else of more."""
    if not known:
        return costs
    return {workers: _scattering(cost, workers, known) for workers, cost in costs.items()} | dict(known)


def _taken_over(cost: ServingCost) -> ServingCost:
    """The part of a trial run's cost that holds for setups without one.

    Without the spread of processes, which grows as a setup nears its capacity: with it, no other setup would
    promise what one missed.
    """
    factors = tuple(Beyond(p=one.p, factor=one.factor) for one in cost.beyond)
    return msgspec.structs.replace(cost, from_trials=0, beyond=factors, held_up=None)


def _scattering(cost: ServingCost, workers: int, known: Mapping[int, ServingCost]) -> ServingCost:
    like = known[max((many for many in known if many < workers), default=min(known))]
    return msgspec.structs.replace(like, batch_ms=cost.batch_ms, request_ms=cost.request_ms)
