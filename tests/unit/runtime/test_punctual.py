"""A thread's timers are its own."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from trtopt.runtime.punctual import wake_on_time

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
