"""Records of profiles: layers, kernels and memory, and what of a folder is on its page."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Result, ResultFile, Shape
from trtopt.records.bench import BenchReport, EngineRef, Launch
from trtopt.records.build import Manifest
from trtopt.records.machine import Environment
from trtopt.records.precision import CheckReport, ComparisonVerdict
from trtopt.records.tune import Ledger

# ── the engine as its inspector describes it ────────────────────────────────────────────────────────────


class EngineTensor(Record, frozen=True, kw_only=True):
    """An input or output of a layer. `dtype` is a NumPy name, empty where the inspector gives none."""

    name: str
    dtype: str = ""
    shape: Shape | None = None
    format: str = ""
    """Type and layout in the inspector's own words."""


# ── layers and their nodes ──────────────────────────────────────────────────────────────────────────────

MappedBy = Literal["metadata", "name", "graph", "nothing"]
"""How ONNX nodes were found: TensorRT's metadata, the layer's name, or tensors walked through the graph."""


class LayerCost(Record, frozen=True, kw_only=True):
    """The minimum work of a layer's ONNX nodes, and its time at the device's peak rates.

    `bytes_moved` counts what enters and leaves the layer once, weights included. `floor_ms` is None where
    the device's peaks are not known.
    """

    flops: int
    bytes_moved: int
    floor_ms: float | None = None
    bound: Literal["memory", "compute", ""] = ""


class ProfiledLayer(Record, frozen=True, kw_only=True):
    """One layer: its time, kind, ONNX nodes and minimum cost.

    `ms` is the median of the profiled runs, `low_ms` and `high_ms` their 10th and 90th percentile; None for
    a layer that the profiler never reported. `dtype` is the type it ran in, empty where unknown.
    """

    name: str
    kind: str
    ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    dtype: str = ""
    requested_dtype: str = ""
    is_reformat: bool = False
    is_opaque: bool = False
    tactic: str = ""
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    weights_count: int = 0
    onnx_nodes: tuple[str, ...] = ()
    onnx_ops: tuple[str, ...] = ()
    mapped_by: MappedBy = "nothing"
    cost: LayerCost | None = None

    @property
    def working_nodes(self) -> tuple[str, ...]:
        """Its nodes without Q and DQ, which are named after tensors; all if it has no others."""
        pairs = zip(self.onnx_nodes, self.onnx_ops, strict=True)
        others = tuple(name for name, op in pairs if op not in ("QuantizeLinear", "DequantizeLinear"))
        return others or self.onnx_nodes


class LayerGroup(Record, frozen=True, kw_only=True):
    """Layers that have something in common, and their time together."""

    key: str
    layers: int
    ms: float
    share: float


class Coverage(Record, frozen=True, kw_only=True):
    """How much of the time and of the graph could be mapped; shares from 0 to 1."""

    time_mapped: float
    nodes_mapped: float
    time_opaque: float
    """In layers that hide many nodes: this time cannot be split among them."""
    unmatched_times: tuple[str, ...] = ()
    """Layers that the profiler reports and the inspector does not know."""
    unmatched_layers: tuple[str, ...] = ()
    """Layers that the inspector describes and the profiler never reported."""


class Fusion(Record, frozen=True, kw_only=True):
    """ONNX operators that were fused into one layer, and how often."""

    ops: tuple[str, ...]
    kind: str
    count: int
    ms: float


class Unfused(Record, frozen=True, kw_only=True):
    """A known fusion's candidate that ran as several layers; `reason` is a code."""

    fusion: str
    nodes: tuple[str, ...]
    reason: str
    detail: str
    ms: float


class Fallback(Record, frozen=True, kw_only=True):
    """A layer with weights that ran in a wider type than its graph requests.

    `chosen`: the builder was free to do so, as a weakly typed one treats 16 bits in the graph as permission.
    `nodes` are the ONNX nodes that the layer covers, Q and DQ left out.
    """

    layer: str
    nodes: tuple[str, ...] = ()
    requested: str
    ran: str
    share_of_time: float | None
    share_of_weights: float
    chosen: bool = False


