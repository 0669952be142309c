"""A point's findings besides its figures, each with its remedy: doubts, clocks, and hints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trtopt.device.clocks import IDLE
from trtopt.measure.analysis.interference import POWER_CAP, Interference, drift, two_modes
from trtopt.measure.statistics.summaries import figures_of, percentile, summarise, throughput
from trtopt.records import (
    BenchPoint,
    ClockReading,
    ClockReference,
    Contract,
    DeviceInfo,
    LoadPass,
    Measurement,
    RateProbe,
    Trust,
)

LONG_TAIL = 2.0
"""A p99 so many times the median is of disturbed queries."""

ENQUEUE_SHARE = 0.8
"""trtexec's limit: beyond it the GPU may have to wait for the host."""

MAX_CV = 0.025
"""trtexec's limit for a run's coefficient of variation."""

MIN_STREAMS_GAIN = 1.05
MIN_CLOCK_SHARE = 0.95
"""Boost clocks move by a few percent with temperature; less than this share is another state."""

ENQUEUE_BOUND = "enqueue-bound"
COPY_BOUND = "copy-bound"
UNSTABLE = "unstable"
STREAMS_GAIN_NOTHING = "streams gain nothing"
CLOCKS_BELOW = "clocks not at application level"


def measurements_of(point: BenchPoint) -> tuple[Measurement, ...]:
    """The point's passes that took samples."""
    return tuple(m for m in (point.latency, point.throughput, point.single_stream) if m is not None)


def loads_of(point: BenchPoint) -> tuple[LoadPass, ...]:
    """The requested load, and the last one of a search."""
    last = point.load_search.last if point.load_search is not None else None
    return tuple(load for load in (point.load, last) if load is not None)


@dataclass(frozen=True)
class Finding:
    """What is odd or could be better: `text` has the figures, `short` is the same for every such point.

    `remedy` is what to do, with the flag for it; `trust` what a point's figures are worth for it.
    """

    short: str
    text: str
    remedy: str = ""
    trust: Trust = Trust.FULL


def remarks(measurement: Measurement) -> Iterator[Finding]:
    """What of its samples was discarded, with no `short`; then what is odd about those that count."""
    interference = Interference(measurement.groups, clocks_known=bool(measurement.groups))
    discarded = (interference.text,) if interference.discarded else ()
    for text in dict.fromkeys((*measurement.untrustworthy, *discarded)):
        yield Finding("", text)
    latency = measurement.samples.latency_ms
    yield from _drift(latency)
    if measurement.mode == "latency":  # with a queue, latency is mostly waiting
        yield from _modes(latency)


_TURNS = "the next run may differ: sample for longer with --duration, or compare engines in turns"


def doubts_of(point: BenchPoint, device: DeviceInfo) -> tuple[Finding, ...]:
    """What speaks against a point's figures, taken on a device; the worst first.

    That is what its passes record, then latencies by which the same engine's next run may well differ.
    """
    probes = point.load_search.probes if point.load_search is not None else ()
    passes: tuple[Measurement | LoadPass | RateProbe, ...]
    passes = (*measurements_of(point), *loads_of(point), *probes)
    texts = dict.fromkeys(text for one in passes for text in one.untrustworthy)
    again = "measure again when nothing slows it down"
    latency = point.latency.samples.latency_ms
    shape = (*_modes(latency), *_drift(latency), *_tail(latency))
    hints = hints_of(point, device)
    return (
        *(Finding(text, text, again, Trust.NONE) for text in texts),
        *(replace(one, remedy=_TURNS, trust=Trust.UNSTEADY) for one in shape),
        *(
            replace(hint, short="latency is unstable", trust=Trust.UNSTEADY)
            for hint in hints
            if hint.short == UNSTABLE
        ),
    )


def trust_of(point: BenchPoint, device: DeviceInfo) -> Trust:
    """What a point's figures are worth: as the worst doubt says."""
    doubts = doubts_of(point, device)
    return doubts[0].trust if doubts else Trust.FULL


def is_unsteady(point: BenchPoint, device: DeviceInfo) -> bool:
    """Whether the same engine's next run may well differ, whatever else speaks against its figures."""
    return any(doubt.trust is Trust.UNSTEADY for doubt in doubts_of(point, device))


def _drift(latency: Sequence[float]) -> Iterator[Finding]:
    moved = drift(latency)
    if moved is not None and moved.notable:
        text = f"latency drifted by {moved.relative:+.1%} from the first query to the last"
        yield Finding("latency drifted", text)


def _tail(latency: Sequence[float]) -> Iterator[Finding]:
    p99 = percentile(latency, 99.0)
    if p99 is not None and p99 > LONG_TAIL * median(latency):
        yield Finding("latency has a long tail", f"p99 is {p99 / median(latency):.3g} times the median")


def _modes(latency: Sequence[float]) -> Iterator[Finding]:
    modes = two_modes(latency)
    if modes is not None:
        text = (
            f"latency has two modes, {modes.lower:.3f} ms and {modes.upper:.3f} ms, "
            f"with {modes.upper_share:.0%} of the queries in the upper one: no single figure describes it"
        )
        yield Finding("latency has two modes", text)


# ── clocks ────────────────────────────────────────────────────────────────────────────────────────────


