"""Records of plans and of serving: the setup that serves a load within a latency, and what was served."""

from __future__ import annotations

from numbers import Integral, Real
from statistics import median

from trtopt.records.base import Record, Result, ResultFile, Shape
from trtopt.records.build import EngineArtifact, check_shapes
from trtopt.records.machine import Environment

# ── serving ─────────────────────────────────────────────────────────────────────────────────────────────


class BatchPolicy(Record, frozen=True, kw_only=True):
    """When waiting requests become a batch, and how many may wait.

    A batch runs when it holds `max_batch` requests, or when its oldest has waited for `max_delay_ms`, as soon
    as a worker is free. While `max_waiting` requests wait, more are rejected.
    """

    max_batch: int
    max_delay_ms: float = 2.0
    max_waiting: int = 1024


def check_policy(policy: BatchPolicy) -> None:
    """Batches hold at least one request, at least one may wait, and the delay is not negative."""
    for name in ("max_batch", "max_waiting"):
        value = getattr(policy, name)  # the types of a policy made by a program are unchecked
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value!r}, a whole number from 1 on is needed")
    if not isinstance(policy.max_delay_ms, Real) or not policy.max_delay_ms >= 0:
        raise ValueError(f"max_delay_ms is {policy.max_delay_ms!r}, a number from 0 on is needed")


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────


class PlannedEngine(Record, frozen=True, kw_only=True):
    """An engine to load, if its hash matches. The artifact's path is relative to the plan's file.

    `latency_ms` are the medians measured alone, (batch, milliseconds) by ascending batch, at the longest
    shape: the runtime chooses among engines by them.
    """

    artifact: EngineArtifact
    precision: str | None
    latency_ms: tuple[tuple[int, float], ...]


class PlannedLoad(Record, frozen=True, kw_only=True):
    """The load of the plan, in requests per second.

    `arrivals` is `poisson`, `constant` or the name of a file of arrivals, whose
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
    """The result of simulated runs of `requests` requests each, with other arrivals and times.

    Latencies are from arrival to answer, in milliseconds; `goal` is the percentile of the goal.
    `mean_batch` is of requests; `busy` is the share of the time that workers run batches.
    """

    requests: int
    p50: Estimate
    p99: Estimate
    goal: Estimate
    throughput: Estimate
    mean_batch: float
    busy: float


class ServingCost(Record, frozen=True, kw_only=True):
    """The latency that serving adds to an engine's at full load, as measured on the planning machine.

    For each batch, and for each request in it, in milliseconds; both 0 if the engines cannot run there.
    """

    batch_ms: float = 0.0
    request_ms: float = 0.0


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

    `runs` are one after the other, each as long as those that were predicted; `total` is of all requests.
    """

    environment: Environment
    requests: int
    answered: int
    rejected: int
    failed: int
    runs: tuple[Served, ...]
    total: Served

    @property
    def typical(self) -> Served:
        """The medians of the runs: a stall of the machine makes one of them slow, not all."""
        names = Served.__struct_fields__
        return Served(**{name: median(getattr(run, name) for run in self.runs) for name in names})


class BatchPlan(Result, ResultFile, frozen=True, kw_only=True):
    """`trtopt plan`'s file: engines, workers and policy for a goal under a load.

    `buckets` are the shapes that requests are padded to, without the batch axis, by their length: a request
    goes to the shortest that holds it. One of length 0 stands for a model without lengths. `sources` are the
    folders with the measurements. `verification` is None until it has been run.
    """

    schema: str = "trtopt.plan/9"
    sources: tuple[str, ...]
    environment: Environment
    model_sha256: str
    goal: str
    load: PlannedLoad
    engines: tuple[PlannedEngine, ...]
    buckets: dict[int, dict[str, Shape]]
    workers: int
    policy: BatchPolicy
    memory_bytes: int | None
    serving_cost: ServingCost
    prediction: Prediction
    verification: Verification | None = None
    notes: tuple[str, ...] = ()


def check_plan(plan: BatchPlan) -> None:
    """Engines are listed and have valid shapes, also to pad requests to; workers and policy are valid.

    The engines' files may lie anywhere: hashes identify them.
    """
    if not plan.engines:
        raise ValueError("it lists no engines")
    if plan.workers < 1:
        raise ValueError(f"workers is {plan.workers}, one at least is needed")
    check_policy(plan.policy)
    for planned in plan.engines:
        check_shapes(planned.artifact, planned.artifact.inputs)
    if not plan.buckets:
        raise ValueError("it has no shapes that requests are padded to")
    for length, shapes in plan.buckets.items():
        if lost := {spec.name for spec in plan.engines[0].artifact.inputs} - {*shapes}:
            raise ValueError(f"length {length} has no shape for input {min(lost)[:60]!r}")