class PrecisionReceipt(Record, frozen=True, kw_only=True):
    """Shares by type, requested and run; an unknown type is `unknown`. Shares from 0 to 1.

    Time is None where nothing was timed. Reformats count to the time, by the type they write.
    `weighted_layers` is how many layers have weights.
    """

    time_ran: dict[str, float] | None
    weights_ran: dict[str, float]
    weights_requested: dict[str, float]
    weighted_layers: int = 0
    fallbacks: tuple[Fallback, ...] = ()


# ── the device's peaks ──────────────────────────────────────────────────────────────────────────────────


class Peak(Record, frozen=True, kw_only=True):
    """One peak rate of a device, and its source."""

    value: float
    source: str


class DevicePeaks(Record, frozen=True, kw_only=True):
    """Bytes/s of device memory, and FLOP/s of matrix products by the type that they run in."""

    device: str
    bandwidth: Peak
    flops: dict[str, Peak]


class MeasuredPeaks(Record, frozen=True, kw_only=True):
    """Probe measurements of one device, by its UUID; `notes` say which types gave no rate, and why."""

    schema: str = "trtopt.peaks/1"
    created: str
    uuid: str
    peaks: DevicePeaks
    notes: tuple[str, ...] = ()


class RooflineTotal(Record, frozen=True, kw_only=True):
    """The whole model against its floor; `costed_share` is the share of time whose floor is known."""

    flops: int
    bytes_moved: int
    floor_ms: float | None
    measured_ms: float
    costed_share: float


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


class MemoryTimeline(Record, frozen=True, kw_only=True):
    """The summary of a memory pass.

    `peak_by_phase` counts what earlier phases left as well. `at_peak_bytes` are the bytes live at the peak by
    label: `weights`, `activations` or `scratch`; `held_bytes` those after the last run, inputs and outputs
    too. `driver_bytes` is what the driver reports for the same moment, `remainder_bytes` what it reports
    beyond `held_bytes`; None where the driver reports nothing. `context_bytes` is what each further context
    took, `host_bytes` by how much the process's own memory grew. `failure` is what ended the pass
    early.
    """

    peak_bytes: int
    peak_phase: str
    peak_by_phase: dict[str, int]
    at_peak_bytes: dict[str, int]
    leaked_bytes: tuple[int, ...]
    """Sizes of allocations that were never freed, although everything was closed."""
    failed_bytes: tuple[int, ...]
    """Sizes of allocations that failed."""
    buffers_bytes: int
    driver_bytes: int | None
    remainder_bytes: int | None
    at_ms: list[float]
    live_bytes: list[int]
    """What was live after each call, at its time since the pass began."""
    held_bytes: dict[str, int] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    context_bytes: tuple[int, ...] = ()
    engine_file_bytes: int | None = None
    host_bytes: int | None = None
    failure: str | None = None


# ── kernels ─────────────────────────────────────────────────────────────────────────────────────────────

Confidence = Literal["certain", "likely", "unknown"]
"""Of what a kernel belongs to: nothing else is possible, or the backend says so; order, kinds and times
agree; or neither."""

KernelFamily = Literal[
    "product", "attention", "softmax", "normalisation", "reduction", "pointwise", "pooling", "reformat",
    "split-k", "weight copy", "copy", "memset", "other",
]  # fmt: skip


