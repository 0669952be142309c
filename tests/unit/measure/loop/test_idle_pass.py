"""Latency after a pause, in virtual time: every pause and every latency is known exactly."""

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import SUBJECT, terms
from trtopt.errors import UsageError
from trtopt.measure.loop.idle_pass import measure_idle, parse_gaps
from trtopt.records import ClockReading, IdlePass


@pytest.mark.parametrize(
    ("text", "gaps"),
    [
        ("1,10,100ms", (1.0, 10.0, 100.0)),
        ("500us, 2ms,1s", (0.5, 2.0, 1000.0)),
        ("1,2us,0.5s", (0.001, 0.002, 500.0)),
    ],
)
def test_a_number_without_a_unit_has_the_next_ones(text: str, gaps: tuple[float, ...]) -> None:
    assert parse_gaps(text) == pytest.approx(gaps)


@pytest.mark.parametrize("text", ["", "1,10", "1ms,", "ms", "-1ms", "1min", "0ms", "61s", "1ms,2"])
def test_what_is_no_list_of_times_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--idle"):
        parse_gaps(text)


def idle_pass(script: Script, *gaps_ms: float) -> tuple[IdlePass, ScriptedDevice]:
    device = ScriptedDevice(script)
    session = ScriptedTarget(device).load(b"engine")
    found = measure_idle(device, session, SUBJECT, terms("isolated"), gaps_ms)
    session.close()
    assert device.open == 0
    return found, device


def test_reading_the_clock_is_part_of_a_pause_and_lengthens_only_what_is_shorter() -> None:
    clocks = [ClockReading(at_ms=0.0, sm_mhz=mhz) for mhz in (345, 1980)]
    script = Script(compute_ms=[2.0], enqueue_ms=[0.0], clocks=clocks, reading_ms=1.0, timing_ms=0.0)
    found, _ = idle_pass(script, 1.0, 50.0)
    short, long = found.gaps
    assert found.busy_ms == pytest.approx([2.0] * len(found.busy_ms))
    assert (short.gap_ms, long.gap_ms) == (1.0, 50.0)
    assert short.idle_ms[1:] == pytest.approx([2.0] * (len(short.idle_ms) - 1))
    assert long.idle_ms[1:] == pytest.approx([50.0] * (len(long.idle_ms) - 1))
    assert long.latency_ms == pytest.approx([2.0] * len(long.latency_ms))
    assert (short.sm_mhz_before[0], short.sm_mhz_after[0]) == (345, 1980)


def test_long_pauses_are_repeated_less_often_but_five_times_at_least() -> None:
    found, _ = idle_pass(Script(), 1.0, 1000.0, 60_000.0)
    assert [len(gap.latency_ms) for gap in found.gaps] == [30, 10, 5]
    assert found.gaps[0].sm_mhz_before == [None] * 30
