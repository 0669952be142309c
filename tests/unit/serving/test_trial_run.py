"""A plan's trial: what is served, and what is told of it."""

from __future__ import annotations

import pytest

from tests.support.serving_pools import device, pool_on
from trtopt.records import BatchPolicy
from trtopt.serving import trial_run as trial
from trtopt.serving.batcher import DynamicBatcher, Request
from trtopt.serving.trial_run import TrialJob, try_plan

SHAPES = {"x": (4,)}


def test_what_is_served_before_is_answered_by_then_and_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_on(device())
    pool.policy = BatchPolicy(max_batch=1)
    monkeypatch.setattr(trial.EnginePool, "open", lambda *_, **__: pool)
    monkeypatch.setattr(trial, "serve_promptly", lambda: None)  # which is for a process of its own
    sent: list[Request] = []
    done_by_then: list[bool] = []
    submit = DynamicBatcher.submit

    def noted(batcher: DynamicBatcher, sample: object) -> object:
        if len(sent) == 3:  # the first that counts
            done_by_then.extend(request.done() for request in sent)
        sent.append(submit(batcher, sample))  # type: ignore[arg-type]
        return sent[-1]

    monkeypatch.setattr(DynamicBatcher, "submit", noted)
    job = TrialJob(
        path="",
        backend="scripted",
        buckets=(SHAPES,),
        at_s=[0.0, 0.01],
        bucket=[0, 0],
        before_s=[0.0, 0.001, 0.002],
    )
    run = try_plan(job, lambda *_: None)
    assert len(sent) == 5
    assert done_by_then == [True] * 3
    assert (run.at_ms, len(run.done_ms), len(run.lag_ms)) == ([0.0, 10.0], 2, 2)
    assert (run.rejected, run.failed) == (0, 0)
