"""Nothing that a caller gives or does ends a batcher's threads, or costs others their answers."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

from tests.support.gated_devices import HOUR_MS, PATIENCE_S, Gate, batcher_on
from tests.support.serving_pools import device, pool_on, rows
from trtopt.errors import ClosedError, UsageError, WorkerError
from trtopt.records import BatchPolicy
from trtopt.serving import batcher as module
from trtopt.serving.batcher import DynamicBatcher, Request
from trtopt.serving.batching_policy import Run, Wait, Waiting, decide

ROW = rows(1)[0]


# ── policies ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def has_decided_to_wait(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set, by a thread that holds the batcher's lock, when somebody waits for company."""
    decided = threading.Event()

    def noting(now_s: float, queues: Sequence[Waiting], policy: BatchPolicy) -> Run | Wait:
        step = decide(now_s, queues, policy)
        if queues and isinstance(step, Wait):
            decided.set()
        return step

    monkeypatch.setattr(module, "decide", noting)
    return decided


def let_wait(batcher: DynamicBatcher, has_decided_to_wait: threading.Event) -> None:
    assert has_decided_to_wait.wait(PATIENCE_S)
    with batcher._lock:  # which is free once the thread waits
        has_decided_to_wait.clear()


@pytest.mark.parametrize("delay_ms", [1e16, 1e300, math.inf])
def test_a_delay_longer_than_a_thread_can_wait_is_waited_for(
    delay_ms: float, has_decided_to_wait: threading.Event
) -> None:
    with batcher_on(device(), max_delay_ms=delay_ms) as batcher:
        first = batcher.submit(ROW)
        let_wait(batcher, has_decided_to_wait)
        others = [batcher.submit(ROW) for _ in range(7)]  # the batch is full
        assert all(future.result(PATIENCE_S) for future in [first, *others])
        has_decided_to_wait.clear()
        last = batcher.submit(ROW)
        let_wait(batcher, has_decided_to_wait)
    assert last.result(0)["y"].shape == (2,)  # closing has answered it


