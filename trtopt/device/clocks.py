"""Clocks that cannot be read, and the one place that knows throttling."""

from __future__ import annotations

from trtopt.records import ClockReading, ClockReference


class UnknownClocks:
    """A `device.api.ClockSensor` of a device whose clocks are unknown; `problem` is the reason."""

    def __init__(self, problem: str) -> None:
        self.reference = ClockReference(problem=problem)

    def read(self, at_ms: float) -> ClockReading:
        """An empty reading."""
        return ClockReading(at_ms=at_ms)


SLOWDOWNS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
"""Reasons that NVML calls slowdowns, its constants' names without nvmlClocksEventReason, in snake case.

`sw_power_cap` is none of them: large GPUs run at their power limit for hours, and that is their speed. If it
costs more than a quarter of the clock, the clock says so.
"""

IDLE = "gpu_idle"
MIN_CLOCK_SHARE = 0.75


def faults_of(reading: ClockReading, reference_mhz: int | None) -> tuple[str, ...]:
    """What slowed the GPU at a reading; of an idle GPU nothing, whose clock under load is unknown."""
    faults = [reason.replace("_", " ") for reason in reading.throttle if reason in SLOWDOWNS]
    if reading.sm_mhz is None or reference_mhz is None or IDLE in reading.throttle:
        return tuple(faults)
    if reading.sm_mhz < MIN_CLOCK_SHARE * reference_mhz:
        faults.append(f"SM clock under {MIN_CLOCK_SHARE:.0%} of {reference_mhz} MHz")
    return tuple(faults)
