"""A point's findings besides its figures: interference, clocks, and hints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trtopt.device.clocks import IDLE
from trtopt.measure.analysis.hints import Figures, Hint, HintCode, hints, processes_text
from trtopt.measure.analysis.interference import POWER_CAP, drift, outliers, recorded, two_modes
from trtopt.measure.statistics.summaries import percentile, summarise, throughput
from trtopt.records import (
    BenchPoint,
    BenchReport,
    ClockReading,
    LoadPass,
    Measurement,
    RateProbe,
    Trust,
)

LONG_TAIL = 2.0
"""A p99 so many times the median is of disturbed queries."""

NOTABLE_SHARE = 0.01
"""More outliers than a hundredth of the queries reach into the 99th percentile."""

NOTABLE_DISTANCE = 0.1
"""The spread of a steady run is so small that an outlier may lie half a percent from the median."""


def measurements_of(point: BenchPoint) -> tuple[Measurement, ...]:
    """The point's passes that took samples."""
    return tuple(m for m in (point.latency, point.throughput, point.single_stream) if m is not None)


def loads_of(point: BenchPoint) -> tuple[LoadPass, ...]:
    """The requested load, and the last one of a search."""
    last = point.load_search.last if point.load_search is not None else None
    return tuple(load for load in (point.load, last) if load is not None)


@dataclass(frozen=True)
class Finding:
    """Something odd about a pass: `text` has its figures, `short` is the same for every such pass."""

    short: str
    text: str


def remarks(measurement: Measurement) -> tuple[str, ...]:
    """What of its samples was discarded, and what is odd about those that count."""
    found = [*measurement.untrustworthy]
    interference = recorded(measurement.groups)
    if interference.discarded and interference.text not in found:
        found.append(interference.text)
    return (*found, *(finding.text for finding in oddities(measurement)))


def oddities(measurement: Measurement) -> tuple[Finding, ...]:
    """What is odd about the latencies that count."""
    latency = measurement.samples.latency_ms
    found = _drift(latency)
    if measurement.mode == "latency":  # with a queue, latency is mostly waiting
        found += _modes(latency) or _outliers(latency)
    return tuple(found)


@dataclass(frozen=True)
class Doubt:
    """A reason against a point's figures, and what they are worth for it; see `Finding` for its texts."""

    trust: Trust
    short: str
    text: str
    remedy: str


_TURNS = "the next run may differ: sample for longer with --duration, or compare engines in turns"


def is_on_host(report: BenchReport) -> bool:
    """Whether the processor did the work."""
    return report.environment.device.kind == "cpu"


def doubts_of(point: BenchPoint, *, on_host: bool) -> tuple[Doubt, ...]:
    """What speaks against a point's figures, the worst first.

    That is what its passes record, then latencies by which the same engine's next run may well differ.
    """
    probes = point.load_search.probes if point.load_search is not None else ()
    passes: tuple[Measurement | LoadPass | RateProbe, ...]
    passes = (*measurements_of(point), *loads_of(point), *probes)
    texts = dict.fromkeys(text for one in passes for text in one.untrustworthy)
    grave = [Doubt(Trust.NONE, text, text, "measure again when nothing slows it down") for text in texts]
    latency = point.latency.samples.latency_ms
    shape = (*_modes(latency), *_drift(latency), *_tail(latency))
    unstable = [hint for hint in hints_of(point, on_host=on_host) if hint.code is HintCode.UNSTABLE]
    return (
        *grave,
        *(Doubt(Trust.UNSTEADY, one.short, one.text, _TURNS) for one in shape),
        *(Doubt(Trust.UNSTEADY, "latency is unstable", one.text, one.remedy) for one in unstable),
    )


def trust_of(point: BenchPoint, *, on_host: bool) -> Trust:
    """What a point's figures are worth: as the worst doubt says."""
    doubts = doubts_of(point, on_host=on_host)
    return doubts[0].trust if doubts else Trust.FULL


def _drift(latency: Sequence[float]) -> list[Finding]:
    moved = drift(latency)
    if moved is None or not moved.notable:
        return []
    text = f"latency drifted by {moved.relative:+.1%} from the first query to the last"
    return [Finding("latency drifted", text)]


def _tail(latency: Sequence[float]) -> list[Finding]:
    p99 = percentile(latency, 99.0)
    if p99 is None or p99 <= LONG_TAIL * median(latency):
        return []
    return [Finding("latency has a long tail", f"p99 is {p99 / median(latency):.3g} times the median")]


