"""The sampling loop: one pass over an engine in one mode under one contract."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from trtopt.device.api import Device, Session
from trtopt.errors import MeasurementError
from trtopt.measure.contracts import changed, one_in_flight
from trtopt.measure.lane import Inputs, Lane, Query, Slot
from trtopt.measure.stopping import Limits, Precision
from trtopt.measure.warmup import WarmUp
from trtopt.records import Contract, EngineRef, Measurement, Samples, Shape


@dataclass(frozen=True)
class Subject:
    """What is measured: an engine at one batch size, on this input data."""

    engine: EngineRef
    batch: int
    shapes: Mapping[str, Shape]
    data: Inputs


def measure(
    device: Device,
    session: Session,
    subject: Subject,
    contract: Contract,
    mode: Literal["latency", "throughput"],
    limits: Limits,
) -> Measurement:
    """Warm up, then sample until the limits are reached. No profiler or allocator may be attached.

    In latency mode one query is in flight; in throughput mode as many as the contract's queue and streams
    allow. All host work that is not the query's own is kept out of the loop.

    Raises:
        DeviceError: the device failed; everything opened has been closed.
        MeasurementError: no query finished.
    """
    terms = one_in_flight(contract) if mode == "latency" else contract
    notes: list[str] = []
    with ExitStack() as resources:
        lanes = _open_lanes(device, session, subject, terms, resources)
        refused = next((lane.graph_refused for lane in lanes if lane.graph_refused), None)
        if refused is not None:  # all lanes run on the same terms, or the result has none
            resources.close()
            terms = changed(terms, graph=False)
            notes.append(f"measured without a CUDA graph: {refused}")
            lanes = _open_lanes(device, session, subject, terms, resources)
        warm = WarmUp(min_s=limits.warmup_s, min_count=limits.min_warmups, max_s=limits.max_warmup_s)
        enough = Precision(
            limits.target,
            min_count=limits.min_queries,
            min_s=limits.min_duration_s,
            max_s=limits.duration_s,
        )
        with _no_garbage_collection():
            warmups = _sample(device, lanes, warm)
            samples = _sample(device, lanes, enough)
    if not samples.start_ms:
        raise MeasurementError("no query finished", "give the pass more time with --duration")
    return Measurement(
        mode=mode,
        contract=terms,
        engine=subject.engine,
        batch=subject.batch,
        shapes=dict(subject.shapes),
        samples=samples,
        warmups=warmups,
        warmup_reason=warm.reason,
        stop_reason=enough.reason,
        notes=tuple(notes),
    )


def _open_lanes(
    device: Device, session: Session, subject: Subject, terms: Contract, resources: ExitStack
) -> list[Lane]:
    lanes = []
    for _ in range(terms.streams):
        lanes.append(Lane(device, session, subject.shapes, subject.data, terms))
        resources.callback(lanes[-1].close)
    return lanes


class Criterion(Protocol):
    """Hears each query's latency in milliseconds and says when a pass may end."""

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; asked once a query, `elapsed_s` after its first one was handed over."""


def _sample(device: Device, lanes: list[Lane], criterion: Criterion) -> Samples:
    """Keep every slot of every lane busy until the criterion is met, then let all of them finish.

    The criterion is asked between a slot's queries: with one query in flight its work is never timed.
    """
    began_s = device.now()
    finished: list[tuple[int, Query]] = []
    rounds = _round_robin(lanes)
    while True:
        index, slot = next(rounds)
        if slot.busy:
            query = slot.finish()
            finished.append((index, query))
            criterion.add((query.end_s - query.start_s) * 1e3)
        if criterion.is_finished(device.now() - began_s):
            break
        slot.start()
    for _ in range(sum(len(lane.slots) for lane in lanes)):
        index, slot = next(rounds)
        if slot.busy:
            finished.append((index, slot.finish()))
    return _as_samples(finished, began_s)


def _round_robin(lanes: list[Lane]) -> Iterator[tuple[int, Slot]]:
    depth = len(lanes[0].slots)
    while True:
        for slot in range(depth):
            for index, lane in enumerate(lanes):
                yield index, lane.slots[slot]


def _as_samples(finished: list[tuple[int, Query]], began_s: float) -> Samples:
    """Columns, rounded to the nanosecond: no clock here resolves more, and result files stay small."""
    queries = [query for _, query in finished]
    return Samples(
        start_ms=[round((query.start_s - began_s) * 1e3, 6) for query in queries],
        end_ms=[round((query.end_s - began_s) * 1e3, 6) for query in queries],
        enqueue_ms=[round(query.enqueue_ms, 6) for query in queries],
        gpu_compute_ms=[round(query.gpu_compute_ms, 6) for query in queries],
        h2d_ms=[round(query.h2d_ms, 6) for query in queries if query.h2d_ms is not None],
        d2h_ms=[round(query.d2h_ms, 6) for query in queries if query.d2h_ms is not None],
        lane=[lane for lane, _ in finished],
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Python's collector must not run inside the timed region."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
