"""Records of measurements: from a contract to the report of a benchmark."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, get_args

from trtopt.records.base import Record, Result, ResultFile, Shape
from trtopt.records.machine import ClockReading, ClockReference, Environment

# ── terms ───────────────────────────────────────────────────────────────────────────────────────────────


class Contract(Record, frozen=True, kw_only=True):
    """The terms of a measurement, without which a figure is meaningless.

    `transfers`: whether host-to-device and device-to-host copies are part of a query; `pinned`: whether
    their host memory is page-locked or pageable; `queue_ahead` is how many queries are enqueued before the
    host waits for the oldest; `sync` is how the host waits. One host thread serves all streams.
    """

    name: str
    graph: bool
    transfers: bool
    pinned: bool = True
    queue_ahead: int
    sync: Literal["blocking", "spin"]
    streams: int = 1


class EngineRef(Record, frozen=True, kw_only=True):
    """Which engine was measured, by hash; `path` only helps people find it."""

    path: str
    sha256: str
    label: str


class Trust(str, Enum):
    """What figures are worth, the worst first; a table marks those that are doubtful."""

    NONE = "not trustworthy"
    UNSTEADY = "unsteady"
    FULL = "trustworthy"

    @property
    def mark(self) -> str:
        """What stands after a row's name."""
        return {Trust.NONE: "!", Trust.UNSTEADY: "~", Trust.FULL: ""}[self]


class Spread(Record, frozen=True, kw_only=True):
    """The distribution of times; all None where there are none yet."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None


# ── latency and throughput ──────────────────────────────────────────────────────────────────────────────


class Samples(Record, frozen=True, kw_only=True):
    """Raw samples, one entry per query, in the order of enqueueing.

    `start_ms` and `end_ms` are host times since the pass began; `inference_stream` is the one that ran
    the query. The device's columns are empty where its times were not requested; those of copies also under a
    contract without transfers. `group` is the group of samples that a query belongs to (a warm-up: that it
    precedes); empty, there was one group.
    """

    start_ms: list[float]
    end_ms: list[float]
    enqueue_ms: list[float]
    gpu_compute_ms: list[float]
    h2d_ms: list[float]
    d2h_ms: list[float]
    inference_stream: list[int]
    group: list[int] = []  # noqa: RUF012  (msgspec copies mutable defaults)

    @property
    def latency_ms(self) -> list[float]:
        """From enqueueing the input to having the output, queueing included."""
        return [end - start for start, end in zip(self.start_ms, self.end_ms, strict=True)]

    @property
    def wall_ms(self) -> float:
        """From the first query's start to the last one's end, the pauses between groups left out."""
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        groups = self.group or [0] * len(self.start_ms)
        for group, start, end in zip(groups, self.start_ms, self.end_ms, strict=True):
            first[group] = min(start, first.get(group, start))
            last[group] = max(end, last.get(group, end))
        return sum(last[group] - first[group] for group in first)


STAGES = {
    "compute ms": "gpu_compute_ms",
    "H2D ms": "h2d_ms",
    "D2H ms": "d2h_ms",
    "enqueue ms": "enqueue_ms",
}
"""The columns of `Samples` that time a query's stages, by their names in tables."""


class Measurement(Record, frozen=True, kw_only=True):
    """One pass in one mode under one contract. Summaries are derived from the samples, never stored.

    Samples are taken in groups with a clock reading before and after each: group i lies between `clocks[i]`
    and `clocks[i + 1]`. `groups[i]` has the reasons why group i was discarded; without reasons it counts.
    `staged` are additional queries, after each group that counts, whose stages the device timed, which slows
    a query down; `bare` are a few after each group of a latency pass, by a minimal loop around the library's
    own call. The `discarded` queries are in `discarded_samples`, never in `samples`. `untrustworthy` lists
    why the figures are not trustworthy; empty: they are. `failure` is the device's, if it ended the pass in
    the middle.
    """

    mode: Literal["latency", "throughput"]
    contract: Contract
    engine: EngineRef
    batch: int
    shapes: dict[str, Shape]
    samples: Samples
    staged: Samples
    bare: Samples | None = None
    warmups: Samples
    clocks: tuple[ClockReading, ...] = ()
    clock_reference: ClockReference = ClockReference()
    groups: tuple[tuple[str, ...], ...] = ()
    discarded: int = 0
    discarded_samples: Samples | None = None
    untrustworthy: tuple[str, ...] = ()
    stop_reason: str
    warmup_reason: str = ""
    failure: str | None = None
    notes: tuple[str, ...] = ()


# ── load ────────────────────────────────────────────────────────────────────────────────────────────────


