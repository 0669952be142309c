"""Records of measurements: from a contract to the report of a benchmark."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Shape
from trtopt.records.building import Backend
from trtopt.records.machine import DeviceInfo

BENCH_SCHEMA = "trtopt.bench/2"

AllocationKind = Literal["allocate", "reallocate", "deallocate"]


class Contract(Record, frozen=True, kw_only=True):
    """The terms of a measurement: a number means nothing without them.

    `queue_ahead` is how many queries are enqueued before the host waits for the oldest; `transfers` whether
    host-to-device and device-to-host copies are part of a query; `sync` how the host waits.
    """

    name: str
    graph: bool
    transfers: bool
    queue_ahead: int
    sync: Literal["blocking", "spin"]
    streams: int = 1


class Samples(Record, frozen=True, kw_only=True):
    """Raw samples, one entry a query, in the order the queries were handed over.

    `start_ms` and `end_ms` are host times since the pass began; `lane` tells which stream ran the query.
    The device's copies are empty lists under a contract without transfers.
    """

    start_ms: list[float]
    end_ms: list[float]
    enqueue_ms: list[float]
    gpu_compute_ms: list[float]
    h2d_ms: list[float]
    d2h_ms: list[float]
    lane: list[int]

    @property
    def latency_ms(self) -> list[float]:
        """From handing over the input to having the output, queueing included."""
        return [end - start for start, end in zip(self.start_ms, self.end_ms, strict=True)]

    @property
    def wall_ms(self) -> float:
        """From the first query's start to the last one's end; 0 without queries."""
        return max(self.end_ms) - min(self.start_ms) if self.start_ms else 0.0


class ClockReading(Record, frozen=True, kw_only=True):
    """What the device said of itself between groups of samples."""

    at_ms: float
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()


class Environment(Record, frozen=True, kw_only=True):
    """Where a measurement was taken."""

    device: DeviceInfo
    backend: Backend
    trtopt: str
    python: str
    platform: str
    cpu: str
    git_revision: str | None = None


class EngineRef(Record, frozen=True, kw_only=True):
    """Which engine was measured, by hash; `path` only helps people find it."""

    path: str
    sha256: str
    label: str


class Measurement(Record, frozen=True, kw_only=True):
    """One pass in one mode under one contract. Summaries are derived from the samples, never stored."""

    mode: Literal["latency", "throughput"]
    contract: Contract
    engine: EngineRef
    batch: int
    shapes: dict[str, Shape]
    samples: Samples
    warmups: Samples
    clocks: tuple[ClockReading, ...] = ()
    discarded: int = 0
    stop_reason: str
    warmup_reason: str = ""
    notes: tuple[str, ...] = ()


class LayerTime(Record, frozen=True, kw_only=True):
    """One layer's time in each run of the profiling pass."""

    name: str
    ms: list[float]


class LayerPass(Record, frozen=True, kw_only=True):
    """A pass with the profiler attached; its total is no latency."""

    runs: int
    layers: tuple[LayerTime, ...]
    inspector: str | None = None
    """The engine's description of its layers at these shapes, in its backend's own JSON; None where it gives
    none, or one beyond 64 MiB."""


class AllocationEvent(Record, frozen=True, kw_only=True):
    """One call of the tracking allocator; `at_ms` counts from the pass's start.

    `address` is 0 for an allocation that failed. A reallocation is recorded as what it asked for.
    """

    at_ms: float
    kind: AllocationKind
    size_bytes: int
    address: int
    phase: str
    stream: int | None = None


class MemoryPass(Record, frozen=True, kw_only=True):
    """A pass with the tracking allocator attached: load, context, buffers, runs, unload."""

    events: tuple[AllocationEvent, ...]
    buffers_bytes: int
    """Inputs and outputs, which trtopt allocates itself."""
    engine_device_bytes: int | None
    """What the engine says it needs for activations, as TensorRT reports it."""
    driver_used_bytes: int | None
    """Growth of the device's used memory from before the load to the last run, as the driver reports it."""


class BenchPoint(Record, frozen=True, kw_only=True):
    """All passes over one engine at one batch size."""

    batch: int
    latency: Measurement
    throughput: Measurement | None = None
    layers: LayerPass | None = None
    memory: MemoryPass | None = None


class BenchReport(Record, frozen=True, kw_only=True):
    """The result file of `trtopt bench`."""

    schema: str = BENCH_SCHEMA
    created: str
    argv: tuple[str, ...] = ()
    environment: Environment
    model_sha256: str
    points: tuple[BenchPoint, ...]
    notes: tuple[str, ...] = ()