def _modes(latency: Sequence[float]) -> list[Finding]:
    modes = two_modes(latency)
    if modes is None:
        return []
    text = (
        f"latency has two modes, {modes.lower:.3f} ms and {modes.upper:.3f} ms, "
        f"with {modes.upper_share:.0%} of the queries in the upper one: no single figure describes it"
    )
    return [Finding("latency has two modes", text)]


def _outliers(latency: Sequence[float]) -> list[Finding]:
    slow = (1 + NOTABLE_DISTANCE) * median(latency) if latency else 0.0
    far = [latency[index] for index in outliers(latency) if latency[index] > slow]
    if len(far) <= NOTABLE_SHARE * len(latency):
        return []
    text = (
        f"{len(far)} of {len(latency)} latencies are outliers more than {NOTABLE_DISTANCE:.0%} above the "
        f"median, up to {max(far):.3f} ms (flagged, not dropped)"
    )
    return [Finding(f"over {NOTABLE_SHARE:.0%} of the latencies are outliers", text)]


def clocks_text(measurements: Sequence[Measurement]) -> str:
    """The clocks of several passes on one device, in one line."""
    reference = measurements[0].clock_reference
    readings = [reading for measurement in measurements for reading in measurement.clocks]
    if not any(reading.sm_mhz for reading in readings):
        return f"clocks are unknown: {reference.problem or 'the result does not say why'}"
    parts = [
        _span([reading.sm_mhz for reading in _under_load(readings)], "SM", "MHz"),
        _span([reading.power_w for reading in readings], "", "W"),
        _span([reading.temperature_c for reading in readings], "", "°C"),
    ]
    if reference.mhz is not None:
        parts.insert(1, f"against the {reference.kind} clock of {reference.mhz} MHz")
    capped = sum(POWER_CAP in reading.throttle for reading in readings)
    if capped:
        parts.append(
            f"at the power limit in {capped} of {len(readings)} readings, as large loads are on large GPUs"
        )
    if others := _other_processes(readings):
        parts.append(processes_text(others))
    parts.append(reference.problem or "")
    return "clocks: " + ", ".join(filter(None, parts))


def _other_processes(readings: Sequence[ClockReading]) -> int:
    """At most; none where the driver does not report them."""
    return max((reading.other_processes or 0 for reading in readings), default=0)


def _under_load(readings: Sequence[ClockReading]) -> list[ClockReading]:
    """Without readings of an idle GPU, whose clock is not the queries'; all of them if all are idle."""
    return [reading for reading in readings if IDLE not in reading.throttle] or list(readings)


def _span(values: Sequence[float | None], name: str, unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{name} {low if low == high else f'{low} to {high}'} {unit}".strip()


def hints_of(point: BenchPoint, *, on_host: bool) -> tuple[Hint, ...]:
    """What could be better. On the host itself enqueueing is computing, and only stability has a meaning."""
    latency = point.latency
    if not latency.samples.start_ms:
        return ()
    samples, stages = latency.samples, latency.stages
    if on_host:
        return hints(Figures(latency_cv=summarise(samples.latency_ms).cv, lockable=False), latency.contract)
    compute = summarise(stages.gpu_compute_ms) if stages.gpu_compute_ms else None
    readings = [reading for measurement in measurements_of(point) for reading in measurement.clocks]
    loaded = [r.sm_mhz for r in readings if IDLE not in r.throttle and r.sm_mhz is not None]
    figures = Figures(
        enqueue_ms=_median(stages.enqueue_ms),
        compute_ms=None if compute is None else compute.median,
        h2d_ms=_median(stages.h2d_ms),
        d2h_ms=_median(stages.d2h_ms),
        latency_cv=None if compute is None else compute.cv,
        streams_gain=_streams_gain(point),
        sm_mhz=median(loaded) if loaded else None,
        application_mhz=latency.clock_reference.mhz,
        reference=latency.clock_reference.kind or "application",
        other_processes=_other_processes(readings),
        power_capped=any(POWER_CAP in reading.throttle for reading in readings),
    )
    return hints(figures, (point.throughput or latency).contract)


def _median(values: Sequence[float]) -> float | None:
    return summarise(values).median if values else None


def _streams_gain(point: BenchPoint) -> float | None:
    full, one = point.throughput, point.single_stream
    if full is None or one is None or not full.samples.start_ms or not one.samples.start_ms:
        return None
    return (
        throughput(full.samples, point.batch).queries_per_s
        / throughput(one.samples, point.batch).queries_per_s
    )
