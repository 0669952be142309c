"""What a pass drew on average, from the readings around its groups of samples. Pure.

The counter of energy (nvmlDeviceGetTotalEnergyConsumption) is the better witness: it has missed nothing
between two readings, though it is renewed only some ten times a second. Readings of the power are means
over the time before each (a second, on many GPUs: nvmlDeviceGetPowerUsage), and lag behind a load.
"""

from __future__ import annotations

from trtopt.records import ClockReading, Measurement, PointPower


def mean_power(measurement: Measurement) -> PointPower | None:
    """Energy over time, from before to after each group that counts; None if unknown.

    Pauses for readings, a hundredth of the time, are part of it, and so are the queries whose stages were
    timed.
    """
    clocks = measurement.clocks
    spans = [
        (clocks[index], clocks[index + 1])
        for index, reasons in enumerate(measurement.groups)
        if not reasons and index + 1 < len(clocks)
    ]
    seconds = sum(after.at_ms - before.at_ms for before, after in spans) / 1e3
    if seconds <= 0:
        return None
    counted = [_counted_j(*span) for span in spans]
    if None not in counted:
        return PointPower(watts=sum(filter(None, counted)) / seconds, source="energy counter")
    integrated = [_integrated_j(*span) for span in spans]
    if None not in integrated:
        return PointPower(watts=sum(filter(None, integrated)) / seconds, source="power readings")
    return None


def _counted_j(before: ClockReading, after: ClockReading) -> float | None:
    if before.energy_j is None or after.energy_j is None:
        return None
    return after.energy_j - before.energy_j


def _integrated_j(before: ClockReading, after: ClockReading) -> float | None:
    """By the trapezoidal rule."""
    if before.power_w is None or after.power_w is None:
        return None
    return (before.power_w + after.power_w) / 2 * (after.at_ms - before.at_ms) / 1e3
