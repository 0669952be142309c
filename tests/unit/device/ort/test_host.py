"""Waiting for the first of several things on the host's real clock."""

import time

from trtopt.device.api import Event, Stream
from trtopt.device.ort.host import HostDevice


class Asked:
    """An event that is reached when it has been asked for so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def reached(self) -> bool:
        self.left -= 1
        return self.left <= 0

    def record(self, stream: Stream) -> None: ...

    def wait(self) -> None: ...

    def elapsed_ms(self, since: Event) -> float:
        return 0.0

    def close(self) -> None: ...


def test_polling_ends_with_the_first_event_long_before_the_time() -> None:
    first, second = Asked(1000), Asked(3)
    HostDevice().wait_any([first, second], time.perf_counter() + 3600)
    assert (first.left, second.left) == (997, 0)


def test_polling_ends_at_the_time_and_not_before() -> None:
    for events in ([], [Asked(10**9)]):
        until_s = time.perf_counter() + 0.003
        HostDevice().wait_any(events, until_s)
        assert time.perf_counter() >= until_s


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    event = Asked(2)
    HostDevice().wait_any([event], time.perf_counter() - 1)
    assert event.left == 2


def test_on_the_host_everything_has_been_reached_at_once() -> None:
    device = HostDevice()
    event = device.event()
    event.record(device.stream())
    assert event.reached()
    device.wait_any([event], time.perf_counter() + 3600)


def test_buffers_begin_at_a_cache_line_and_are_of_their_size() -> None:
    buffers = [HostDevice().device_buffer(nbytes) for nbytes in (1, 63, 64, 1000, 100_000, 1_000_003)]
    assert all(one.address == one.array.ctypes.data and one.address % 64 == 0 for one in buffers)
    assert [one.array.nbytes for one in buffers] == [one.nbytes for one in buffers]
