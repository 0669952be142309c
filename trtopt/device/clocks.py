"""Clocks that nobody can read, and clocks that are locked for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtopt.device.api import ClockControl
from trtopt.errors import DeviceError, UsageError
from trtopt.records import ClockReading, ClockReference


class UnknownClocks:
    """A `device.api.ClockSensor` of a device whose clocks nobody tells; `problem` says why."""

    def __init__(self, problem: str) -> None:
        self._reference = ClockReference(problem=problem)

    @property
    def reference(self) -> ClockReference:
        """Nothing to judge by, and why."""
        return self._reference

    def read(self, at_ms: float) -> ClockReading:
        """A reading that tells nothing."""
        return ClockReading(at_ms=at_ms)


@contextmanager
def locked_clocks(control: ClockControl, mhz: int | None) -> Iterator[int]:
    """Hold the clocks at `mhz` (None: where the device would judge them) and give them back, come what may.

    A signal that arrives while the device is being asked finds the clocks given back too: only a refusal
    proves that nothing was changed.

    Yields:
        The clock in MHz.

    Raises:
        DeviceError, UsageError: the lock was refused; says why. Also if the clocks cannot be given back.
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
