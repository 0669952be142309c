"""trtopt's passes against a bare CUDA-graph replay loop, alternating in one process.

    python docs/measurements/trust/bare_loop.py BUILD_FOLDER OUT.json

For every engine of the folder: host latency of a replay that is waited for at once, and replays a second
with one queued ahead. The bare loop launches the graph through the CUDA binding and does nothing else.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trtopt.device.api import Device, Session
from trtopt.device.backends import open_target
from trtopt.inputs import random_batch
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop import Subject, measure
from trtopt.measure.stopping import Limits
from trtopt.records import EngineRef, Shape
from trtopt.workspace import read_manifest, read_verified

ROUNDS = 7
SECONDS = 0.7


class BareLoop:
    """One engine's graph and what it takes to replay it."""

    def __init__(self, device: Device, session: Session, shapes: dict[str, Shape]) -> None:
        self._resources = ExitStack()
        context = self._keep(session.context(shapes))
        self._stream = self._keep(device.stream())
        context.bind({b.name: self._keep(device.device_buffer(b.nbytes)) for b in context.bindings})
        context.enqueue(self._stream)
        self._stream.synchronize()
        graph = self._keep(device.capture(self._stream, lambda: context.enqueue(self._stream)))
        self._events = [self._keep(device.event()) for _ in range(2)]
        launch, executable, handle = graph._launch, graph._executable, self._stream.handle
        self._replay: Callable[[], Any] = lambda: launch(executable, handle)

    def _keep(self, resource: Any) -> Any:
        self._resources.callback(resource.close)
        return resource

    def latency_ms(self) -> float:
        """Median host milliseconds from before a launch to the stream's end."""
        times = []
        end = time.perf_counter() + SECONDS
        while (before := time.perf_counter()) < end:
            self._replay()
            self._stream.synchronize()
            times.append((time.perf_counter() - before) * 1e3)
        return statistics.median(times)

    def queries_per_s(self) -> float:
        """Replays a second with one queued ahead of the one that is waited for."""
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS or count % 2:
            event = self._events[count % 2]
            if count >= 2:
                event.wait()
            self._replay()
            event.record(self._stream)
            count += 1
        self._stream.synchronize()
        return count / (time.perf_counter() - began)

    def close(self) -> None:
        """Give everything back."""
        self._resources.close()


def compare(device: Device, session: Session, subject: Subject) -> dict[str, Any]:
    """Rounds of both, alternating."""
    contract = contract_named("trtexec-11")
    limits = Limits(warmup_s=0.2, duration_s=SECONDS)
    rows: dict[str, list[float]] = {name: [] for name in ("bare_ms", "trtopt_ms", "bare_qps", "trtopt_qps")}
    for _ in range(ROUNDS):
        bare = BareLoop(device, session, dict(subject.shapes))
        bare.latency_ms()
        rows["bare_ms"].append(bare.latency_ms())
        rows["bare_qps"].append(bare.queries_per_s())
        bare.close()
        latency = measure(device, session, subject, contract, "latency", limits)
        rows["trtopt_ms"].append(statistics.median(latency.samples.latency_ms))
        throughput = measure(device, session, subject, contract, "throughput", limits)
        samples = throughput.samples
        rows["trtopt_qps"].append(len(samples.start_ms) / samples.wall_ms * 1e3)
    median = {name: statistics.median(values) for name, values in rows.items()}
    return {
        "batch": subject.batch,
        **rows,
        "latency_difference_us": (median["trtopt_ms"] - median["bare_ms"]) * 1e3,
        "throughput_ratio": median["trtopt_qps"] / median["bare_qps"],
    }


def main(folder: str, out: str) -> None:
    """All engines of a folder."""
    target = open_target("tensorrt")
    results = []
    for artifact in read_manifest(Path(folder)).engines:
        session = target.load(read_verified(Path(folder) / artifact.path, artifact.sha256))
        shapes = {name: wanted.min for name, wanted in artifact.plan.shapes.items()}
        ref = EngineRef(path=artifact.path, sha256=artifact.sha256, label=artifact.plan.label)
        data = random_batch(session.inputs, shapes)
        results.append(
            compare(target.device, session, Subject(ref, artifact.plan.batch.min[0], shapes, data))
        )
        session.close()
        print({key: value for key, value in results[-1].items() if not isinstance(value, list)})
    binding = target.device.info.binding
    target.close()
    Path(out).write_text(json.dumps({"binding": binding, "engines": results}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
