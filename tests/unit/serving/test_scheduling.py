"""A thread's timers are its own."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from trtopt.serving.batcher import SWITCH_S, serve_promptly, wake_on_time
from trtopt.serving.trial_run import on_schedule

SET_TIMER_SLACK, GET_TIMER_SLACK = 29, 30
USUAL_NS = 50_000


def slack_ns() -> int:
    return int(ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_only_the_thread_that_asks_is_woken_on_time() -> None:
    ctypes.CDLL(None).prctl(SET_TIMER_SLACK, USUAL_NS, 0, 0, 0)  # whatever another test has left
    before = slack_ns()

    def asked() -> int:
        wake_on_time()
        return slack_ns()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(asked).result() == 1
    assert slack_ns() == before > 1


def test_where_there_is_no_such_call_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    wake_on_time()


def test_a_schedule_is_gone_through_in_time_and_never_early() -> None:
    begin_s = time.perf_counter()
    at_s = [0.0, 0.01, 0.01, 0.02]
    for due_s, late_ms in zip(at_s, on_schedule(at_s, begin_s), strict=True):
        assert late_ms >= 0
        assert time.perf_counter() - begin_s >= due_s + late_ms / 1e3


def test_a_process_that_serves_leaves_out_what_is_there_and_switches_threads_soon() -> None:
    before_s, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    sys.setswitchinterval(0.005)  # Python's own, whatever another test has left
    kept: list[list[object]] = [[] for _ in range(1000)]
    try:
        serve_promptly()
        assert gc.get_freeze_count() >= frozen + len(kept)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        gc.unfreeze()
        gc.freeze()  # as tests/conftest.py left it
        sys.setswitchinterval(before_s)