class KernelRow(Launch, frozen=True, kw_only=True):
    """One launch: medians over the runs, what its name says, and what it belongs to.

    `gap_ms` is how long the device had nothing to do before it, `overlap_ms` for how much of `ms` an earlier
    launch still ran: some start early and wait. `dtype`, `tile` and `tensor_cores` are read
    from the name; empty or None where it says nothing. `nodes` are ONNX nodes, with `confidence`, which is
    at most `layer_confidence`. `flops` is the work of the one product that the launch stands for,
    `peak_share` its rate against the device's peak.
    """

    family: KernelFamily
    start_ms: float
    ms: float
    gap_ms: float
    overlap_ms: float = 0.0
    dtype: str = ""
    tile: tuple[int, ...] = ()
    tensor_cores: bool | None = None
    layer: str = ""
    layer_confidence: Confidence = "unknown"
    nodes: tuple[str, ...] = ()
    confidence: Confidence = "unknown"
    flops: int | None = None
    peak_share: float | None = None

    @property
    def own_ms(self) -> float:
        """Its time beyond what earlier launches take: that of all launches adds up to the busy time."""
        return self.ms - self.overlap_ms


class KernelGroup(Record, frozen=True, kw_only=True):
    """Launches that have a name, a node or a type in common, by their `own_ms`; `share` is of all launches'.

    `confidence` is the least of its launches'; `peak_share` is that of all together, None where one lacks it.
    """

    key: str
    launches: int
    ms: float
    share: float
    confidence: Confidence = "unknown"
    peak_share: float | None = None


class KernelReport(Record, frozen=True, kw_only=True):
    """The kernels of an inference. `busy_ms` is when at least one ran, `gap_ms` when none did in between.

    Both together are the time from the first launch's start to the last one's end; `remainder_ms` is by how
    much the latency without the tracer exceeds it, None where that is unknown. Time of launches that belong
    to no known node is in the row `unknown` of `by_block`, never spread over nodes: that goes by nodes,
    those of repeated blocks together.
    """

    runs: int
    graph: bool
    dropped: int
    different_runs: int
    rows: tuple[KernelRow, ...]
    by_name: tuple[KernelGroup, ...]
    by_family: tuple[KernelGroup, ...] = ()
    by_block: tuple[KernelGroup, ...] = ()
    sum_ms: float
    busy_ms: float
    gap_ms: float
    latency_ms: float | None
    remainder_ms: float | None
    unknown_ms: float
    notes: tuple[str, ...] = ()


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────


class EngineProfile(Record, frozen=True, kw_only=True):
    """The profile of one engine at one batch size. `sum_ms` adds the layers' medians."""

    batch: int
    engine: EngineRef
    layers: tuple[ProfiledLayer, ...]
    sum_ms: float
    latency_ms: float | None
    """The median GPU compute time of the latency pass, where no profiler was attached."""
    h2d_ms: float | None = None
    d2h_ms: float | None = None
    """Medians of that pass's copies; None under a contract without transfers."""
    by_kind: tuple[LayerGroup, ...]
    by_dtype: tuple[LayerGroup, ...]
    by_module: tuple[LayerGroup, ...]
    coverage: Coverage
    fusions: tuple[Fusion, ...]
    unfused: tuple[Unfused, ...]
    receipt: PrecisionReceipt
    roofline: RooflineTotal
    furthest: tuple[str, ...]
    """The layers furthest above their floor, by time, first."""
    memory: MemoryTimeline | None = None
    layers_graph: bool = False
    """Whether the layers were timed in replays of a CUDA graph."""
    kernels: KernelReport | None = None
    float_gates: tuple[str, ...] = ()
    """Nodes of squeeze-and-excitation in float, of a graph with Q/DQ."""


