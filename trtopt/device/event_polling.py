"""Waiting for whichever comes first, a device's event or a time: drivers can only wait for one event."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trtopt.device.api import Event

_WAKE_S = 1e-3
"""A sleeping thread wakes late by some fraction of it: so long before the time the host stays awake."""


def poll(events: Sequence[Event], until_s: float) -> None:
    """Wait until one of `events` is reached or `time.perf_counter()` is `until_s`; sleeps only if idle."""
    if not events:
        time.sleep(max(0.0, until_s - time.perf_counter() - _WAKE_S))
    while time.perf_counter() < until_s:
        for event in events:
            if event.reached():
                return
