"""Clocks that cannot be read, and clocks that are locked for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtopt.device.api import ClockControl
from trtopt.errors import DeviceError, UsageError
from trtopt.records import ClockReading, ClockReference


class UnknownClocks:
    """A `device.api.ClockSensor` of a device whose clocks are unknown; `problem` is the reason."""

    def __init__(self, problem: str) -> None:
        self.reference = ClockReference(problem=problem)

    def read(self, at_ms: float) -> ClockReading:
        """An empty reading."""
        return ClockReading(at_ms=at_ms)


@contextmanager
def locked_clocks(control: ClockControl, mhz: int | None) -> Iterator[int]:
    """Lock the clocks at `mhz` (None: at the device's reference), and always unlock them at the end.

    They are unlocked also if a signal interrupts the locking: only a refusal proves that nothing was changed.

    Yields:
        The clock in MHz.
    """
    refused = False
    try:
        try:
            locked = control.lock(mhz)
        except (DeviceError, UsageError):
            refused = True
            raise
        yield locked
    finally:
        if not refused:
            control.unlock()
