"""Clocks are read from a real GPU. Nothing here changes any."""

from __future__ import annotations

from trtopt.device.api import Device
from trtopt.device.nvml import REASONS


def test_a_gpu_tells_its_clocks_power_and_temperature(device: Device) -> None:
    sensor = device.clock_sensor()
    reading = sensor.read(1.5)
    assert reading.at_ms == 1.5
    for figure in (reading.sm_mhz, reading.memory_mhz, reading.power_w, reading.temperature_c):
        assert figure is not None
        assert figure > 0
    assert set(reading.throttle) <= set(REASONS.values())
    reference = sensor.reference
    assert reference.problem is None
    assert reference.mhz is not None
    assert reference.mhz > 0
    assert reference.kind in ("application", "default application", "maximum")
