"""The frozen records that flow between stages, and their JSON form.

Every record is immutable and knows nothing of files or devices. JSON is read strictly: an unknown field,
a missing one or one of another type is an error that names its place. Files carry a `schema` of the form
`trtopt.KIND/N`; N grows whenever a reader of N would misunderstand the file.

Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Shapes are tuples of integers;
in a model's own description a symbolic axis is its name, an anonymous one is "?".
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeVar

import msgspec

BUILD_SCHEMA = "trtopt.build/1"
BENCH_SCHEMA = "trtopt.bench/1"

Shape = tuple[int, ...]
AllocationKind = Literal["allocate", "reallocate", "deallocate"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: strict when read. Subclasses repeat `kw_only`, and `frozen` for type checkers."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record, *, indent: int | None = 2) -> bytes:
    """`record` as UTF-8 JSON with a closing newline; `indent=None` gives one line."""
    try:
        text = msgspec.json.encode(record)
    except UnicodeEncodeError:  # names of files and arguments need not be text
        text = msgspec.json.encode(_as_text(msgspec.to_builtins(record)))
    return (msgspec.json.format(text, indent=indent) if indent else text) + b"\n"


def _as_text(value: Any) -> Any:
    """Builtins with every string made encodable; bytes that are no text are written as escapes."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return value


def from_json(text: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a record.

    Raises:
        ValueError: not JSON, nested beyond reason, or not a `kind`; the message names the field.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:  # ValidationError is one too
        raise ValueError(str(error)) from None


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


class TensorSpec(Record, frozen=True, kw_only=True):
    """An input or output: `dtype` is a NumPy name (`float32`, `bfloat16`, `int64`, `bool`, …)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class OnnxArtifact(Record, frozen=True, kw_only=True):
    """An ONNX file. `sha256` covers its external data too; `parent` is the file it was made from."""

    path: str
    sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    types: tuple[str, ...] = ()
    """The element types that the graph's tensors have, sorted: builder flags are derived from these."""
    parent: str | None = None


# ── building ────────────────────────────────────────────────────────────────────────────────────────────


class ShapeRange(Record, frozen=True, kw_only=True):
    """The shapes that an optimisation profile admits for one input, and the one it is tuned for."""

    min: Shape
    opt: Shape
    max: Shape

    @property
    def is_fixed(self) -> bool:
        """Whether only one shape is admitted."""
        return self.min == self.max


class Backend(Record, frozen=True, kw_only=True):
    """What builds and runs: `name` is `tensorrt`, `tensorrt-rtx` or `onnxruntime`."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Plugin(Record, frozen=True, kw_only=True):
    """A plugin library that was asked for by name. It is native code."""

    path: str
    sha256: str


class BuildSettings(Record, frozen=True, kw_only=True):
    """What a recipe may set of a builder; None leaves the builder's own default."""

    opt_level: int | None = None
    workspace_bytes: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    compute_capabilities: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()


class BuildPlan(Record, frozen=True, kw_only=True):
    """One engine to build: from which ONNX (by hash), for which shapes, how, with what."""

    onnx_sha256: str
    batch: ShapeRange
    """Batch sizes as one-element shapes: `min == max` for an engine of one batch size."""
    shapes: dict[str, ShapeRange]
    """Every input's range, batch included."""
    settings: BuildSettings
    backend: Backend

    @property
    def key(self) -> str:
        """A hash of all that decides the engine except the machine: the name of a reusable result."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def label(self) -> str:
        """`batch8`, or `batch1-8-32` for a range: file names and tables use it."""
        low, best, high = self.batch.min[0], self.batch.opt[0], self.batch.max[0]
        return f"batch{low}" if low == high else f"batch{low}-{best}-{high}"


class DeviceInfo(Record, frozen=True, kw_only=True):
    """The device an engine was made on or a measurement was taken on."""

    kind: Literal["gpu", "cpu", "none", "scripted"]
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    binding: str | None = None
    """The CUDA binding and its version."""


class EngineArtifact(Record, frozen=True, kw_only=True):
    """A built engine. `path` is relative to the build folder."""

    path: str
    sha256: str
    size_bytes: int
    plan: BuildPlan
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    device: DeviceInfo
    build_seconds: float
    builder_config: dict[str, str]
    """Every setting as the builder itself reported it before building."""
    timing_cache_in: str | None = None
    timing_cache_out: str | None = None
    timing_cache_hits: int | None = None
    """How many timings the cache saved, as the builder's log tells; None where it tells nothing."""
    log: str
    warnings: int


class Manifest(Record, frozen=True, kw_only=True):
    """`manifest.json` of a build folder: what is in it and how it was made."""

    schema: str = BUILD_SCHEMA
    trtopt: str
    created: str
    argv: tuple[str, ...] = ()
    onnx: OnnxArtifact
    engines: tuple[EngineArtifact, ...]
    notes: tuple[str, ...] = ()


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────


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


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────────


class Component(Record, frozen=True, kw_only=True):
    """A library: its version, or why it cannot be used and how to get it."""

    name: str
    version: str | None
    problem: str | None = None
    remedy: str | None = None


class Survey(Record, frozen=True, kw_only=True):
    """Everything that decides which commands work here."""

    python: str
    platform: str
    cpu: str
    gpus: tuple[DeviceInfo, ...]
    tensorrt: Component
    tensorrt_rtx: Component
    onnxruntime: Component
    cuda_bindings: tuple[Component, ...]
    nvml: Component
    binding_variable: str
