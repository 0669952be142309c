"""A plan in words and figures: what is predicted, what was rejected and why, and how it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.records import BatchPlan, Estimate, PackingEstimate, Served, Verification
from trtopt.report.tables import plain_table

_MOST_REJECTED = 12
_LATE_SHARE = 0.1
"""A host that is later than in rehearsals, by this share of the latency predicted, is what was measured."""


def plan_text(plan: BatchPlan) -> RenderableType:
    """The whole of it."""
    parts: list[RenderableType] = [Text(line) for line in _setup_lines(plan)]
    parts.append(_figures(plan))
    parts += [Text(line) for line in _packing_lines(plan.packing)]
    if plan.verification is not None:
        parts += [Text(line) for line in _verified_lines(plan, plan.verification)]
    parts += [Text(line) for line in _rejected_lines(plan)]
    parts += [Text(f"note: {note}") for note in plan.notes]
    return Group(*parts)


def _setup_lines(plan: BatchPlan) -> Iterable[str]:
    load, policy = plan.load, plan.policy
    yield f"{plan.goal} at {load.rate:,.4g} requests/s, {load.arrivals} arrivals"
    for engine in plan.engines:
        yield f"  engine {engine.precision} {engine.artifact.plan.label}: {engine.artifact.path}"
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
    yield f"  {workers}, batches up to {policy.max_batch}, delay {policy.max_delay_ms:.3g} ms"
    if set(plan.buckets) != {0}:
        yield f"  requests are padded to length {', '.join(map(str, sorted(plan.buckets)))}"
    if plan.memory_bytes is not None:
        yield f"  {plan.memory_bytes / 2**20:,.0f} MiB of device memory at most"
    cost = plan.serving_cost
    yield (
        f"  serving adds {cost.batch_ms * 1e3:.0f} µs a batch and {cost.request_ms * 1e3:.1f} µs a request "
        "to what engines take"
    )
    told = {
        "a worker wakes after": cost.wake_ms,
        "a request is handed over after": cost.late_ms,
        "a batch takes longer by": cost.jitter_ms,
    }
    if scattered := [f"{what} {_middle_and_tail(values)}" for what, values in told.items() if values]:
        yield f"  {', '.join(scattered)} (p50, p99)"
    if cost.beyond:
        factors = ", ".join(f"p{one.p:g} {one.factor:.2f}" for one in cost.beyond)
        yield f"  rehearsed with {cost.from_trials:,} requests; over what was simulated of them: {factors}"
    if one := cost.held_up:
        figure = f"p{one.p:g} was {one.factor:.2f} times what was simulated"
        yield f"  one process more was held up and does not count: {figure}"


def _middle_and_tail(values_ms: Sequence[float]) -> str:
    middle, tail = np.quantile(values_ms, [0.5, 0.99]) * 1e3
    return f"{middle:,.0f}, {tail:,.0f} µs"


def _figures(plan: BatchPlan) -> RenderableType:
    told, done = plan.prediction, plan.verification
    table = plain_table(
        f"predicted for a run of {told.requests:,} requests",
        f"the interval is that of 95 of 100 such runs; workers are busy {told.busy:.0%} of the time with "
        f"batches of {told.mean_batch:.1f} requests on average",
    )
    runs = len(done.runs) if done else 0
    measured_in = "measured" if runs == 1 else f"median of {runs} runs"
    columns = ["", "predicted", "95 %", *([measured_in, "in the interval", "off by"] if done else [])]
    for name in columns:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    goal = plan.goal.partition("=")[0]
    rows: list[tuple[str, Estimate, Callable[[Served], float]]] = [
        ("p50 ms", told.p50, lambda one: one.p50_ms),
        ("p99 ms", told.p99, lambda one: one.p99_ms),
        ("requests/s", told.throughput, lambda one: one.throughput),
    ]
    if goal not in ("p50", "p99"):
        rows.insert(2, (f"{goal} ms", told.goal, lambda one: one.goal_ms))
    for name, estimate, figure in rows:
        interval = f"{_figure(estimate.low)} to {_figure(estimate.high)}"
        cells = [name, _figure(estimate.value), interval]
        if done is not None:
            measured = figure(done.typical)
            held = sum(estimate.holds(figure(one)) for one in done.runs)
            held_told = f"{held} of {runs}" if runs > 1 else "yes" if held else "no"
            cells += [_figure(measured), held_told, f"{measured / estimate.value - 1:+.1%}"]
        table.add_row(*cells)
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _verified_lines(plan: BatchPlan, done: Verification) -> Iterable[str]:
    lost = f", {done.rejected:,} rejected, {done.failed:,} failed" if done.rejected or done.failed else ""
    yield f"verified: {done.answered:,} of {done.requests:,} requests answered{lost}"
    aim, _, limit = plan.goal.partition("=")
    if len(done.runs) > 1:
        yield f"{aim} of each run: {', '.join(_figure(one.goal_ms) for one in done.runs)} ms"
    yield (
        f"{aim} of all was {_figure(done.total.goal_ms)} ms, the goal is {limit}; the host was late by "
        f"{done.total.lag_p99_ms:.3f} ms in the 99th percentile, which counts as latency"
    )
    late_ms = plan.serving_cost.late_ms or (0.0,)  # which the prediction has in it
    later_ms = done.typical.lag_p99_ms - float(np.quantile(late_ms, 0.99))
    if later_ms > _LATE_SHARE * plan.prediction.goal.value:
        yield "the host could not send requests as planned: what was measured says little of the plan"
    elif done.typical.goal_ms > plan.prediction.goal.high:
        yield "that is above the prediction: the machine was disturbed, or engines ran slower than measured"


def _packing_lines(packing: PackingEstimate | None) -> Iterable[str]:
    if packing is None:
        return
    yield (
        f"packing, estimated: {packing.padding_before:.0%} of the tokens computed are padding; with up to "
        f"{packing.most} sequences in rows of {packing.row}, packed {packing.window} requests at a time, "
        f"{packing.padding_after:.0%}, at {packing.requests_per_row:.2f} requests a row"
    )
    gain = packing.capacity_after / packing.capacity_before - 1
    capacities = f"{packing.capacity_before:,.0f} to {packing.capacity_after:,.0f} requests/s"
    yield (
        f"  capacity {capacities} ({gain:+.0%}), if rows take as long packed as they were measured to: it "
        "takes a model that keeps the sequences of a row apart, and nobody measured that one"
    )


def _rejected_lines(plan: BatchPlan) -> Iterable[str]:
    if plan.rejected:
        yield "rejected:"
    for one in sorted(plan.rejected, key=lambda one: -one.count)[:_MOST_REJECTED]:
        others = f" (and {one.count - 1:,} more for like reasons)" if one.count > 1 else ""
        yield f"  {one.setup}: {one.reason}{others}"
