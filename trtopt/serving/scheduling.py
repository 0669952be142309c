"""Threads that go on when it is their turn."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

_SET_TIMER_SLACK = 29  # of prctl(2)
_SLACK_NS = 1

SWITCH_S = 0.0005
"""A tenth of Python's own: a batch changes threads several times, and a request has milliseconds."""


def serve_promptly() -> None:
    """Have this process answer in time; to be called once its pool is open and warm.

    Present objects are excluded from Python's garbage collections, which stop every thread for tens of
    milliseconds. Threads that compute in Python yield after half a millisecond (`sys.setswitchinterval`)
    instead of five.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def wake_on_time() -> None:
    """Have Linux wake this thread when its timers run out, instead of up to 50 µs later; elsewhere nothing.

    Delays of batches are a few hundred microseconds, and so are the gaps between requests of a busy service.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(_SLACK_NS), 0, 0, 0)


def on_schedule(at_s: Sequence[float], begin_s: float) -> Iterator[float]:
    """For each time after `begin_s` (`time.perf_counter`'s), once it has come: how many ms late it is by now.

    Asleep until then, and some 30 µs longer: a thread that spins keeps the interpreter from the others.
    """
    wake_on_time()
    for due_s in at_s:
        while (left_s := begin_s + due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        yield (time.perf_counter() - begin_s - due_s) * 1e3
