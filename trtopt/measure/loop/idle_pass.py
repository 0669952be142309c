"""The idle pass: latency of a query that follows a pause, in which devices lower their clocks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtopt.device.api import ClockSensor, Device, Session
from trtopt.errors import UsageError
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery
from trtopt.measure.loop.run_pass import Subject
from trtopt.records import Contract, IdleGap, IdlePass

_RUNS = 30
_MIN_RUNS = 5
_MOST_S = 10.0
"""Of one gap: long ones are repeated less often."""
_MAX_GAP_MS = 60_000.0
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_GAP = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>us|ms|s)?")


def parse_gaps(text: str) -> tuple[float, ...]:
    """Milliseconds of `1,10,100ms` or `500us,1ms,1s`; a number without a unit has the next one's."""
    gaps: list[float] = []
    unit: str | None = None
    for item in reversed(text.replace(" ", "").split(",")):
        match = _GAP.fullmatch(item)
        unit = (match["unit"] or unit) if match else None
        if match is None or unit is None:
            raise UsageError(f"--idle {text!r}: not a list of times", "write, say, --idle 1,10,100ms")
        gaps.append(float(match["number"]) * _UNITS[unit])
    if not all(0 < gap <= _MAX_GAP_MS for gap in gaps):
        raise UsageError(f"--idle {text!r}: out of range", "give times above 0, at most 60s")
    return tuple(reversed(gaps))


def measure_idle(
    device: Device, session: Session, subject: Subject, contract: Contract, gaps_ms: Sequence[float]
) -> IdlePass:
    """Latency of single queries, first one after the other and then after each of the gaps.

    Reading the clocks is part of a gap, and makes one that is shorter than it longer.
    """
    stream = InferenceStream(device, session, subject.shapes, subject.data, contract)
    try:
        query, sensor = stream.slots[0], device.clock_sensor()
        for _ in range(_MIN_RUNS):
            _latency_ms(query)
        busy = [_latency_ms(query) for _ in range(_RUNS)]
        return IdlePass(
            busy_ms=busy, gaps=tuple(_after_gaps(device, query, sensor, gap_ms) for gap_ms in gaps_ms)
        )
    finally:
        stream.close()


def _latency_ms(query: InFlightQuery) -> float:
    done = query.run()
    return (done.end_s - done.start_s) * 1e3


def _after_gaps(device: Device, query: InFlightQuery, sensor: ClockSensor, gap_ms: float) -> IdleGap:
    made = IdleGap(gap_ms=gap_ms, idle_ms=[], latency_ms=[], sm_mhz_before=[], sm_mhz_after=[])
    runs = max(_MIN_RUNS, min(_RUNS, int(_MOST_S * 1e3 / gap_ms)))
    _latency_ms(query)
    ended_s, reading_s = device.now(), 0.0
    for _ in range(runs):
        device.wait_any((), ended_s + gap_ms / 1e3 - reading_s)
        before_s = device.now()
        made.sm_mhz_before.append(sensor.read(before_s * 1e3).sm_mhz)
        reading_s = device.now() - before_s
        made.idle_ms.append((device.now() - ended_s) * 1e3)
        made.latency_ms.append(_latency_ms(query))
        ended_s = device.now()
        made.sm_mhz_after.append(sensor.read(ended_s * 1e3).sm_mhz)
    return made