class LoadPass(Record, frozen=True, kw_only=True):
    """Requests that arrive independently of the target's load (open loop); one request is one query.

    `samples` are the requests that were served, in the order of arrival; `start_ms` is when one was
    enqueued. `arrival_ms` is when it was planned to arrive, since the pass began. `lag_ms` is how late the
    host enqueued it although a slot was free and the host had nothing else to do. Arrivals were
    let in for `window_s`; of those that `arrived`, some may not have been served. `most_waiting` is how many
    were waiting for a slot at one time. `clocks` were read before the first arrival and after the last
    answer, empty where unknown; `untrustworthy` lists what they show against the figures. `failure` is
    what ended the pass early.
    """

    arrivals: Literal["constant", "poisson"]
    rate: float
    seed: int
    contract: Contract
    window_s: float
    arrived: int
    most_waiting: int
    samples: Samples
    arrival_ms: list[float]
    lag_ms: list[float]
    clocks: tuple[ClockReading, ...] = ()
    clock_reference: ClockReference = ClockReference()
    untrustworthy: tuple[str, ...] = ()
    warmup_reason: str
    stop_reason: str
    failure: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def latency_ms(self) -> list[float]:
        """From the planned arrival to having the output: waiting, lag and service."""
        return [end - arrival for arrival, end in zip(self.arrival_ms, self.samples.end_ms, strict=True)]

    @property
    def waiting_ms(self) -> list[float]:
        """From the planned arrival to enqueueing."""
        return [
            start - arrival for arrival, start in zip(self.arrival_ms, self.samples.start_ms, strict=True)
        ]

    @property
    def service_ms(self) -> list[float]:
        """From enqueueing to having the output, behind what the contract queues ahead."""
        return self.samples.latency_ms


class RateProbe(Record, frozen=True, kw_only=True):
    """The result of one rate: the goal's percentile with its 95 % interval, None for too few requests.

    A bound of the interval is None where the requests are too few. A probe that has certainly missed its
    goal ends early.
    """

    rate: float
    requests: int
    latency_ms: float | None
    low_ms: float | None
    high_ms: float | None
    achieved_rate: float
    kept: bool
    untrustworthy: tuple[str, ...] = ()


class LoadSearch(Record, frozen=True, kw_only=True):
    """The search for the highest rate that meets a latency.

    `rate` is the result, None if no rate meets it; `again` is that rate once more, with other arrivals.
    `last` is the run behind it, or the one in which the device failed.
    """

    goal: str
    arrivals: Literal["constant", "poisson"]
    seed: int
    contract: Contract
    probes: tuple[RateProbe, ...]
    rate: float | None
    again: RateProbe | None
    last: LoadPass | None
    reason: str
    failure: str | None = None


# ── layers and memory ───────────────────────────────────────────────────────────────────────────────────


class LayerTime(Record, frozen=True, kw_only=True):
    """One layer's time in each run of the profiling pass."""

    name: str
    ms: list[float]


class LayerPass(Record, frozen=True, kw_only=True):
    """A pass with the profiler attached; its total is no latency.

    `graph`: whether the layers were timed in replays of a CUDA graph, or in plain runs.
    """

    runs: int
    layers: tuple[LayerTime, ...]
    graph: bool = False
    notes: tuple[str, ...] = ()
    inspector: str | None = None
    """The engine's description of its layers at these shapes, in its backend's own JSON; None where it gives
    none, or one beyond 64 MiB."""


AllocationKind = Literal["allocate", "reallocate", "deallocate"]

MORE_CONTEXTS = "more contexts"
"""The phase of a memory pass that creates further contexts only to measure their memory."""


class AllocationEvent(Record, frozen=True, kw_only=True):
    """One call of the tracking allocator; `at_ms` counts from the pass's start.

    `address` is 0 for an allocation that failed. A reallocation is recorded with its requested size.
    """

    at_ms: float
    kind: AllocationKind
    size_bytes: int
    address: int
    phase: str
    stream: int | None = None


class MemoryPass(Record, frozen=True, kw_only=True):
    """A pass with the tracking allocator attached: load, context, buffers, runs, more contexts, unload.

    `failure` is what ended it early; the events up to there are kept.
    """

    events: tuple[AllocationEvent, ...]
    buffers_bytes: int
    """Inputs and outputs, which trtopt allocates itself."""
    engine_device_bytes: int | None
    """The activation memory that TensorRT reports for the engine."""
    driver_used_bytes: int | None
    """Growth of the device's used memory from before the load to the last run, as the driver reports it."""
    context_bytes: tuple[int, ...] = ()
    """By how much live allocations grew with each further execution context, before it ran."""
    engine_file_bytes: int | None = None
    host_bytes: int | None = None
    """Growth of this process's resident memory over the same time as `driver_used_bytes`."""
    failure: str | None = None

    @property
    def live_bytes(self) -> list[int]:
        """Bytes allocated by TensorRT after each event; a failed allocation counts as nothing."""
        sizes: dict[int, int] = {}
        now, curve = 0, []
        for event in self.events:
            if event.kind == "allocate" and event.address:
                sizes[event.address] = event.size_bytes
                now += event.size_bytes
            elif event.kind == "deallocate":
                now -= sizes.pop(event.address, 0)
            curve.append(now)
        return curve

    @property
    def peak_bytes(self) -> int:
        """The most that was live while one context was in use."""
        live = zip(self.events, self.live_bytes, strict=True)
        return max((now for event, now in live if event.phase != MORE_CONTEXTS), default=0)


