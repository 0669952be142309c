"""A scripted device that computes when it is let: tests decide what is waiting and what is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.serving_pools import pool_on
from trtopt.records import BatchPolicy
from trtopt.serving.batcher import DynamicBatcher

HOUR_MS = 3_600_000.0
PATIENCE_S = 120.0
"""Whatever is not there by then never comes: no test waits for it when all is well."""


class Gate(ScriptedDevice):
    """Every batch waits in `synchronize` until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.running = threading.Semaphore(0)

    def call(self, name: str) -> None:
        if name == "synchronize":
            self.running.release()
            assert self.opened.wait(PATIENCE_S)
        super().call(name)

    def wait_for_batches(self, count: int) -> None:
        for _ in range(count):
            assert self.running.acquire(timeout=PATIENCE_S)


@contextmanager
def batcher_on(
    device: ScriptedDevice,
    *,
    max_batch: int = 8,
    max_delay_ms: float = HOUR_MS,
    max_waiting: int = 100,
    workers: int = 1,
) -> Iterator[DynamicBatcher]:
    """A batcher on its own pool; leaving opens the gate, so that no failing test hangs."""
    policy = BatchPolicy(max_batch=max_batch, max_delay_ms=max_delay_ms, max_waiting=max_waiting)
    with pool_on(device, workers=workers, graphs=False) as pool, DynamicBatcher(pool, policy) as batcher:
        try:
            yield batcher
        finally:
            if isinstance(device, Gate):
                device.opened.set()