class ProfileReport(Result, ResultFile, frozen=True, kw_only=True):
    """The result file of `trtopt profile`. `missing` lists what is unknown, and why."""

    schema: str = "trtopt.profile/6"
    environment: Environment
    model_sha256: str
    peaks: DevicePeaks | None
    engines: tuple[EngineProfile, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_profile(report: ProfileReport) -> None:
    """Parts fit together: a curve's times and values, nodes and operators, names and layers.

    Peaks are positive.
    """
    if report.peaks is not None:
        peaks = (report.peaks.bandwidth, *report.peaks.flops.values())
        if min(peak.value for peak in peaks) <= 0:
            raise ValueError(f"the peaks of {report.peaks.device[:60]!r} are not positive")
    for engine in report.engines:
        for layer in engine.layers:
            if len(layer.onnx_nodes) != len(layer.onnx_ops):
                raise ValueError(f"batch {engine.batch}: {layer.name[:60]!r} has not one operator per node")
        if unknown := {*engine.furthest} - {layer.name for layer in engine.layers}:
            raise ValueError(f"batch {engine.batch}: has no layer {min(unknown)[:60]!r}")
        if engine.memory is not None and len(engine.memory.at_ms) != len(engine.memory.live_bytes):
            raise ValueError(f"batch {engine.batch}: its columns of live bytes are of unlike length")


# ── why one engine is slower than another ───────────────────────────────────────────────────────────────


class Change(Record, frozen=True, kw_only=True):
    """What ONNX nodes take in two engines: `cost_ms` is negative where B is faster."""

    nodes: tuple[str, ...] = ()
    a_ms: float
    b_ms: float

    @property
    def cost_ms(self) -> float:
        """From A to B."""
        return self.b_ms - self.a_ms


class Cause(Change, frozen=True, kw_only=True):
    """One of the reasons why two engines differ in time; `a_parts` and `b_parts` count kernels or layers.

    `nodes` are those that it changes most, the costliest first. `remedy` is what may save B its cost; empty
    where it costs nothing, or where nothing is known to. `options` are fields of a recipe that do it.
    """

    cause: str
    a_parts: int = 0
    b_parts: int = 0
    remedy: str = ""
    options: dict[str, tuple[str, ...]] = {}  # noqa: RUF012  (msgspec copies mutable defaults)


class Replacement(Change, frozen=True, kw_only=True):
    """Kernels or layers of two engines for the same nodes, or those of so many blocks; else of one name."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    blocks: int = 1


class Trial(Record, frozen=True, kw_only=True):
    """A remedy of some causes, built and measured in turns with B, and with A if that has engines.

    `predicted_ms` is the causes' cost, which it saves at most. `reason` says why it could not be tried; the
    measured medians are None then.
    """

    option: str
    causes: tuple[str, ...]
    predicted_ms: float
    ms: float | None = None
    a_ms: float | None = None
    b_ms: float | None = None
    against_b: ComparisonVerdict | None = None
    reason: str = ""

    @property
    def gain_ms(self) -> float | None:
        """What B saves by it."""
        return None if self.ms is None or self.b_ms is None else self.b_ms - self.ms


class EngineDifference(Record, frozen=True, kw_only=True):
    """Two engines of one model at one batch size: their latencies, whose causes add up to the difference.

    `parts` is what both consist of; `replaced` has the costliest first.
    """

    batch: int
    a: str
    b: str
    a_ms: float
    b_ms: float
    parts: Literal["kernels", "layers"]
    causes: tuple[Cause, ...]
    replaced: tuple[Replacement, ...]
    trials: tuple[Trial, ...] = ()


class Explanation(Result, ResultFile, frozen=True, kw_only=True):
    """The result file of `trtopt explain`: why B's engines are slower or faster than those of A."""

    schema: str = "trtopt.explanation/2"
    a: str
    b: str
    device: str
    engines: tuple[EngineDifference, ...]
    notes: tuple[str, ...] = ()


class Collected(Record, frozen=True, kw_only=True):
    """The builds, measurements, profiles and checks of one model in a folder, by file name.

    `folder` is the path as the user wrote it, `name` its last part. `left_out` has the reason for every other
    JSON file that is not in the report.
    """

    folder: str
    name: str
    manifest: Manifest | None = None
    results: dict[str, BenchReport] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    profiles: dict[str, ProfileReport] = {}  # noqa: RUF012
    checks: dict[str, CheckReport] = {}  # noqa: RUF012
    ledger: Ledger | None = None
    left_out: dict[str, str] = {}  # noqa: RUF012
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> dict[str, BenchReport | ProfileReport]:
        """Results, then profiles, by file name."""
        return {**self.results, **self.profiles}
