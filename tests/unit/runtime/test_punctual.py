"""A thread's timers are its own."""

from __future__ import annotations

import ctypes
import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from trtopt.runtime.punctual import SWITCH_S, serve_promptly, wake_on_time

GET_TIMER_SLACK = 30


def slack_ns() -> int:
    return int(ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_only_the_thread_that_asks_is_woken_on_time() -> None:
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
