"""Readings of the GPU's clocks while an engine is being built."""

from __future__ import annotations

import time

from trtopt.device.api import ClockSensor, ProgressSink
from trtopt.device.throttling import IDLE, faults_of
from trtopt.records import BuildClocks, ClockReading

_INTERVAL_S = 1.0


class ClockWatch:
    """Reads a sensor at the start, at progress (at most once a second), and at the end.

    The builder reports progress between its own timings, so that no reading disturbs one.
    """

    def __init__(self, sensor: ClockSensor) -> None:
        self._sensor = sensor
        self._readings: list[ClockReading] = []
        self._began = self._last = time.monotonic()
        self._read()

    def watched(self, progress: ProgressSink) -> ProgressSink:
        """`progress`, with a reading now and then."""

        def both(phase: str, fraction: float | None) -> None:
            if time.monotonic() - self._last >= _INTERVAL_S:
                self._read()
            progress(phase, fraction)

        return both

    def finish(self) -> BuildClocks:
        """Take a last reading; returns the summary of all."""
        self._read()
        return summary(self._readings, self._sensor)

    def _read(self) -> None:
        self._last = time.monotonic()
        self._readings.append(self._sensor.read((self._last - self._began) * 1e3))


def summary(readings: list[ClockReading], sensor: ClockSensor) -> BuildClocks:
    """What readings of a build say; see `BuildClocks`."""
    known = [reading for reading in readings if reading.sm_mhz is not None]
    reference = sensor.reference.mhz
    busy = [reading.sm_mhz for reading in known if reading.sm_mhz and IDLE not in reading.throttle]
    heat = [reading.temperature_c for reading in known if reading.temperature_c is not None]
    others = [reading.other_processes for reading in known if reading.other_processes is not None]
    slowed = (fault for reading in known for fault in faults_of(reading, reference))
    return BuildClocks(
        readings=len(known),
        reference_mhz=reference,
        sm_mhz_low=min(busy, default=None),
        sm_mhz_high=max(busy, default=None),
        temperature_c=max(heat, default=None),
        slowed=tuple(dict.fromkeys(slowed)),
        other_processes=max(others, default=None),
        problem=sensor.reference.problem,
    )
