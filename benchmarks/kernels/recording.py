"""What a driver's tracer tells of a few inferences of an engine, raw: to develop the join of kernels on.

    python benchmarks/kernels/recording.py FOLDER BATCH OUT.json.gz [WAY …]

Several ways of running it, each with what that way alone tells:

    graph     replays of a CUDA graph
    plain     enqueued anew each time, with the calls of the driver
    profiled  with TensorRT's profiler attached, whose events lie between layers
    nvtx      with TensorRT's NVTX ranges, one per layer (CUPTI must be what NVTX injects)
    synced    with a synchronisation after each layer

A way that fails is told by its traceback. Names stand once, in `names`; records are rows, see `ROWS`.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from trtopt.data.random_inputs import random_batch
from trtopt.device.api import Context, Device, Stream
from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.measure.loop.inference_stream import device_buffers, fill, host_buffers

RUNS = 3
WARM_RUNS = 5
KERNELS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
CALLS = ("DRIVER",)
WAYS = {
    "graph": KERNELS,
    "plain": (*KERNELS, *CALLS),
    "profiled": (*KERNELS, *CALLS),
    "nvtx": (*KERNELS, *CALLS, "MARKER"),
    "synced": (*KERNELS, *CALLS, "SYNCHRONIZATION"),
}
ROWS = {
    "kernel": [
        "kind",
        "name",
        "start",
        "end",
        "correlation",
        "stream",
        "graph_node",
        "grid",
        "block",
        "registers",
        "static",
        "dynamic",
    ],
    "copy": ["kind", "name", "start", "end", "correlation", "stream", "graph_node", "bytes"],
    "call": ["kind", "name", "start", "end", "correlation", "thread"],
    "sync": ["kind", "name", "start", "end", "correlation", "stream"],
    "marker": ["kind", "name", "at", "id", "flags", "thread", "domain"],
}
"""The columns of each kind of row; a call's name is its CUPTI callback id; nanoseconds count from the way's
first record of all."""


class Recorder:
    """Rows of the kinds asked for."""

    def __init__(self, kinds: Iterable[str]) -> None:
        from cupti import cupti

        self._cupti = cupti
        self._rows: list[list[Any]] = []
        self._failures: list[str] = []
        self._kinds = [int(getattr(cupti.ActivityKind, kind)) for kind in kinds]
        self._names = {int(kind): kind.name for kind in cupti.ActivityKind}
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._receive)
        for kind in self._kinds:
            cupti.activity_enable(kind)

    def _receive(self, activities: Iterable[Any]) -> None:
        for one in activities:
            try:
                self._rows.append(self._row(one))
            except Exception:  # noqa: BLE001  # a record of a surprising form is told, and no other is lost
                self._failures.append(traceback.format_exc(limit=2))

    def _row(self, one: Any) -> list[Any]:
        kind = self._names[int(one.kind)]
        if kind in ("CONCURRENT_KERNEL", "KERNEL"):
            return [
                "kernel", str(one.name), int(one.start), int(one.end), int(one.correlation_id),
                int(one.stream_id), int(one.graph_node_id),
                [int(one.grid_x), int(one.grid_y), int(one.grid_z)],
                [int(one.block_x), int(one.block_y), int(one.block_z)],
                int(one.registers_per_thread), int(one.static_shared_memory), int(one.dynamic_shared_memory),
            ]  # fmt: skip
        if kind in ("MEMCPY", "MEMSET"):
            name = self._cupti.ActivityMemcpyKind(one.copy_kind).name if kind == "MEMCPY" else "memset"
            return [
                "copy", name, int(one.start), int(one.end), int(one.correlation_id),
                int(one.stream_id), int(one.graph_node_id), int(one.bytes),
            ]  # fmt: skip
        if kind in CALLS:
            row = [int(one.start), int(one.end), int(one.correlation_id), int(one.thread_id)]
            return ["call", str(int(one.cbid)), *row]
        if kind == "SYNCHRONIZATION":
            row = [int(one.start), int(one.end), int(one.correlation_id), int(one.stream_id)]
            return ["sync", str(int(one.type)), *row]
        if kind == "MARKER":
            name = "" if one.name is None else str(one.name)
            thread = getattr(one.object_id, "threadId", None)
            row = [int(one.timestamp), int(one.id), int(one.flags_), None if thread is None else int(thread)]
            return ["marker", name, *row, None if one.domain is None else str(one.domain)]
        return ["other", kind, 0, 0]

    def record(self, work: Callable[[], None]) -> list[list[Any]]:
        """The rows of what `work` does and waits for."""
        self._cupti.activity_flush_all(1)
        self._rows.clear()
        work()
        self._cupti.activity_flush_all(1)
        found, self._rows = self._rows, []
        return sorted(found, key=lambda row: row[2])

    def failures(self) -> list[str]:
        """What could not be read, once each."""
        return list(dict.fromkeys(self._failures))

    def close(self) -> None:
        """Record nothing more."""
        for kind in self._kinds:
            self._cupti.activity_disable(kind)


def recorded(device: Device, context: Context, stream: Stream, way: str) -> dict[str, Any]:
    """The runs of one way."""
    layers: list[tuple[str, float]] = []
    with ExitStack() as resources:
        recorder = resources.enter_context(closing(Recorder(WAYS[way])))
        context.enqueue(stream)
        stream.synchronize()
        launch: Callable[[], None] = lambda: context.enqueue(stream)  # noqa: E731
        if way == "graph":
            graph = resources.enter_context(closing(device.capture(stream, launch)))
            launch = graph.launch
        if way == "profiled":
            context.report_layers(lambda name, ms: layers.append((name, ms)))
        if way == "synced":
            context._context.debug_sync = True  # of TensorRT's own context; nothing else has it

        def run() -> None:
            launch()
            stream.synchronize()

        for _ in range(WARM_RUNS):
            run()
        layers.clear()
        runs = [recorder.record(run) for _ in range(RUNS)]
        found: dict[str, Any] = {"runs": runs, "failures": recorder.failures()}
    if layers:
        found["layers"] = layers
    return found


def record_all(folder: Path, batch: int, ways: Iterable[str]) -> dict[str, Any]:
    """All ways of one engine, each with a context of its own."""
    engine = next(one for one in read_manifest(folder).engines if one.plan.batch.max == (batch,))
    shapes = {name: shape.opt for name, shape in engine.plan.shapes.items()}
    found: dict[str, Any] = {"rows": ROWS, "ways": {}, "batch": batch}
    with ExitStack() as resources:
        target = resources.enter_context(closing(open_target("tensorrt")))
        content = read_verified(folder / engine.path, engine.sha256)
        session = resources.enter_context(closing(target.load(content)))
        device = target.device
        found["device"] = device.info.name
        for way in ways:
            try:
                with ExitStack() as own:
                    context = own.enter_context(closing(session.context(shapes)))
                    if way == "nvtx":
                        context.emit_ranges()
                    stream = own.enter_context(closing(device.stream()))
                    buffers = device_buffers(device, context.bindings, own)
                    data = random_batch(session.inputs, shapes)
                    host = host_buffers(device, context.bindings, data, own)
                    fill(device, context.bindings, buffers, host, stream)
                    context.bind(buffers)
                    found["ways"][way] = recorded(device, context, stream, way)
                    if way == "profiled":
                        found["inspector"] = context.inspect()
            except Exception:  # noqa: BLE001  # each way stands alone
                found["ways"][way] = {"failed": traceback.format_exc()}
    return found


def compact(found: dict[str, Any]) -> bytes:
    """Names by number, times from each way's first."""
    names: dict[str, int] = {}
    for way in found["ways"].values():
        rows = [row for run in way.get("runs", ()) for row in run]
        origin = min((row[2] for row in rows), default=0)
        for row in rows:
            row[1] = names.setdefault(row[1], len(names))
            row[2] -= origin
            if row[0] != "marker":
                row[3] -= origin
        way["origin"] = origin
    text = json.dumps({**found, "names": list(names)}, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def main() -> None:
    """Record and write."""
    folder, batch, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    found = record_all(folder, batch, sys.argv[4:] or WAYS)
    scratch = out.with_suffix(".part")
    scratch.write_bytes(compact(found))
    scratch.replace(out)
    for way, told in found["ways"].items():
        counts = [len(run) for run in told.get("runs", ())]
        print(f"{way}: {counts or told['failed'].splitlines()[-1]}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # CUPTI's own ending is not what is asked


if __name__ == "__main__":
    main()