# ── kernels ─────────────────────────────────────────────────────────────────────────────────────────────

ActivityKind = Literal["kernel", "copy", "memset"]

Dim = tuple[int, int, int]


class Launch(Record, frozen=True, kw_only=True):
    """What a kernel, copy or memset was launched with; `nbytes` is what a copy or memset moves."""

    kind: ActivityKind
    name: str
    stream: int = 0
    grid: Dim = (1, 1, 1)
    block: Dim = (1, 1, 1)
    registers: int = 0
    shared_bytes: int = 0
    nbytes: int = 0

    @property
    def launch(self) -> dict[str, Any]:
        """These fields, for another record of the same launch."""
        return {name: getattr(self, name) for name in Launch.__struct_fields__}


class KernelActivity(Launch, frozen=True, kw_only=True):
    """One launch as the device's tracer reports it; times in nanoseconds on its clock.

    `graph_node` is 0 for what no CUDA graph launched.
    """

    start_ns: int
    end_ns: int
    correlation_id: int = 0
    graph_node: int = 0


class LaunchCall(Record, frozen=True, kw_only=True):
    """A call of the driver on a host thread; what it launched has its correlation id."""

    correlation_id: int
    start_ns: int
    end_ns: int
    thread: int


class NvtxRange(Record, frozen=True, kw_only=True):
    """An NVTX range that a host thread opened and closed; `thread` is None where the tracer does not tell."""

    name: str
    domain: str
    start_ns: int
    end_ns: int
    thread: int | None


class TracedRun(Record, frozen=True, kw_only=True):
    """What a tracer saw of one inference; calls and ranges only where they were requested."""

    activities: tuple[KernelActivity, ...] = ()
    calls: tuple[LaunchCall, ...] = ()
    ranges: tuple[NvtxRange, ...] = ()


class KernelLaunch(Launch, frozen=True, kw_only=True):
    """One launch of an inference over all recorded runs; `start_ms` counts from the run's first launch."""

    start_ms: list[float]
    ms: list[float]


class KernelPass(Record, frozen=True, kw_only=True):
    """A pass under the device's tracer. `graph`: whether the runs were replays of a CUDA graph.

    `dropped` records did not fit the tracer's buffers. `different_runs` had another sequence of launches than
    most, and count for nothing. `marked_runs` are plain, and in them the backend opened a range for each
    layer.
    """

    runs: int
    launches: tuple[KernelLaunch, ...]
    graph: bool = False
    dropped: int = 0
    different_runs: int = 0
    marked_runs: tuple[TracedRun, ...] = ()
    notes: tuple[str, ...] = ()


# ── starts and pauses ───────────────────────────────────────────────────────────────────────────────────

StartPhase = Literal[
    "process start", "library load", "read", "deserialise", "context",
    "first inference", "second inference", "graph capture",
]  # fmt: skip
"""In the order in which they happen. `context` has the buffers as well; an engine that cannot be captured, or
a contract without a CUDA graph, has no `graph capture`."""

START_PHASES: tuple[StartPhase, ...] = get_args(StartPhase)


class ColdStart(Record, frozen=True, kw_only=True):
    """One start in a fresh process: milliseconds by phase.

    `page_cache` is that of the engine's file; Python and the libraries were always in it. The check of the
    file's hash and the making of the input belong to no phase.
    """

    page_cache: Literal["warm", "cold"]
    ms: dict[StartPhase, float]
    graph_refused: str | None = None

    @property
    def first_result_ms(self) -> float:
        """From the start of the process to the first output."""
        after = ("second inference", "graph capture")
        return sum(ms for phase, ms in self.ms.items() if phase not in after)


class ColdStarts(Record, frozen=True, kw_only=True):
    """All starts of one engine. `module_loading` is CUDA_MODULE_LOADING, empty without a GPU.

    `notes` say what was not measured, and why.
    """

    engine_bytes: int
    starts: tuple[ColdStart, ...]
    module_loading: str = ""
    notes: tuple[str, ...] = ()


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────


class BenchPoint(Record, frozen=True, kw_only=True):
    """All passes over one engine at one batch size.

    `single_stream` is the throughput of one stream, measured in addition to that of several. `failure` says
    why passes are missing.
    """

    batch: int
    latency: Measurement
    throughput: Measurement | None = None
    single_stream: Measurement | None = None
    load: LoadPass | None = None
    load_search: LoadSearch | None = None
    layers: LayerPass | None = None
    memory: MemoryPass | None = None
    kernels: KernelPass | None = None
    cold_start: ColdStarts | None = None
    failure: str | None = None


class BenchReport(Result, ResultFile, frozen=True, kw_only=True):
    """The result file of `trtopt bench`."""

    schema: str = "trtopt.bench/6"
    environment: Environment
    model_sha256: str
    """Of the graph that the engines were built from. Empty for an engine without a manifest."""
    source_sha256: str = ""
    """Of the user's file. Empty where unknown."""
    points: tuple[BenchPoint, ...]
    notes: tuple[str, ...] = ()
