"""Everything at once: failing workers, cancellations, a full queue, an end in the middle."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future

import pytest

from tests.support.gated_devices import PATIENCE_S, batcher_on
from tests.support.scripted_device.device import ScriptedDevice
from tests.support.serving_pools import rows
from trtopt.errors import ClosedError, DeviceError, QueueFullError, WorkerError
from trtopt.serving.batcher import DynamicBatcher

ROW = rows(1)[0]
MANY = 3000


class Moody(ScriptedDevice):
    """Every twentieth batch fails."""

    batches = 0

    def call(self, name: str) -> None:
        if name == "enqueue":
            self.batches += 1
            if self.batches % 20 == 0:
                raise DeviceError("the device is in a mood", "the test wants it so")
        if name == "synchronize":
            time.sleep(0.0002)


class Sender(threading.Thread):
    """Sends until the batcher is closed; `ended` counts how often each of its requests has ended."""

    def __init__(self, batcher: DynamicBatcher, seed: int) -> None:
        super().__init__()
        self.batcher, self.choose = batcher, random.Random(seed)
        self.futures: list[Future[object]] = []
        self.ended: Counter[int] = Counter()

    def run(self) -> None:
        while True:
            try:
                future = self.batcher.submit(ROW)
            except QueueFullError:
                time.sleep(0.0005)
                continue
            except ClosedError:
                return
            self.futures.append(future)
            future.add_done_callback(self.count)
            if self.choose.random() < 0.3:
                self.choose.choice(self.futures[-20:]).cancel()

    def count(self, future: Future[object]) -> None:
        self.ended[id(future)] += 1  # a future calls but once, and each has an entry of its own


def ending(future: Future[object]) -> str:
    try:
        future.result(0)
    except CancelledError:
        return "cancelled"
    except (WorkerError, ClosedError):
        return "failed"
    return "answered"


@pytest.mark.parametrize("drain", [True, False])
def test_whatever_happens_every_accepted_request_ends_once_and_is_counted(drain: bool) -> None:
    device = Moody()
    with batcher_on(device, max_batch=4, max_delay_ms=0.2, max_waiting=32, workers=2) as batcher:
        senders = [Sender(batcher, seed) for seed in range(3)]
        for sender in senders:
            sender.start()
        until_s = time.monotonic() + PATIENCE_S
        while batcher.statistics().accepted < MANY:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        batcher.close(drain=drain)
        for sender in senders:
            sender.join(PATIENCE_S)
    futures = [future for sender in senders for future in sender.futures]
    endings = Counter(map(ending, futures))
    told = batcher.statistics()
    assert told.accepted == len(futures) >= MANY
    assert endings == Counter(answered=told.answered, failed=told.failed, cancelled=told.cancelled)
    assert min(endings.values()) > 0
    assert (told.waiting, told.running) == (0, 0)
    assert [sum(sender.ended.values()) for sender in senders] == [len(one.futures) for one in senders]
    assert all(set(sender.ended.values()) == {1} for sender in senders)
