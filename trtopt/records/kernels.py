"""Records of kernels: what a device ran during inferences, launch by launch, and what it belongs to."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record

ActivityKind = Literal["kernel", "copy", "memset"]
Confidence = Literal["certain", "likely", "unknown"]
"""Of what a kernel belongs to: nothing else is possible, or the backend says so; order, kinds and times
agree; or neither."""

KernelFamily = Literal[
    "product", "attention", "softmax", "normalisation", "reduction", "pointwise", "pooling", "reformat",
    "split-k", "weight copy", "copy", "memset", "other",
]  # fmt: skip

Dim = tuple[int, int, int]


class KernelActivity(Record, frozen=True, kw_only=True):
    """One kernel, copy or memset as the device's tracer reports it; times in nanoseconds on its clock.

    `graph_node` is 0 for what no CUDA graph launched. `nbytes` is what a copy or memset moves.
    """

    kind: ActivityKind
    name: str
    start_ns: int
    end_ns: int
    correlation_id: int = 0
    stream: int = 0
    graph_node: int = 0
    grid: Dim = (1, 1, 1)
    block: Dim = (1, 1, 1)
    registers: int = 0
    shared_bytes: int = 0
    nbytes: int = 0


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


class KernelLaunch(Record, frozen=True, kw_only=True):
    """One launch of an inference over all recorded runs; `start_ms` counts from the run's first launch."""

    kind: ActivityKind
    name: str
    start_ms: list[float]
    ms: list[float]
    stream: int = 0
    grid: Dim = (1, 1, 1)
    block: Dim = (1, 1, 1)
    registers: int = 0
    shared_bytes: int = 0
    nbytes: int = 0


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


class KernelRow(Record, frozen=True, kw_only=True):
    """One launch: medians over the runs, what its name says, and what it belongs to.

    `gap_ms` is how long the device had nothing to do before it, `overlap_ms` for how much of `ms` an earlier
    launch still ran: some start early and wait. `dtype`, `tile` and `tensor_cores` are read
    from the name; empty or None where it says nothing. `nodes` are ONNX nodes, with `confidence`, which is
    at most `layer_confidence`. `flops` is the work of the one product that the launch stands for,
    `peak_share` its rate against the device's peak.
    """

    kind: ActivityKind
    name: str
    family: KernelFamily
    start_ms: float
    ms: float
    gap_ms: float
    overlap_ms: float = 0.0
    dtype: str = ""
    tile: tuple[int, ...] = ()
    tensor_cores: bool | None = None
    stream: int = 0
    grid: Dim = (1, 1, 1)
    block: Dim = (1, 1, 1)
    registers: int = 0
    shared_bytes: int = 0
    nbytes: int = 0
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
    to no known node is in the row `unknown` of `by_node`, never spread over nodes. `by_dtype` and
    `by_family` go by names, `by_block` by nodes, those of repeated blocks together.
    """

    runs: int
    graph: bool
    dropped: int
    different_runs: int
    rows: tuple[KernelRow, ...]
    by_name: tuple[KernelGroup, ...]
    by_node: tuple[KernelGroup, ...]
    by_dtype: tuple[KernelGroup, ...]
    by_family: tuple[KernelGroup, ...] = ()
    by_block: tuple[KernelGroup, ...] = ()
    sum_ms: float
    busy_ms: float
    gap_ms: float
    latency_ms: float | None
    remainder_ms: float | None
    unknown_ms: float
    notes: tuple[str, ...] = ()


class KernelChange(Record, frozen=True, kw_only=True):
    """Kernels of two engines that serve the same ONNX nodes, or those of so many blocks; else of one name."""

    nodes: tuple[str, ...]
    a: tuple[str, ...]
    b: tuple[str, ...]
    a_ms: float
    b_ms: float
    blocks: int = 1

    @property
    def cost_ms(self) -> float:
        """Negative where B is faster."""
        return self.b_ms - self.a_ms
