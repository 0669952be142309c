"""The clocks of a scripted device: see `device.fake`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tests.support.scripted_device.script import then_last
from trtopt.records import ClockReading, ClockReference

if TYPE_CHECKING:
    from tests.support.scripted_device.device import ScriptedDevice


class ScriptedSensor:
    """See `device.api.ClockSensor`."""

    def __init__(self, device: ScriptedDevice, readings: tuple[ClockReading, ...]) -> None:
        self._device = device
        self._readings = then_last(readings, readings[-1])

    @property
    def reference(self) -> ClockReference:
        """The scripted application clock."""
        return ClockReference(mhz=self._device.script.application_mhz, kind="application")

    def read(self, at_ms: float) -> ClockReading:
        """The next reading; the host's clock moves on meanwhile."""
        self._device.calls.append("read clocks")
        self._device.host_s += self._device.script.reading_ms / 1e3
        return msgspec.structs.replace(next(self._readings), at_ms=at_ms)


class ScriptedControl:
    """See `device.nvml.NvmlGpu`. `locked_mhz` is None while the clocks are the device's own."""

    def __init__(self, device: ScriptedDevice) -> None:
        self._device = device
        self.locked_mhz: int | None = None

    def lock(self, mhz: int | None) -> int:
        """Lock, unless the script refuses."""
        self._device.call("lock")
        self.locked_mhz = mhz or self._device.script.application_mhz or 0
        return self.locked_mhz

    def unlock(self) -> None:
        """Unlock, unless the script refuses."""
        self._device.call("unlock")
        self.locked_mhz = None
