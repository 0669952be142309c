"""Searches and rehearsals in turns, until what is chosen is what was rehearsed. Pure but for the rehearsals.

What serving scatters depends on the setup and its load, and which setup is best on what serving scatters.
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

REHEARSALS, AT_ONE_RATE, AT_EACH_RATE = 8, 4, 2
"""At most: in all, at a rate that is asked for, at each where the highest is looked for. Then the best of
those is taken.
"""

_AS_GOOD = 1.1
"""What was rehearsed gives way to nothing that promises less: nobody has seen it yet."""

_CLOSE = 1.1
"""A rate that keeps the bounds and one that misses them: nobody looks between closer ones."""

TrialRunner = Callable[[Outcome, Demand], ServingCost | None]
"""Serves the load with a setup, and says what serving adds; None if that cannot be done."""


@dataclass(frozen=True)
class RefinedPlan:
    """What is chosen, of which choice and for which demand."""

    chosen: Outcome
    choice: SearchResult
    demand: Demand


class PlanRefinement:
    """To begin with nothing scatters in `costs`: the first choice is too good to be true.

    What a rehearsal saw holds for its setup. Until they are rehearsed themselves, its scatter and factors are
    taken to hold for others of as many workers, and for those of another number.
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
        """What others take over of rehearsals, by number of workers."""
        self._from_trials: dict[str, ServingCost] = {}
        """Of the rate at hand."""
        self._promising: Outcome | None = None
        """What was left unrehearsed where none that was rehearsed kept the bounds."""
        self._left = REHEARSALS

    def refine_at_rate(self, demand: Demand) -> RefinedPlan:
        """The setup that keeps the bounds with what serving adds to it, as it was rehearsed.

        Raises:
            PlanError: nothing keeps the bounds.
        """
        choice = self._chosen_at(demand, AT_ONE_RATE)
        if choice.chosen is None:
            raise self._nothing_keeps(demand, choice, rate_asked=True)
        return RefinedPlan(choice.chosen, choice, demand)

    def refine_rate(self, demand: Demand) -> RefinedPlan:
        """The same at the highest rate that keeps the bounds, instead of the demand's: within 10 %, or what
        `REHEARSALS` tell of it.
        """
        rate = self._promised(demand)
        if rate is None:  # even where nothing scatters
            choice = self._search().best(demand, self._bounds)
            raise self._nothing_keeps(demand, choice, rate_asked=False)
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
            raise self._nothing_keeps(demand.at(missed), choice, rate_asked=False)
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
        """Which of the setups that were rehearsed at this rate is chosen, `most` of them; none if none keeps
        the bounds.
        """
        self._from_trials, self._promising = {}, None
        tried: list[Outcome] = []
        """What was rehearsed, the fastest first."""
        while True:
            choice = self._search().best(demand, self._bounds)
            held = simplest([one for one in tried if one.keeps(self._bounds.goal)])
            promised = choice.chosen.prediction.goal.value if choice.chosen is not None else math.inf
            outcome = choice.chosen or choice.closest
            may_go_on = self._left > 0 and len(tried) < most and self._is_worth_a_trial(outcome)
            if held is not None and (held.prediction.goal.value <= _AS_GOOD * promised or not may_go_on):
                return self._instead(choice, held)
            if outcome is None or not may_go_on:
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
        """The choice with a rehearsed one chosen, and the others' reasons for that."""
        finalists = {one.setup.name: one for one in choice.finalists if one.setup.name != held.setup.name}
        rejected = [
            msgspec.structs.replace(one, count=one.count - (one.setup == held.setup.name))
            for one in choice.rejected
            if one.setup not in finalists
        ]
        for name, one in finalists.items():
            reason = against(one, held, self._bounds.goal)
            if one.keeps(self._bounds.goal) and name not in self._from_trials:
                reason = f"promises {in_ms(one.prediction.goal)}, but was not rehearsed"
            rejected.append(Rejected(setup=name, reason=reason))
        return SearchResult(held, choice.finalists, tuple(one for one in rejected if one.count))

    def _nothing_keeps(self, demand: Demand, choice: SearchResult, *, rate_asked: bool) -> PlanError:
        closest, promising = choice.closest, self._promising
        if closest is None or promising is None:
            return nothing_keeps(self._search(), demand, self._bounds, choice, rate_asked)
        return PlanError(
            f"no setup kept {self._bounds.goal} at {demand.rate:,.4g} requests/s when it was rehearsed:\n"
            f"  the closest came to {in_ms(closest.prediction.goal)}: {closest.setup.name}\n"
            f"  {promising.setup.name} promises {in_ms(promising.prediction.goal)}, but was not rehearsed "
            "any more",
            "plan again when the machine is quiet; else relax the SLO or the rate, or sweep more batch "
            "sizes, precisions and streams",
        )

    def _search(self) -> Search:
        return Search(self._engines, self._now())

    def _now(self) -> Costs:
        """For setups that were not rehearsed, what others' rehearsals say of them."""
        return Costs(with_scatter(self._costs, self._known), dict(self._from_trials))


def with_scatter(
    costs: Mapping[int, ServingCost], known: Mapping[int, ServingCost]
) -> Mapping[int, ServingCost]:
    """What is known by number of workers; the others scatter as the nearest one of fewer, or else of more."""
    if not known:
        return costs
    return {workers: _scattering(cost, workers, known) for workers, cost in costs.items()} | dict(known)


def _taken_over(cost: ServingCost) -> ServingCost:
    """By setups that were not rehearsed.

    Not how far processes differed, which is the more the closer a setup is to what it can do: with that, what
    one missed would be promised by none.
    """
    factors = tuple(Beyond(p=one.p, factor=one.factor) for one in cost.beyond)
    return msgspec.structs.replace(cost, from_trials=0, beyond=factors, held_up=None)


def _scattering(cost: ServingCost, workers: int, known: Mapping[int, ServingCost]) -> ServingCost:
    like = known[max((many for many in known if many < workers), default=min(known))]
    return msgspec.structs.replace(like, batch_ms=cost.batch_ms, request_ms=cost.request_ms)
