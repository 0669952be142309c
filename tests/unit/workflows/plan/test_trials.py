"""What serving adds to an engine, and what became of a trial, run by run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.errors import DeviceError
from trtopt.records import BatchPolicy, ServingCost
from trtopt.serving.batch_trace import Took
from trtopt.serving.planning.service_times import Curve
from trtopt.serving.planning.setups import Fleet, MeasuredEngine, Setup
from trtopt.serving.planning.simulation import Arrivals
from trtopt.serving.trial_run import TrialRun
from trtopt.workers.jobs import environment_of
from trtopt.workers.protocol import Tried
from trtopt.workflows.plan.trials import evenly, runs_of, trial_cost, verification_of

CURVES = (Curve(1, 1, {1: {1: (1.0,)}, 2: {1: (1.5,)}}), Curve(8, 8, {1: {8: (2.0, 4.0)}}))
LONGER = (Curve(8, 8, {1: {8: (30.0,)}}),)
SETUP = Setup(
    Fleet([MeasuredEngine("some", "0" * 64, "fp16", {128: CURVES, 384: LONGER})]),
    1,
    BatchPolicy(max_batch=8, max_delay_ms=0.0),
)
"""1 ms for one request, 1.5 beside another batch; 3 ms for up to eight, and 30 where they are longer."""


ALONE = Arrivals.of([index / 10 for index in range(200)], [0] * 200)
"""So rare that each request takes 1 ms by itself."""


def run_of(
    *batches: tuple[int, int, int, float],
    took_ms: Sequence[float | None] = (1.0,) * 200,
    late_ms: float = 0.2,
) -> TrialRun:
    at_ms = [at_s * 1e3 for at_s in ALONE.at_s]
    return TrialRun(
        at_ms=at_ms,
        done_ms=[None if ms is None else at + ms for at, ms in zip(at_ms, took_ms, strict=True)],
        lag_ms=[late_ms],
        rejected=0,
        failed=0,
        batches=[Took(*batch) for batch in batches],
        wake_ms=[0.3, 0.1],
    )


def cost_of(full: ServingCost, run: TrialRun, percentiles: Sequence[float] = ()) -> ServingCost:
    return trial_cost(full, SETUP, [(ALONE, run)], percentiles)


def test_nothing_counts_of_a_run_that_the_machine_held_up() -> None:
    even = [run_of(*[(0, 1, 1, ms)] * 200, took_ms=(ms,) * 200) for ms in (1.0, 1.1, 1.2)]
    stalled = run_of(*[(0, 1, 1, 1.1)] * 190, *[(0, 1, 1, 90.0)] * 10, took_ms=(1.1,) * 150 + (90.0,) * 50)
    told = [(ALONE, run) for run in (*even, stalled)]
    cost = trial_cost(ServingCost(), SETUP, told, [50.0, 99.0])
    assert cost.held_up is not None
    assert (cost.held_up.p, cost.from_trials) == (99.0, 600)
    assert [one.trials for one in cost.beyond] == [3, 3]
    without = trial_cost(ServingCost(), SETUP, told[:3], [50.0, 99.0])
    assert cost == msgspec.structs.replace(without, held_up=cost.held_up)


def test_values_stand_for_equal_parts_and_keep_the_mean() -> None:
    values = np.random.default_rng(0).lognormal(size=10_001)
    few = evenly(values.tolist())
    assert len(few) == 200
    assert list(few) == sorted(few)
    assert np.mean(few) == pytest.approx(values.mean(), rel=1e-3)
    assert evenly([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    assert evenly([]) == ()


def test_one_outlier_is_one_of_many() -> None:
    few = evenly([0.0] * 9_999 + [50.0])
    assert np.quantile(few, 0.99) == 0
    assert few[-1] == pytest.approx(50 / 50)


def test_what_batches_take_longer_on_average_is_added_to_each_and_the_rest_scatters_around_it() -> None:
    full = ServingCost(batch_ms=0.5, request_ms=0.25)
    cost = cost_of(full, run_of((0, 1, 1, 2.0), (0, 1, 1, 2.5), (0, 8, 1, 6.0)))
    # beyond 1 + 0.75 and 3 + 2.5: 0.25, 0.75 and 0.5
    assert (cost.batch_ms, cost.request_ms) == pytest.approx((1.0, 0.25))
    assert cost.jitter_ms == pytest.approx((-0.25, 0, 0.25))
    assert cost.wake_ms == (0.1, 0.3)
    assert cost.late_ms == (0.2,)
    assert cost.from_trials == 200


def test_nothing_is_added_that_would_be_less_than_nothing() -> None:
    cost = cost_of(ServingCost(batch_ms=0.5), run_of((0, 1, 1, 0.5)))
    assert cost.batch_ms == 0
    assert cost.jitter_ms == pytest.approx((-0.5,))


def test_a_batch_is_held_against_what_its_kind_takes_among_as_many() -> None:
    run = run_of((0, 1, 1, 1.5), (0, 1, 2, 2.0), (1, 3, 1, 30.5))
    cost = cost_of(ServingCost(), run)
    assert cost.batch_ms == pytest.approx(0.5)
    assert cost.jitter_ms == pytest.approx((0, 0, 0))


def quiet(took_ms: Sequence[float | None]) -> TrialRun:
    """Nothing scatters, so that a simulation says 1 ms at every percentile."""
    run = run_of((0, 1, 1, 1.0), took_ms=took_ms, late_ms=0.0)
    return msgspec.structs.replace(run, wake_ms=[0.0])


def test_what_a_simulation_of_the_same_arrivals_misses_is_reported_by_percentile() -> None:
    cost = cost_of(ServingCost(), quiet([1.5] * 190 + [4.0] * 10), (50.0, 99.0, 99.0))
    middle, tail = cost.beyond
    assert (middle.factor, tail.factor) == pytest.approx((1.5, 4.0))
    assert (cost.beyond_at(50.0), cost.beyond_at(99.0)) == (middle, tail)
    assert (cost.beyond_at(90.0), cost.beyond_at(99.9)) == (middle, tail)  # the next below that is known
    assert cost.beyond_at(25.0) is None


def test_a_percentile_is_told_by_no_fewer_requests_than_it_needs() -> None:
    assert [one.p for one in cost_of(ServingCost(), quiet([1.0] * 200), (99.0, 99.9)).beyond] == [99.0]


def test_where_requests_were_rejected_the_factor_can_be_written_down() -> None:
    cost = cost_of(ServingCost(), quiet([1.0] * 190 + [None] * 10), (50.0, 99.0))
    assert [one.factor for one in cost.beyond] == pytest.approx([1.0, 1000.0])
    assert msgspec.json.decode(msgspec.json.encode(cost), type=ServingCost) == cost


def test_what_scatters_is_that_of_all_trial_runs() -> None:
    first, second = run_of((0, 1, 1, 1.5)), run_of((0, 1, 1, 2.5), late_ms=0.6)
    cost = trial_cost(ServingCost(), SETUP, [(ALONE, first), (ALONE, second)], (50.0,))
    assert (cost.batch_ms, cost.from_trials) == (pytest.approx(1.0), 400)
    assert cost.jitter_ms == pytest.approx((-0.5, 0.5))
    assert (cost.late_ms, cost.wake_ms) == ((0.2, 0.6), (0.1, 0.1, 0.3, 0.3))
    assert [one.trials for one in cost.beyond] == [2]


HERE = environment_of(OnnxRuntimeTarget())


def trial(took_ms: Sequence[float | None], *, rejected: int = 0, failed: int = 0) -> TrialRun:
    """A request each millisecond; handed over after as many microseconds as requests came before it."""
    return TrialRun(
        at_ms=[float(index) for index in range(len(took_ms))],
        done_ms=[None if ms is None else index + ms for index, ms in enumerate(took_ms)],
        lag_ms=[index / 1e3 for index in range(len(took_ms))],
        rejected=rejected,
        failed=failed,
        batches=[],
        wake_ms=[],
    )


def test_runs_are_reported_one_by_one() -> None:
    fast, slow = runs_of(trial([1.0] * 500 + [4.0] * 500), 90.0, 2)
    assert (fast.p50_ms, fast.p99_ms, fast.goal_ms) == pytest.approx((1.0, 1.0, 1.0))
    assert (slow.p50_ms, slow.p99_ms, slow.goal_ms) == pytest.approx((4.0, 4.0, 4.0))
    # the last request comes after 499 ms and is answered 1 or 4 ms later
    assert (fast.throughput, slow.throughput) == pytest.approx((1000.0, 500 / 0.503))
    assert (fast.lag_p99_ms, slow.lag_p99_ms) == pytest.approx((0.99 * 0.499, 0.5 + 0.99 * 0.499))


def test_the_percentile_of_the_goal_is_reported_next_to_the_usual_ones() -> None:
    (run,) = runs_of(trial(np.linspace(0, 10, 1001).tolist()), 80.0, 1)
    assert (run.p50_ms, run.p99_ms, run.goal_ms) == pytest.approx((5.0, 9.9, 8.0))


def test_requests_without_an_answer_have_no_latency_and_no_part_in_the_throughput() -> None:
    (run,) = runs_of(trial([None, *[2.0] * 99], rejected=1), 50.0, 1)
    assert run.p99_ms == pytest.approx(2.0)
    assert run.throughput == pytest.approx(99 / 0.101)


def test_a_run_without_an_answer_is_left_out() -> None:
    before, after = runs_of(trial([1.0] * 50 + [None] * 50 + [2.0] * 50, rejected=50), 99.0, 3)
    assert (before.p50_ms, after.p50_ms) == pytest.approx((1.0, 2.0))


def test_where_nothing_is_answered_nothing_is_reported() -> None:
    with pytest.raises(DeviceError, match="no request of the trial was answered"):
        runs_of(trial([None] * 9, failed=9), 99.0, 3)


def test_a_verification_tells_each_run_their_medians_and_all_requests_together() -> None:
    took_ms = np.repeat([1.0, 40.0, 2.0], 500)
    done = verification_of(Tried(run=trial(took_ms.tolist()), environment=HERE), 99.0, 3)
    assert [one.p99_ms for one in done.runs] == pytest.approx([1.0, 40.0, 2.0])
    assert (done.typical.p50_ms, done.typical.p99_ms, done.typical.goal_ms) == pytest.approx((2.0,) * 3)
    assert (done.total.p50_ms, done.total.p99_ms) == pytest.approx((2.0, 40.0))
    assert (done.requests, done.answered) == (1500, 1500)
