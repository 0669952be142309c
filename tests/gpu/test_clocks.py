"""Clocks are read from a real GPU. Nothing here changes any."""

from __future__ import annotations

from pathlib import Path

import trtopt
from trtopt.device.api import Device
from trtopt.device.nvml import REASONS
from trtopt.measure.analysis.sweep_points import mean_watts


def test_a_gpu_tells_its_clocks_power_and_temperature(device: Device) -> None:
    sensor = device.clock_sensor()
    reading = sensor.read(1.5)
    assert reading.at_ms == 1.5
    for figure in (reading.sm_mhz, reading.power_w, reading.temperature_c):
        assert figure is not None
        assert figure > 0
    assert set(reading.throttle) <= set(REASONS.values())
    assert reading.energy_j is not None
    assert reading.energy_j > 0
    reference = sensor.reference
    assert reference.problem is None
    assert reference.mhz is not None
    assert reference.mhz > 0
    assert reference.kind in ("application", "default application", "maximum")


def test_a_pass_reads_the_clocks_before_and_after_every_group_of_samples(built: Path, binding: str) -> None:
    point = trtopt.bench(built, batch=[8], duration=1.0).points[0]
    assert point.throughput is not None
    for measurement in (point.latency, point.throughput):
        assert len(measurement.clocks) == len(measurement.groups) + 1 >= 2
        assert all(reading.sm_mhz for reading in measurement.clocks)
        times = [reading.at_ms for reading in measurement.clocks]
        assert times == sorted(times)
        groups = {index for index, reasons in enumerate(measurement.groups) if not reasons}
        assert set(measurement.samples.group) == groups
        assert measurement.failure is None


def test_the_energy_that_a_pass_drew_makes_about_the_power_that_was_read(built: Path, binding: str) -> None:
    point = trtopt.bench(built, batch=[8], duration=3.0).points[0]
    assert point.throughput is not None
    watts = mean_watts(point.throughput)
    assert watts is not None
    read = [reading.power_w for reading in point.throughput.clocks if reading.power_w is not None]
    assert min(read) / 2 < watts < 2 * max(read)