def clocks_text(measurements: Sequence[Measurement]) -> str:
    """The clocks of several passes on one device, in one line."""
    reference = measurements[0].clock_reference
    readings = [reading for measurement in measurements for reading in measurement.clocks]
    if not any(reading.sm_mhz for reading in readings):
        return f"clocks are unknown: {reference.problem or 'the result does not say why'}"
    parts = [
        _span([reading.sm_mhz for reading in under_load(readings)], "SM", "MHz"),
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
        parts.append(_processes_text(others))
    parts.append(reference.problem or "")
    return "clocks: " + ", ".join(filter(None, parts))


def _other_processes(readings: Sequence[ClockReading]) -> int:
    """At most; none where the driver does not report them."""
    return max((reading.other_processes or 0 for reading in readings), default=0)


def under_load(readings: Sequence[ClockReading]) -> list[ClockReading]:
    """Without readings of an idle GPU, whose clock is not the queries'; all of them if all are idle."""
    return [reading for reading in readings if IDLE not in reading.throttle] or list(readings)


def sm_clock(readings: Sequence[ClockReading]) -> float | None:
    """Its median under load, in MHz; None where unknown."""
    known = [reading.sm_mhz for reading in under_load(readings) if reading.sm_mhz is not None]
    return median(known) if known else None


def _span(values: Sequence[float | None], name: str, unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{name} {low if low == high else f'{low} to {high}'} {unit}".strip()


def _processes_text(count: int) -> str:
    return f"{count} other process{'es' if count > 1 else ''} on the GPU"


# ── hints ─────────────────────────────────────────────────────────────────────────────────────────────


def hints_of(point: BenchPoint, device: DeviceInfo) -> tuple[Finding, ...]:
    """What could be better. On the host itself enqueueing is computing, and only stability has a meaning."""
    latency = point.latency
    if not latency.samples.start_ms:
        return ()
    if device.kind == "cpu":
        return tuple(_unstable(latency.samples.latency_ms, 0, "stop other work on this machine"))
    figures, contract = figures_of(point), (point.throughput or latency).contract
    readings = [reading for measurement in measurements_of(point) for reading in measurement.clocks]
    return (
        *_enqueue_bound(figures, contract, latency.notes),
        *_copy_bound(figures, contract),
        *_unstable(
            latency.staged.gpu_compute_ms, _other_processes(readings), "lock the clocks with --lock-clocks"
        ),
        *_streams(point, contract),
        *_clocks(readings, latency.clock_reference),
    )


def _enqueue_bound(
    figures: dict[str, float | None], contract: Contract, notes: Iterable[str]
) -> Iterator[Finding]:
    enqueue, compute = figures["enqueue ms"], figures["compute ms"]
    if enqueue is None or compute is None or enqueue <= ENQUEUE_SHARE * compute:
        return
    if contract.graph:
        remedy = "a CUDA graph is in use already: try a larger --batch"
    elif any("without a CUDA graph" in note for note in notes):  # which was refused
        remedy = "no CUDA graph can be captured: try a larger --batch"
    else:
        remedy = "launch the engine as a CUDA graph with --graph"
    text = f"{ENQUEUE_BOUND}: enqueueing takes {enqueue:.3f} ms, computing {compute:.3f} ms"
    yield Finding(ENQUEUE_BOUND, text, remedy)


def _copy_bound(figures: dict[str, float | None], contract: Contract) -> Iterator[Finding]:
    compute, into, out = figures["compute ms"], figures["H2D ms"] or 0.0, figures["D2H ms"] or 0.0
    if compute is None or into + out <= compute:
        return
    yield Finding(
        COPY_BOUND,
        f"{COPY_BOUND}: copies take {into:.3f} ms in and {out:.3f} ms out, computing {compute:.3f} ms",
        "overlap copies with computing: --contract serving"
        if contract.queue_ahead == 0
        else "move less: smaller types, or more of the work on the GPU; "
        "--contract trtexec-11 leaves copies out",
    )


def _unstable(times_ms: Sequence[float], other_processes: int, steadier: str) -> Iterator[Finding]:
    cv = summarise(times_ms).cv if times_ms else 0.0
    if cv <= MAX_CV:
        return
    text = f"{UNSTABLE}: the coefficient of variation is {cv:.1%}, over {MAX_CV:.1%}"
    if other_processes:
        text += f", with {_processes_text(other_processes)}"
        yield Finding(UNSTABLE, text, "measure when the GPU is free, or on another one")
    else:
        yield Finding(UNSTABLE, text, f"{steadier}, or sample for longer with --duration")


def _streams(point: BenchPoint, contract: Contract) -> Iterator[Finding]:
    full, one = point.throughput, point.single_stream
    if contract.streams < 2 or full is None or one is None:
        return
    if not full.samples.start_ms or not one.samples.start_ms:
        return
    rates = [throughput(taken.samples, point.batch).queries_per_s for taken in (full, one)]
    gain = rates[0] / rates[1]
    if gain < MIN_STREAMS_GAIN:
        text = f"{contract.streams} streams give {gain:.2f} times one's throughput"
        remedy = "one stream fills the GPU: use --streams 1"
        yield Finding(STREAMS_GAIN_NOTHING, f"{STREAMS_GAIN_NOTHING}: {text}", remedy)


def _clocks(readings: Sequence[ClockReading], reference: ClockReference) -> Iterator[Finding]:
    loaded = [one.sm_mhz for one in readings if IDLE not in one.throttle and one.sm_mhz is not None]
    if not loaded or not reference.mhz or median(loaded) >= MIN_CLOCK_SHARE * reference.mhz:
        return
    kind = reference.kind or "application"
    yield Finding(
        CLOCKS_BELOW,
        f"{CLOCKS_BELOW}: SM at {median(loaded):.0f} MHz, {kind} clock {reference.mhz:.0f} MHz",
        "the power limit sets the clock under this load: that is the card's speed; for runs that agree "
        "better lock a clock that it can hold with --lock-clocks MHZ"
        if any(POWER_CAP in reading.throttle for reading in readings)
        else "warm up for longer with --warmup, or lock the clocks with --lock-clocks",
    )
