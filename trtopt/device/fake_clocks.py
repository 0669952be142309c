"""Clocks of the scripted device that can be locked."""

from __future__ import annotations

from trtopt.device.fake import ScriptedDevice


class ScriptedControl:
    """See `device.api.ClockControl`. `locked_mhz` is None while the clocks are the device's own."""

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