@pytest.mark.parametrize("name", ["max_batch", "max_waiting"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", None, math.nan])
def test_a_policy_whose_counts_are_none_is_refused(name: str, value: Any) -> None:
    policy = BatchPolicy(**{"max_batch": 1} | {name: value})
    with (
        pool_on(device()) as pool,
        pytest.raises(UsageError, match=f"run: {name} is .*, a whole number from"),
    ):
        DynamicBatcher(pool, policy)


@pytest.mark.parametrize("delay_ms", [-1.0, math.nan, "2", None])
def test_a_policy_whose_delay_is_none_is_refused(delay_ms: Any) -> None:
    with (
        pool_on(device()) as pool,
        pytest.raises(UsageError, match=r"run: max_delay_ms is .*, a number from 0"),
    ):
        DynamicBatcher(pool, BatchPolicy(max_batch=1, max_delay_ms=delay_ms))


def test_numpys_numbers_are_numbers() -> None:
    policy = BatchPolicy(max_batch=np.int64(2), max_delay_ms=np.float32(0.0), max_waiting=np.int32(5))
    with pool_on(device()) as pool, DynamicBatcher(pool, policy) as batcher:
        assert batcher.submit(ROW).result(PATIENCE_S)


# ── what nobody expects ─────────────────────────────────────────────────────────────────────────────────


class Once:
    """Does as `wanted` does, but raises in one of its calls."""

    def __init__(self, wanted: Any, error: BaseException, call: int = 1) -> None:
        self._wanted, self._error, self._calls_left = wanted, error, call

    def __call__(self, *given: Any) -> Any:
        self._calls_left -= 1
        if not self._calls_left:
            raise self._error
        return self._wanted(*given)


@pytest.mark.parametrize("error", [OverflowError("odd"), SystemExit("odd")])
def test_waiting_threads_are_notified_when_deciding_fails_and_the_thread_continues(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    with batcher_on(gate, max_delay_ms=0.0) as batcher:
        running = batcher.submit(ROW)
        gate.wait_for_batches(1)
        waiting = [batcher.submit(ROW) for _ in range(3)]
        monkeypatch.setattr(module, "decide", Once(module.decide, error))
        gate.opened.set()
        assert running.result(PATIENCE_S)
        for future in waiting:
            with pytest.raises(WorkerError, match=f"{type(error).__name__}: odd"):
                future.result(PATIENCE_S)
        assert batcher.submit(ROW).result(PATIENCE_S)
        told = batcher.statistics()
        assert (told.answered, told.failed, told.waiting, told.running) == (2, 3, 0, 0)
    assert "odd" in caplog.text


@pytest.mark.parametrize("error", [KeyError("odd"), KeyboardInterrupt("odd")])
def test_a_batch_is_reported_when_running_it_fails_and_who_waits_is_served(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(DynamicBatcher):
        """What runs a batch fails outside of all that is watched."""

        def _run(self, batch: Sequence[Request]) -> None:
            once(batch)
            super()._run(batch)

    once = Once(lambda batch: None, error)
    with pool_on(device()) as pool, Odd(pool, BatchPolicy(max_batch=2, max_delay_ms=HOUR_MS)) as batcher:
        futures = [batcher.submit(ROW) for _ in range(4)]
        wait(futures, PATIENCE_S)
        for future in futures[:2]:
            with pytest.raises(WorkerError, match=f"{type(error).__name__}: '?odd"):
                future.result(0)
        assert all(future.result(0) for future in futures[2:])
        told = batcher.statistics()
        assert (told.answered, told.failed, told.running) == (2, 2, 0)


@pytest.mark.parametrize("error", [ValueError("odd"), KeyboardInterrupt("odd"), SystemExit("odd")])
def test_a_callback_that_raises_costs_no_one_an_answer(error: BaseException) -> None:
    def fail(_: object) -> None:
        raise error

    gate = Gate()
    with batcher_on(gate, max_batch=4) as batcher:
        futures = [batcher.submit(ROW) for _ in range(4)]
        for future in futures[:2]:
            future.add_done_callback(fail)
        gate.opened.set()
        assert all(future.result(PATIENCE_S) for future in futures)
        told = batcher.statistics()
        assert (told.answered, told.failed, told.running) == (4, 0, 0)


def test_a_callback_that_raises_while_the_batcher_is_closed_costs_no_one_an_answer() -> None:
    with pool_on(device()) as pool:
        batcher = DynamicBatcher(pool, BatchPolicy(max_batch=4, max_delay_ms=HOUR_MS))
        futures = [batcher.submit(ROW) for _ in range(3)]
        futures[0].add_done_callback(lambda _: sys.exit(1))
        batcher.close(drain=False)
        assert all(isinstance(future.exception(0), ClosedError) for future in futures)


def test_closing_ends_a_thread_that_has_met_what_no_one_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    with batcher_on(device()) as batcher:
        monkeypatch.setattr(module, "decide", Once(module.decide, OverflowError("odd")))
        with pytest.raises(WorkerError, match="odd"):
            batcher.submit(ROW).result(PATIENCE_S)
        batcher.close()
        assert not any(thread.is_alive() for thread in batcher._threads)


@pytest.mark.parametrize("when", ["it waits", "it runs"])
def test_a_caller_who_answers_a_request_itself_costs_no_one_else_an_answer(when: str) -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=3) as batcher:
        futures = [batcher.submit(ROW) for _ in range(2)]
        if when == "it waits":
            futures[0].set_result({})
        futures.append(batcher.submit(ROW))
        gate.wait_for_batches(1)
        if when == "it runs":
            futures[0].set_result({})
        gate.opened.set()
        assert futures[0].result(PATIENCE_S) == {}
        assert all(future.result(PATIENCE_S)["y"].shape == (2,) for future in futures[1:])
        assert batcher.statistics().running == 0


def test_a_caller_who_answers_a_request_itself_hides_no_failure_from_others() -> None:
    class Failing(Gate):
        def call(self, name: str) -> None:
            super().call(name)
            if name == "synchronize":
                raise OSError("odd")

    gate = Failing()
    with batcher_on(gate, max_batch=2) as batcher:
        futures = [batcher.submit(ROW) for _ in range(2)]
        gate.wait_for_batches(1)
        futures[0].set_result({})
        gate.opened.set()
        with pytest.raises(WorkerError, match="OSError: odd"):
            futures[1].result(PATIENCE_S)
        assert futures[0].result(0) == {}
