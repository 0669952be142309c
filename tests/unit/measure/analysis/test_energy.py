import msgspec

from tests.support import examples
from trtopt.measure.analysis.energy import mean_power
from trtopt.records import ClockReading, Measurement, PointPower


def read(at_ms: float, power_w: float | None = None, energy_j: float | None = None) -> ClockReading:
    return ClockReading(at_ms=at_ms, sm_mhz=1980, power_w=power_w, energy_j=energy_j)


def measured(clocks: list[ClockReading], groups: list[tuple[str, ...]]) -> Measurement:
    return msgspec.structs.replace(examples.measurement(), clocks=tuple(clocks), groups=tuple(groups))


def test_the_counter_tells_energy_over_time_of_the_groups_that_count() -> None:
    clocks = [
        read(0.0, 100.0, 50.0),
        read(250.0, 100.0, 100.0),
        read(500.0, 1.0, 900.0),
        read(1000.0, 1.0, 1000.0),
    ]
    power = mean_power(measured(clocks, [(), ("hw_slowdown",), ()]))
    assert power == PointPower(watts=(50.0 + 100.0) / 0.75, source="energy counter")


def test_without_a_counter_the_readings_are_integrated() -> None:
    clocks = [read(0.0, 100.0, 50.0), read(1000.0, 200.0), read(4000.0, 300.0, 99.0)]
    power = mean_power(measured(clocks, [(), ()]))
    assert power == PointPower(watts=(150.0 * 1 + 250.0 * 3) / 4, source="power readings")


def test_a_device_that_drew_nothing_that_the_counter_could_see_drew_nothing() -> None:
    clocks = [read(0.0, 100.0, 50.0), read(10.0, 100.0, 50.0)]
    assert mean_power(measured(clocks, [()])) == PointPower(watts=0.0, source="energy counter")


def test_where_it_is_unknown_there_is_no_power() -> None:
    assert mean_power(measured([read(0.0), read(10.0, 100.0)], [()])) is None
    assert mean_power(measured([], [()])) is None
    assert mean_power(measured([read(0.0, 1.0), read(10.0, 1.0)], [("hw_slowdown",)])) is None
    assert mean_power(measured([read(5.0, 1.0), read(5.0, 1.0)], [()])) is None
