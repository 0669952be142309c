"""What the batcher promises, on a device that computes when it is let."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path

import numpy as np
import pytest

from tests.support.gated_devices import PATIENCE_S, Gate, batcher_on
from tests.support.scripted_device.device import ScriptedDevice
from tests.support.serving_pools import ACTIVATIONS, device, pool_on, rows
from trtopt.errors import ClosedError, DataError, QueueFullError, UsageError, WorkerError
from trtopt.records import BatchPolicy
from trtopt.serving.batcher import DynamicBatcher

ROW = rows(1)[0]


def test_a_full_batch_is_computed_at_once_however_long_the_delay() -> None:
    with batcher_on(device()) as batcher:
        futures = [batcher.submit({"x": ROW}) for _ in range(8)]
        for future in futures:
            assert future.result(PATIENCE_S)["y"].shape == (2,)
        assert batcher.statistics().batch_sizes == {8: 1}


def test_a_lone_request_is_computed_when_its_delay_is_over() -> None:
    with batcher_on(device(), max_delay_ms=1.0) as batcher:
        began_s = time.perf_counter()
        assert batcher.submit(ROW).result(PATIENCE_S)["y"].shape == (2,)
        assert time.perf_counter() - began_s >= 1e-3


def test_requests_that_came_while_the_worker_was_busy_share_a_batch() -> None:
    gate = Gate()
    with batcher_on(gate, max_delay_ms=0.0) as batcher:
        first = batcher.submit(ROW)
        gate.wait_for_batches(1)
        others = [batcher.submit(ROW) for _ in range(5)]
        gate.opened.set()
        wait([first, *others], PATIENCE_S)
        assert batcher.statistics().batch_sizes == {1: 1, 5: 1}


def test_two_workers_compute_at_a_time() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=1, workers=2) as batcher:
        futures = [batcher.submit(ROW) for _ in range(2)]
        gate.wait_for_batches(2)  # neither has come through the gate
        assert batcher.statistics().running == 2
        gate.opened.set()
        assert all(future.result(PATIENCE_S) for future in futures)


def test_a_callback_that_would_end_its_thread_costs_no_one_an_answer() -> None:
    def leave(_: object) -> None:
        raise SystemExit

    gate = Gate()
    with batcher_on(gate, max_delay_ms=0.0) as batcher:
        first = batcher.submit(ROW)
        gate.wait_for_batches(1)
        leaving = batcher.submit(ROW)
        leaving.add_done_callback(leave)
        others = [batcher.submit(ROW) for _ in range(3)]
        gate.opened.set()
        assert all(future.result(PATIENCE_S) for future in [first, leaving, *others])
        assert batcher.submit(ROW).result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: forks with threads
def test_a_fork_is_told_that_it_has_no_workers_and_ends_without_waiting_for_them() -> None:
    with batcher_on(device()) as batcher:
        child = os.fork()
        if not child:
            told = b""
            try:
                batcher.submit(ROW)
            except ClosedError as error:
                told = str(error).encode()
            batcher.close()
            batcher._pool.close()
            os._exit(0 if b"of which this one is a fork" in told else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not batcher.is_closed


# ── back-pressure ───────────────────────────────────────────────────────────────────────────────────────


def test_more_than_may_wait_are_rejected_and_those_accepted_are_answered() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=1, max_waiting=3) as batcher:
        accepted = [batcher.submit(ROW)]
        gate.wait_for_batches(1)
        accepted += [batcher.submit(ROW) for _ in range(3)]
        for _ in range(2):
            with pytest.raises(QueueFullError, match="3 requests are waiting: the queue is full"):
                batcher.submit(ROW)
        told = batcher.statistics()
        assert (told.accepted, told.rejected, told.waiting, told.running) == (4, 2, 3, 1)
        gate.opened.set()
        assert all(future.result(PATIENCE_S) for future in accepted)
        assert batcher.statistics().answered == 4


def test_a_cancelled_request_makes_room_at_once() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=1, max_waiting=1) as batcher:
        batcher.submit(ROW)
        gate.wait_for_batches(1)
        waiting = batcher.submit(ROW)
        assert waiting.cancel()
        assert waiting.cancel()  # as often as one likes
        again = batcher.submit(ROW)
        told = batcher.statistics()
        assert (told.cancelled, told.waiting, told.rejected) == (1, 1, 0)
        gate.opened.set()
        assert again.result(PATIENCE_S)
        with pytest.raises(CancelledError):
            waiting.result()


def test_what_is_being_computed_cannot_be_cancelled() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=1) as batcher:
        running = batcher.submit(ROW)
        gate.wait_for_batches(1)
        assert not running.cancel()
        gate.opened.set()
        assert running.result(PATIENCE_S)
        assert not running.cancel()
        assert batcher.statistics().cancelled == 0


def test_a_batch_whose_requests_were_all_cancelled_leaves_the_worker_at_work() -> None:
    with batcher_on(device(), max_batch=2) as batcher:
        assert batcher.submit(ROW).cancel()
        futures = [batcher.submit(ROW) for _ in range(2)]
        assert all(future.result(PATIENCE_S) for future in futures)


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        (np.zeros(5, np.float32), r"x \[5\] fit no engine"),
        (np.zeros((1, 4), np.float32), r"x \[1, 4\] fit no engine"),
        (np.zeros(4, np.float64), "float64"),
        ({"y": ROW}, "the engines take"),
    ],
)
def test_a_request_that_does_not_fit_fails_alone_and_at_once(sample: object, told: str) -> None:
    with batcher_on(device(), max_batch=2) as batcher:
        good = [batcher.submit(ROW)]
        with pytest.raises(DataError, match=told):
            batcher.submit(sample)
        good.append(batcher.submit(ROW))
        assert all(future.result(PATIENCE_S) for future in good)
        told_now = batcher.statistics()
        assert (told_now.invalid, told_now.accepted, told_now.answered) == (1, 2, 2)


def test_a_worker_that_fails_fails_its_requests_and_the_next_are_answered() -> None:
    with batcher_on(device(fail_at=("enqueue", 2)), max_batch=2) as batcher:
        for expected in (None, WorkerError, None):
            futures = [batcher.submit(ROW) for _ in range(2)]
            for future in futures:
                error = future.exception(PATIENCE_S)
                assert type(error) is (expected or type(None))
        told = batcher.statistics()
        assert (told.answered, told.failed, told.running) == (4, 2, 0)


def test_every_request_of_a_failed_batch_has_an_error_of_its_own_with_its_cause() -> None:
    with batcher_on(device(fail_at=("enqueue", 1)), max_batch=2) as batcher:
        futures = [batcher.submit(ROW) for _ in range(2)]
        first, second = (future.exception(PATIENCE_S) for future in futures)
        assert first is not second
        assert str(first) == str(second)
        assert "scripted failure of enqueue" in str(first)
        assert first is not None
        assert "scripted failure" in str(first.__cause__)


def test_failures_that_are_no_ones_are_told_too() -> None:
    class Odd(ScriptedDevice):
        def call(self, name: str) -> None:
            super().call(name)
            if name == "enqueue" and self.calls.count("enqueue") == 1:
                raise ZeroDivisionError("odd")

    with batcher_on(Odd(), max_batch=1) as batcher:
        with pytest.raises(WorkerError, match="ZeroDivisionError: odd"):
            batcher.submit(ROW).result(PATIENCE_S)
        assert batcher.submit(ROW).result(PATIENCE_S)


def test_without_memory_for_its_engine_a_request_fails_and_the_worker_lives() -> None:
    with batcher_on(device(memory_bytes=100), max_batch=8, max_delay_ms=0.0) as batcher:
        assert batcher.submit(ROW).result(PATIENCE_S)
        futures = [batcher.submit(ROW) for _ in range(8)]
        told = {str(future.exception(PATIENCE_S)) for future in futures} - {"None"}
        assert all("out of memory" in one for one in told)
        assert batcher.submit(ROW).result(PATIENCE_S)


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────


def test_closing_answers_all_that_was_accepted_and_accepts_no_more() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=2) as batcher:
        futures = [batcher.submit(ROW) for _ in range(7)]
        gate.wait_for_batches(1)
        closing = threading.Thread(target=batcher.close)
        closing.start()
        while not batcher.is_closed:
            time.sleep(0.001)
        with pytest.raises(ClosedError, match="the batcher has been closed"):
            batcher.submit(ROW)
        gate.opened.set()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
        assert all(future.done() and future.result() for future in futures)
        told = batcher.statistics()
        assert told.answered == told.accepted == len(futures)


def test_closing_without_draining_fails_what_waits_and_answers_what_runs() -> None:
    gate = Gate()
    with batcher_on(gate, max_batch=1) as batcher:
        running = batcher.submit(ROW)
        gate.wait_for_batches(1)
        waiting = [batcher.submit(ROW) for _ in range(3)]
        closing = threading.Thread(target=batcher.close, kwargs={"drain": False})
        closing.start()
        for future in waiting:
            with pytest.raises(ClosedError, match="closed before its turn"):
                future.result(PATIENCE_S)
        gate.opened.set()
        assert running.result(PATIENCE_S)
        closing.join(PATIENCE_S)
        told = batcher.statistics()
        assert (told.answered, told.failed, told.waiting, told.running) == (1, 3, 0, 0)


def test_the_callback_of_an_answer_may_submit_and_close() -> None:
    done = threading.Event()

    def go_on(future: Future[object]) -> None:
        batcher.submit(ROW)
        batcher.close()
        done.set()

    with batcher_on(device(), max_batch=1) as batcher:
        batcher.submit(ROW).add_done_callback(go_on)
        assert done.wait(PATIENCE_S)
    assert batcher.statistics().answered == 2


def test_callbacks_of_two_answers_may_close_at_the_same_time() -> None:
    both_answered, closed = threading.Barrier(2, timeout=PATIENCE_S), threading.Semaphore(0)

    def close(_answered: Future[object]) -> None:
        both_answered.wait()
        batcher.close()
        closed.release()

    batcher = DynamicBatcher(pool_on(device(), workers=2), BatchPolicy(max_batch=1))
    atexit.unregister(batcher.close)  # which a failure would leave waiting
    for _ in range(2):
        batcher.submit(ROW).add_done_callback(close)
    assert [closed.acquire(timeout=PATIENCE_S) for _ in range(2)] == [True, True]
    batcher._pool.close()


def test_a_batcher_that_cannot_start_all_its_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if thread.name == "trtopt-batcher-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    with pool_on(device(), workers=2) as pool:
        before = threading.active_count()
        monkeypatch.setattr(threading.Thread, "start", start_one)
        with pytest.raises(WorkerError, match="2 workers"):
            DynamicBatcher(pool)
        assert threading.active_count() == before


def test_a_pool_that_was_closed_first_fails_requests_clearly() -> None:
    with pool_on(device()) as pool:
        batcher = DynamicBatcher(pool, BatchPolicy(max_batch=1))
        pool.close()
        with pytest.raises(ClosedError, match="the pool has been closed"):
            batcher.submit(ROW).result(PATIENCE_S)
        batcher.close()


FORGOTTEN = """
from tests.support.serving_pools import device, pool_on, rows
from trtopt.records import BatchPolicy
from trtopt.serving.batcher import DynamicBatcher
batcher = DynamicBatcher(pool_on(device()), BatchPolicy(max_batch=8, max_delay_ms=3_600_000.0))
batcher.submit(rows(1)[0]).add_done_callback(lambda future: print(future.result()["y"].shape, flush=True))
"""


def test_a_batcher_that_no_one_closed_answers_when_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(2,)\n", "")


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"max_waiting": 0}, {"max_delay_ms": -1.0}])
def test_a_policy_under_which_nothing_could_run_is_refused(wrong: dict[str, float]) -> None:
    settings = {"max_batch": 1, "max_waiting": 1, "max_delay_ms": 0.0} | wrong
    with pool_on(device()) as pool, pytest.raises(UsageError, match="nothing could ever run"):
        DynamicBatcher(pool, BatchPolicy(**settings))


def test_by_default_a_batch_is_as_large_as_the_largest_engine() -> None:
    with pool_on(device(), (1, 8), bound_bytes=ACTIVATIONS) as pool, DynamicBatcher(pool) as batcher:
        assert batcher.policy == BatchPolicy(max_batch=8)
