"""Records of plans: the setup that serves a load within a latency, its prediction and its verification."""

from __future__ import annotations

from trtopt.records.base import Record, Shape
from trtopt.records.building import EngineArtifact
from trtopt.records.measuring import Environment
from trtopt.records.result import Result
from trtopt.records.serving import BatchPolicy

PLAN_SCHEMA = "trtopt.plan/5"


class PlannedEngine(Record, frozen=True, kw_only=True):
    """An engine to load, if its hash matches. The artifact's path is relative to the plan's file.

    `latency_ms` are the medians measured alone, (batch, milliseconds) by ascending batch, at the longest
    shape: the runtime chooses among engines by them. `memory_bytes` is its device memory with all
    the contexts that the plan gives it; None: not measured.
    """

    artifact: EngineArtifact
    precision: str | None
    latency_ms: tuple[tuple[int, float], ...]
    memory_bytes: int | None = None


class PlannedLoad(Record, frozen=True, kw_only=True):
    """The load of the plan, in requests per second.

    `arrivals` is `poisson`, `constant`, `bursty:PEAK:SECONDS` or the name of a file of arrivals, whose
    content has the hash `file_sha256`. `shares` is the share of the requests by length; empty
    where all are alike or the file has the lengths.
    """

    rate: float
    arrivals: str
    file_sha256: str | None = None
    shares: dict[int, float] = {}  # noqa: RUF012  (msgspec copies mutable defaults)


class Estimate(Record, frozen=True, kw_only=True):
    """A figure and the interval that 95 of 100 runs fall into, of as many requests as were simulated."""

    value: float
    low: float
    high: float

    def holds(self, measured: float) -> bool:
        """Whether a measured figure is in the interval."""
        return self.low <= measured <= self.high


class Prediction(Record, frozen=True, kw_only=True):
    """The simulation's result: `runs` runs of `requests` requests each, with other arrivals and times.

    Latencies are from arrival to answer, in milliseconds; `goal` is the percentile of the goal.
    `mean_batch` is of requests; `busy` is the share of the time that workers run batches.
    """

    requests: int
    runs: int
    p50: Estimate
    p99: Estimate
    goal: Estimate
    throughput: Estimate
    mean_batch: float
    busy: float


class Beyond(Record, frozen=True, kw_only=True):
    """A percentile measured in trial runs over the same percentile simulated for their arrivals.

    The median of `trials` trial runs, each in its own process; the standard error of their mean, and by
    how much processes differ beyond chance (standard deviation), both as a share of the median. Taken over
    from another setup it is the factor alone.
    """

    p: float
    factor: float
    error: float = 0.0
    spread: float = 0.0
    trials: int = 0


class ServingCost(Record, frozen=True, kw_only=True):
    """The latency that serving adds to an engine's, as measured on the planning machine.

    For each batch, and for each request in it, in milliseconds; both 0 if the engines cannot run there. The
    others are samples of the variation, ascending, all equally likely: how much longer batches take than the
    engine and this cost, how long a worker takes to wake, and how late requests are enqueued.

    `from_trials` counts the requests of the trial runs that measured it; predictions are multiplied by the
    factors of `beyond`, ordered by their percentiles. `held_up` is that of one further trial run, which was
    so much slower that it does not count. Where another setup had the trial runs `from_trials` is 0, and the
    others are taken over from that.
    """

    batch_ms: float = 0.0
    request_ms: float = 0.0
    jitter_ms: tuple[float, ...] = ()
    wake_ms: tuple[float, ...] = ()
    late_ms: tuple[float, ...] = ()
    from_trials: int = 0
    beyond: tuple[Beyond, ...] = ()
    held_up: Beyond | None = None

    def beyond_at(self, p: float) -> Beyond | None:
        """At a percentile, or at the highest lower one that trial runs could measure."""
        return next((entry for entry in reversed(self.beyond) if entry.p <= p), None)


class Rejected(Record, frozen=True, kw_only=True):
    """`count` setups that were not chosen, and why; `setup` is the best of them."""

    setup: str
    reason: str
    count: int = 1


class Served(Record, frozen=True, kw_only=True):
    """Requests served under the plan's load; latencies in milliseconds, from the planned arrival.

    `goal_ms` is the percentile of the SLO; `lag_p99_ms` how late the host enqueued requests, which
    is part of their latency; `throughput` answers per second.
    """

    p50_ms: float
    p99_ms: float
    goal_ms: float
    throughput: float
    lag_p99_ms: float


class Verification(Record, frozen=True, kw_only=True):
    """The plan run under its load by `trtopt.serving`.

    `runs` are one after the other, each as long as those that were predicted; `total` is of all requests,
    `typical` the medians of the runs: a stall of the machine makes one run slow, not all of them.
    """

    created: str
    environment: Environment
    seed: int
    requests: int
    answered: int
    rejected: int
    failed: int
    runs: tuple[Served, ...]
    typical: Served
    total: Served
    batch_sizes: dict[int, int]


class BatchPlan(Result, Record, frozen=True, kw_only=True):
    """`trtopt plan`'s file: engines, workers and policy for a goal under a load.

    `buckets` are the shapes that requests are padded to, without the batch axis, by their length: a request
    goes to the shortest that holds it. One of length 0 stands for a model without lengths. `sources` are the
    folders with the measurements. `packing` is None for a model without lengths, and where no two requests
    fit into a row. `verification` is None until it has been run.
    """

    schema: str = PLAN_SCHEMA
    created: str
    argv: tuple[str, ...] = ()
    sources: tuple[str, ...]
    environment: Environment
    model_sha256: str
    goal: str
    load: PlannedLoad
    memory_limit_bytes: int | None
    max_engines: int
    engines: tuple[PlannedEngine, ...]
    buckets: dict[int, dict[str, Shape]]
    workers: int
    policy: BatchPolicy
    memory_bytes: int | None
    serving_cost: ServingCost
    prediction: Prediction
    verification: Verification | None = None
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
