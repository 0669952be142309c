"""A profile in the Trace Event Format that Perfetto and chrome://tracing read.

Times are microseconds. Layers follow one another, each as long as its median: the profiler reports durations,
not start times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from trtopt.records import EngineProfile, KernelReport, KernelRow, ProfileReport, Record
from trtopt.report.view import cells_of

_COMPUTE, _HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2, 3
TRACE_BEGINS = b'{"otherData": {"generator": "trtopt"}, '
_KERNELS = 16
"""The first of the tracks of kernels, one for each stream."""

Event = dict[str, Any]


def trace(report: ProfileReport) -> bytes:
    """The whole report as one JSON file, with a process per engine."""
    events = [
        {**event, "pid": number}
        for number, engine in enumerate(report.engines, 1)
        for event in _engine_events(engine)
    ]
    return TRACE_BEGINS + json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()[1:] + b"\n"


def _engine_events(engine: EngineProfile) -> Iterator[Event]:
    yield _named("process_name", 0, f"{engine.engine.label}, batch {engine.batch}")
    yield _named("thread_name", _COMPUTE, "layers")
    start_ms = 0.0
    if engine.h2d_ms:
        yield _named("thread_name", _HOST_TO_DEVICE, "host to device")
        yield _slice("copy to the device", "copy", _HOST_TO_DEVICE, 0.0, engine.h2d_ms, {})
        start_ms = engine.h2d_ms
    for layer in engine.layers:
        if layer.ms is not None:
            kind = "reformat" if layer.is_reformat else "layer"
            cost = {} if layer.cost is None else cells_of(layer.cost)
            arguments = _arguments(layer, onnx_nodes=layer.onnx_nodes, **cost)
            yield _slice(layer.name, kind, _COMPUTE, start_ms, layer.ms, arguments)
            start_ms += layer.ms
    if engine.d2h_ms:
        yield _named("thread_name", _DEVICE_TO_HOST, "device to host")
        yield _slice("copy to the host", "copy", _DEVICE_TO_HOST, start_ms, engine.d2h_ms, {})
    if engine.memory is not None:
        for at_ms, live in zip(engine.memory.at_ms, engine.memory.live_bytes, strict=True):
            counted = {"bytes": live}
            yield {"name": "live bytes (memory pass)", "ph": "C", "ts": at_ms * 1e3, "args": counted}
    if engine.kernels is not None:
        yield from _kernels(engine.kernels)


def _kernels(kernels: KernelReport) -> Iterator[Event]:
    """Kernels at the times at which they ran, counted from the first; a track for each stream.

    Slices of one track must not overlap: what starts before the one in front has ended has another track.
    """
    lanes = _lanes(kernels.rows)
    tracks = {lane: _KERNELS + number for number, lane in enumerate(dict.fromkeys(lanes))}
    for (stream, depth), track in tracks.items():
        name = f"kernels, stream {stream}" + (", overlapping" if depth else "")
        yield _named("thread_name", track, name)
    for row, lane in zip(kernels.rows, lanes, strict=True):
        arguments = _arguments(row, nodes=row.nodes, grid=row.grid, block=row.block)
        yield _slice(row.name, row.family, tracks[lane], row.start_ms, row.ms, arguments)


def _lanes(rows: Sequence[KernelRow]) -> list[tuple[int, int]]:
    """For each launch, in the order of starts, its stream and the first track of it that is free."""
    ends: dict[tuple[int, int], float] = {}
    found = []
    for row in rows:
        depths = (depth for depth in count() if ends.get((row.stream, depth), row.start_ms) <= row.start_ms)
        lane = (row.stream, next(depths))
        ends[lane] = row.start_ms + row.ms
        found.append(lane)
    return found


def _arguments(record: Record, **rest: object) -> Event:
    """A record's fields, by their names, as far as they are known."""
    return {name: value for name, value in (cells_of(record) | rest).items() if value not in ("", None, ())}


def _slice(name: str, category: str, track: int, start_ms: float, ms: float, arguments: Event) -> Event:
    times = {"ts": start_ms * 1e3, "dur": ms * 1e3}
    return {"name": name, "cat": category, "ph": "X", "tid": track, **times, "args": arguments}


def _named(what: str, track: int, name: str) -> Event:
    return {"name": what, "ph": "M", "tid": track, "args": {"name": name}}
