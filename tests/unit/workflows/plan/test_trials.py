"""What serving adds to an engine, and what became of a trial, run by run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.errors import DeviceError
from trtopt.serving.trial_run import TrialResult, TrialRun
from trtopt.workers.jobs import environment_of
from trtopt.workflows.plan.plan import runs_of, verification_of

HERE = environment_of(OnnxRuntimeTarget())


def trial(took_ms: Sequence[float | None], *, rejected: int = 0, failed: int = 0) -> TrialRun:
    """A request each millisecond; handed over after as many microseconds as requests came before it."""
    return TrialRun(
        at_ms=[float(index) for index in range(len(took_ms))],
        done_ms=[None if ms is None else index + ms for index, ms in enumerate(took_ms)],
        lag_ms=[index / 1e3 for index in range(len(took_ms))],
        rejected=rejected,
        failed=failed,
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
    done = verification_of(TrialResult(run=trial(took_ms.tolist()), environment=HERE), 99.0, 3)
    assert [one.p99_ms for one in done.runs] == pytest.approx([1.0, 40.0, 2.0])
    assert (done.typical.p50_ms, done.typical.p99_ms, done.typical.goal_ms) == pytest.approx((2.0,) * 3)
    assert (done.total.p50_ms, done.total.p99_ms) == pytest.approx((2.0, 40.0))
    assert (done.requests, done.answered) == (1500, 1500)
