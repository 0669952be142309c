"""What serving adds to the latencies that engines were measured with, found out before a plan is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from trtopt.errors import DeviceError, IncompatibleEngineError
from trtopt.jobs import Costed
from trtopt.pipeline.listener import SILENT
from trtopt.pipeline.measured_engines import Measured
from trtopt.plan.service import Costs, Curve, Service, added_ms, at_level
from trtopt.records import ServingCost
from trtopt.runtime.choosing import Chooser, Offer
from trtopt.runtime.rehearsal import Rehearsed
from trtopt.runtime.trial import CostJob
from trtopt.supervisor import run_jobs

_PARTS = 200
"""Of what scatters, half a percent each."""


def serving_costs(
    measured: Measured, rate: float | None, limit_s: float | None, trust: Sequence[str]
) -> tuple[dict[int, ServingCost], list[str]]:
    """By number of workers, as many as engines were measured with, on one folder's engines; and notes.

    Workers share the interpreter and the host's memory: what one adds says little of two. What scatters is
    seen at `rate` requests a second, or at less where that is much for these engines. Nothing and a note if
    the engines cannot run here.
    """
    engine = measured.engines[0]
    folder, length = measured.folders[engine.sha256], min(engine.curves)
    counts = sorted({1, *(many for one in measured.engines for many in one.levels)})
    curves = [
        curve
        for one in measured.engines
        if measured.folders[one.sha256] == folder
        for curve in one.curves.get(length, ())
    ]
    batches = {workers: found for workers in counts if (found := _comparable(curves, workers))}
    job = CostJob(
        path=str(folder.absolute()),
        backend=measured.artifacts[engine.sha256].plan.backend.name,
        sample=dict(measured.buckets[length]),
        requests={workers: tuple(found) for workers, found in batches.items()},
        rate=rate,
        trust=tuple(trust),
    )
    try:
        ((_, result),) = run_jobs([job], limit_s=limit_s, on_progress=SILENT.progress)
    except (DeviceError, IncompatibleEngineError) as error:
        told = error.problem.splitlines()[0]
        return {1: ServingCost()}, [f"what serving adds is not known and taken for nothing: {told}"]
    assert isinstance(result, Costed)
    here, there = result.environment, measured.environment
    notes = []
    if (here.device.name, here.cpu) != (there.device.name, there.cpu):
        notes.append(
            f"measured on {there.device.name}, {there.cpu}; planned on {here.device.name}, {here.cpu}"
        )
    costs = {workers: _cost(result.full_ms[workers], found) for workers, found in batches.items()}
    return scattered(costs, _as_opened(curves), result.rehearsed), notes


def _as_opened(curves: Sequence[Curve]) -> Service:
    """Engines as a pool runs them that was opened without measurements: by their sizes alone."""
    return Service(curves, chooser=Chooser([Offer(curve.low, curve.high) for curve in curves]))


def _cost(serving_ms: Mapping[int, Sequence[float]], engine_ms: Mapping[int, float]) -> ServingCost:
    """What batches of these sizes take beyond what engines were measured to take."""
    added = [float(np.median(serving_ms[batch])) - ms for batch, ms in engine_ms.items()]
    return _line(list(engine_ms), added)


def scattered(costs: Costs, bare: Service, rehearsed: Mapping[int, Rehearsed]) -> dict[int, ServingCost]:
    """With what scattered in rehearsals, beyond what `bare` engines take and `costs` add at full load.

    A batch took that much longer, or shorter, on average: this goes into `batch_ms`, for capacities, too.
    """
    found = {}
    for workers, seen in rehearsed.items():
        cost = costs[workers]
        longer_ms = [
            ms - bare.typical_ms(requests, running) - added_ms(at_level(costs, running), requests)
            for requests, running, ms in seen.batches
        ]
        batch_ms = max(0.0, cost.batch_ms + float(np.mean(longer_ms)))
        found[workers] = msgspec.structs.replace(
            cost,
            batch_ms=batch_ms,
            jitter_ms=evenly([ms - (batch_ms - cost.batch_ms) for ms in longer_ms]),
            wake_ms=evenly(seen.wake_ms),
            late_ms=evenly(seen.late_ms),
        )
    return found


def evenly(values: Sequence[float]) -> tuple[float, ...]:
    """At most `_PARTS` values for all of them, in order: means of equal parts, so that theirs is the same."""
    parts = np.array_split(np.sort(np.asarray(values, np.float64)), min(_PARTS, len(values)) or 1)
    return tuple(round(float(part.mean()), 4) for part in parts if part.size)


def _comparable(curves: Sequence[Curve], workers: int) -> dict[int, float]:
    """Batches with their medians where so many run: the smallest, a middle one and the largest."""
    found = {
        batch: float(np.median(values))
        for curve in curves
        for batch, values in curve.samples_ms.get(workers, {}).items()
    }
    sizes = sorted(found)
    chosen = {sizes[at] for at in (0, len(sizes) // 2, -1)} if sizes else set()
    return {size: found[size] for size in sorted(chosen)}


def _line(batches: Sequence[int], added_ms: Sequence[float]) -> ServingCost:
    """The line of least squares through what was added, neither part of it below 0."""
    if len(batches) == 1:
        return ServingCost(request_ms=max(0.0, added_ms[0] / batches[0]))
    slope, start = (float(value) for value in np.polyfit(batches, added_ms, 1))
    if slope < 0:
        return ServingCost(batch_ms=max(0.0, float(np.mean(added_ms))))
    if start < 0:
        through_zero = float(np.dot(batches, added_ms) / np.dot(batches, batches))
        return ServingCost(request_ms=max(0.0, through_zero))
    return ServingCost(batch_ms=start, request_ms=slope)
