"""Records of sweeps: a model measured at many batch sizes, shapes, precisions and numbers of streams."""

from __future__ import annotations

import hashlib

import msgspec

from trtopt.records.base import Record, Result, ResultFile, Shape
from trtopt.records.bench import Contract, EngineRef, Spread, Trust
from trtopt.records.machine import Backend, DeviceInfo, Environment


class SweepTerms(Record, frozen=True, kw_only=True):
    """The terms that all points of a sweep share; points on other terms belong to another sweep.

    `contract` is that of one stream; `recipe` is the build recipe as JSON, without what differs from point
    to point; `data` the input that was measured on, by hash of its text (None: seeded random input).
    """

    model_sha256: str
    """Of the user's file."""
    backend: Backend
    device: DeviceInfo
    contract: Contract
    recipe: str
    warmup_s: float
    duration_s: float
    data: str | None = None


class SweepSetting(Record, frozen=True, kw_only=True):
    """The settings of one point. `precision` is the requested one; None: the graph's.

    `axes` holds the lengths of the swept axes besides the batch, by name.
    """

    precision: str | None
    batch: int
    streams: int = 1
    axes: dict[str, int] = {}  # noqa: RUF012  (msgspec copies mutable defaults)

    @property
    def label(self) -> str:
        """`int8 batch8 seq=128 streams2`: for tables and, with dashes, names of files."""
        axes = (f"{name}={length}" for name, length in sorted(self.axes.items()))
        streams = (f"streams{self.streams}",) if self.streams > 1 else ()
        precision = () if self.precision is None else (self.precision,)
        return " ".join((*precision, f"batch{self.batch}", *axes, *streams))

    def key(self, terms: SweepTerms) -> str:
        """A hash of all that determines a measurement: a point with this key need not be measured again."""
        text = msgspec.json.encode((terms, self), order="deterministic")
        return hashlib.sha256(text).hexdigest()


class PointMemory(Record, frozen=True, kw_only=True):
    """Device memory of one engine with one context, from the memory pass.

    `peak_bytes` is TensorRT's own allocations at their most, weights included, with inputs and outputs;
    each further context takes `context_bytes` and `buffers_bytes` more. None: not reported.
    """

    peak_bytes: int
    buffers_bytes: int
    context_bytes: int | None = None


class SweepPoint(Record, frozen=True, kw_only=True):
    """One engine measured at one batch size, shape and number of streams; or the reason why not.

    Paths are relative to the sweep's folder. `result` is a result file of `trtopt bench` with this one point
    and its raw samples: that is the truth, and the figures here are drawn from it. `latency` is that of one
    query in flight, whatever the number of streams; `busy_latency` that of the throughput pass, queueing
    included. One that failed has a `failure` and, as far as it came, the rest.
    """

    key: str
    setting: SweepSetting
    shapes: dict[str, Shape] = {}  # noqa: RUF012
    """Of every input, batch included."""
    build: str | None = None
    engine: EngineRef | None = None
    engine_bytes: int | None = None
    build_seconds: float | None = None
    result: str | None = None
    queries: int = 0
    """The number of latencies."""
    latency: Spread | None = None
    busy_latency: Spread | None = None
    samples_per_s: float | None = None
    queries_per_s: float | None = None
    memory: PointMemory | None = None
    watts: float | None = None
    """The device's mean power during the throughput pass."""
    untrustworthy: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()
    failure: str | None = None

    @property
    def label(self) -> str:
        """See `SweepSetting.label`."""
        return self.setting.label

    @property
    def trust(self) -> Trust:
        """By the reasons against its figures."""
        if self.untrustworthy:
            return Trust.NONE
        return Trust.UNSTEADY if self.unsteady else Trust.FULL

    @property
    def samples_per_joule(self) -> float | None:
        """Samples per second over watts; None where the power is unknown."""
        return self.samples_per_s / self.watts if self.samples_per_s is not None and self.watts else None


class SweepReport(Result, ResultFile, frozen=True, kw_only=True):
    """`sweep.json` of a sweep's folder; `points` by precision, axes, streams and batch."""

    schema: str = "trtopt.sweep/4"
    model: str
    """The name of the user's file."""
    terms: SweepTerms
    environment: Environment | None = None
    """None until a point has been measured."""
    points: tuple[SweepPoint, ...] = ()

    @property
    def model_sha256(self) -> str:
        """The hash of the user's file."""
        return self.terms.model_sha256

    @property
    def measured(self) -> tuple[SweepPoint, ...]:
        """The points that have figures."""
        return tuple(point for point in self.points if point.failure is None)
