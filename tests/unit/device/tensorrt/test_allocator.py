"""Memory that TensorRT allocates through trtopt: where it lies, and what is told of it."""

from __future__ import annotations

import itertools
import time
from threading import Barrier, Thread

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from trtopt.device.api import AllocationTracker
from trtopt.device.tensorrt.allocator import TrackedMemory


@pytest.mark.parametrize("alignment", [512, 4096, 65536])
def test_an_address_is_as_aligned_as_was_asked_and_released_by_it(alignment: int) -> None:
    device = ScriptedDevice(Script())
    tracker = AllocationTracker(device.now)
    memory = TrackedMemory(device, tracker)
    addresses = [memory.allocate(1000, alignment) for _ in range(8)]
    assert all(address and address % alignment == 0 for address in addresses)
    assert len(set(addresses)) == len(addresses)
    assert all(memory.deallocate(address) for address in addresses)
    assert device.used == 0
    taken, given = (
        [one for one in tracker.events if one.kind == kind] for kind in ("allocate", "deallocate")
    )
    assert [(one.address, one.size_bytes) for one in taken] == [
        (one.address, one.size_bytes) for one in given
    ]


def test_what_cudas_own_alignment_will_do_for_takes_no_more_than_was_asked() -> None:
    device = ScriptedDevice(Script())
    memory = TrackedMemory(device, AllocationTracker(device.now))
    assert memory.allocate(1000, 256)
    assert device.used == 1000


def test_calls_of_several_threads_stand_in_the_order_of_their_times() -> None:
    ticks = itertools.count()

    def clock() -> float:
        now = next(ticks)
        time.sleep(0)  # another thread's turn
        return float(now)

    tracker = AllocationTracker(clock)
    begin = Barrier(8)

    def call() -> None:
        begin.wait()
        for _ in range(500):
            tracker.add("allocate", 1, 1)

    threads = [Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = [event.at_ms for event in tracker.events]
    assert len(times) == 4000
    assert times == sorted(times)
