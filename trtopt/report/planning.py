"""A plan: the prediction and the verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from trtopt.printable import counted
from trtopt.records import BatchPlan, Estimate, Served, Verification
from trtopt.records.base import Row
from trtopt.report.view import Block, Column, Lines, Table, View, cells_of, plain, shown, table, view_of

_LATE_SHARE = 0.1
"""A host that is late by this share of the predicted latency limits the result."""

_Figure = tuple[str, Estimate, Callable[[Served], float]]
"""Its name, the prediction, and where a run has it."""


@view_of.register
def plan_view(plan: BatchPlan) -> View:
    """The plan with its prediction and verification; costs are a detail."""
    verified = [] if plan.verification is None else [Lines(list(_verified_lines(plan, plan.verification)))]
    caption = (
        f"the interval is that of 95 of 100 such runs; workers are busy {plan.prediction.busy:.0%} of the "
        f"time with batches of {plan.prediction.mean_batch:.1f} requests on average"
    )
    cost = plan.serving_cost
    costs = (
        f"  serving adds {cost.batch_ms * 1e3:.0f} µs per batch and {cost.request_ms * 1e3:.1f} µs per "
        "request to the engines' time"
    )
    blocks: list[Block] = [
        Lines(list(_setup_lines(plan))),
        _figures(plan),
        Lines([caption], "dim"),
        Lines([costs], is_detail=True),
        *verified,
    ]
    outcome = (
        f"{plan.goal} at {plan.load.rate:,.4g} requests/s: {counted(len(plan.engines), 'engine')}, "
        f"{counted(plan.workers, 'worker')}, batches up to {plan.policy.max_batch}"
    )
    return View("", blocks, plain(plan.notes), outcome, _rows(plan))


def _rows(plan: BatchPlan) -> Iterator[Row]:
    for name, estimate, _ in _estimates(plan):
        yield {"figure": name.replace(" ", "_").replace("/", "_per_"), **cells_of(estimate)}


def _estimates(plan: BatchPlan) -> Iterator[_Figure]:
    prediction, goal = plan.prediction, plan.goal.partition("=")[0]
    yield "p50 ms", prediction.p50, lambda one: one.p50_ms
    yield "p99 ms", prediction.p99, lambda one: one.p99_ms
    if goal not in ("p50", "p99"):
        yield f"{goal} ms", prediction.goal, lambda one: one.goal_ms
    yield "requests/s", prediction.throughput, lambda one: one.throughput


def _setup_lines(plan: BatchPlan) -> Iterable[str]:
    load, policy = plan.load, plan.policy
    yield f"{plan.goal} at {load.rate:,.4g} requests/s, {load.arrivals} arrivals"
    for engine in plan.engines:
        yield f"  engine {engine.precision} {engine.artifact.plan.label}: {engine.artifact.path}"
    workers = counted(plan.workers, "worker")
    yield f"  {workers}, batches up to {policy.max_batch}, delay {policy.max_delay_ms:.3g} ms"
    if set(plan.buckets) != {0}:
        yield f"  requests are padded to length {', '.join(map(str, sorted(plan.buckets)))}"
    if plan.memory_bytes is not None:
        yield f"  {plan.memory_bytes / 2**20:,.0f} MiB of device memory at most"


def _figures(plan: BatchPlan) -> Table:
    verification = plan.verification
    runs = verification.runs if verification else ()
    columns: list[Column[_Figure]] = [
        Column("", lambda row: row[0]),
        Column("predicted", lambda row: row[1].value, ".3g"),
        Column("95 %", lambda row: f"{shown(row[1].low, '.3g')} to {shown(row[1].high, '.3g')}", ""),
    ]
    if verification is not None:
        typical = verification.typical
        columns += [
            Column(
                "measured" if len(runs) == 1 else f"median of {len(runs)} runs",
                lambda row: row[2](typical),
                ".3g",
            ),
            Column("in the interval", lambda row: _within(row, runs), ""),
            Column("off by", lambda row: row[2](typical) / row[1].value - 1, "+.1%"),
        ]
    title = f"predicted for a run of {plan.prediction.requests:,} requests"
    return table(title, columns, _estimates(plan))


def _within(row: _Figure, runs: Sequence[Served]) -> str:
    within = sum(row[1].holds(row[2](one)) for one in runs)
    return f"{within} of {len(runs)}" if len(runs) > 1 else "yes" if within else "no"


def _verified_lines(plan: BatchPlan, verification: Verification) -> Iterable[str]:
    lost = (
        f", {verification.rejected:,} rejected, {verification.failed:,} failed"
        if verification.rejected or verification.failed
        else ""
    )
    yield f"verified: {verification.answered:,} of {verification.requests:,} requests answered{lost}"
    aim, _, limit = plan.goal.partition("=")
    if len(verification.runs) > 1:
        yield f"{aim} of each run: {', '.join(shown(one.goal_ms, '.3g') for one in verification.runs)} ms"
    yield (
        f"{aim} of all was {shown(verification.total.goal_ms, '.3g')} ms, the goal is {limit}; the host was "
        f"late by {verification.total.lag_p99_ms:.3f} ms in the 99th percentile, which counts as latency"
    )
    if verification.typical.lag_p99_ms > _LATE_SHARE * plan.prediction.goal.value:
        yield "the host could not send requests as planned: the measurement says little about the plan"
    elif verification.typical.goal_ms > plan.prediction.goal.high:
        yield "that is above the prediction: the machine was disturbed, or engines ran slower than measured"
