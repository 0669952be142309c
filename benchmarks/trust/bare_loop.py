"""trtopt's sampling loop against bare replay loops over the same CUDA graph, in turns in one process.

    python benchmarks/trust/bare_loop.py BUILD_FOLDER OUT.json

For every engine of the folder: host latency of a replay that is waited for at once, and replays a second with
one queued ahead. The bare loops launch the lane's own graph through the CUDA binding and do nothing else;
they differ in how the host learns that a replay has ended, and in what else is recorded. All look at the
status that a launch returns. Each round is a context of its own: contexts of one engine differ by more than
the loops do.
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

from trtopt.data.random_inputs import random_batch
from trtopt.device.api import Device
from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.sampling import Subject, Until, no_garbage_collection, sample, terms_of
from trtopt.records import EngineRef

ROUNDS = 5
TURNS = 3
SECONDS = 0.12
MIN_QUERIES = 20


class Bare:
    """Loops around one lane's graph; events are recorded after each replay, `before` also before it."""

    def __init__(self, device: Device, inference_stream: InferenceStream, resources: ExitStack) -> None:
        (self._replay,), self._wait = inference_stream.bare()
        self._stream = inference_stream._streams.compute
        self._events = {
            kind: [device.event(timed=kind == "timed") for _ in range(4)] for kind in ("untimed", "timed")
        }
        for events in self._events.values():
            for event in events:
                resources.callback(event.close)

    def latency_ms(self) -> float:
        """Waits for the stream."""
        return _median(self._replay, self._wait)

    def latency_of_event_ms(self, kind: str) -> float:
        """Waits for an event."""
        end, stream = self._events[kind][0], self._stream

        def replay() -> None:
            self._replay()
            end.record(stream)

        return _median(replay, end.wait)

    def latency_of_pair_ms(self) -> float:
        """Two timed events around the replay."""
        (start, end, *_), stream = self._events["timed"], self._stream

        def replay() -> None:
            start.record(stream)
            self._replay()
            end.record(stream)

        return _median(replay, end.wait)

    def queries_per_s(self, kind: str, before: bool = False) -> float:
        """One queued ahead of the one that is waited for; with `before`, an event before each replay."""
        events, stream = self._events[kind], self._stream
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS or count % 2 or count < MIN_QUERIES:
            end = events[count % 2]
            if count >= 2:
                end.wait()
            if before:
                events[2 + count % 2].record(stream)
            self._replay()
            end.record(stream)
            count += 1
        stream.synchronize()
        return count / (time.perf_counter() - began)


def _median(replay: Callable[[], Any], wait: Callable[[], Any]) -> float:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < MIN_QUERIES or time.perf_counter() < end:
        before = time.perf_counter()
        replay()
        wait()
        times.append((time.perf_counter() - before) * 1e3)
    return statistics.median(times)


def one_round(subject: Subject) -> dict[str, list[float]]:
    """All loops, in turns, on one context."""
    contract = contract_named("trtexec-11")
    with ExitStack() as resources:
        inference_streams = {}
        for mode in ("latency", "throughput"):
            terms = terms_of(mode, contract)  # type: ignore[arg-type]
            inference_streams[mode] = InferenceStream(subject.session, subject.shapes, subject.data, terms)
            resources.callback(inference_streams[mode].close)
        latency, throughput = (
            Bare(subject.session.device, inference_stream, resources)
            for inference_stream in inference_streams.values()
        )

        def trtopt_ms() -> float:
            samples = sample([inference_streams["latency"]], Until(MIN_QUERIES, SECONDS))
            return statistics.median(samples.latency_ms)

        def trtopt_qps() -> float:
            samples = sample([inference_streams["throughput"]], Until(MIN_QUERIES, SECONDS))
            return len(samples.start_ms) / samples.wall_ms * 1e3

        loops: dict[str, Callable[[], float]] = {
            "bare_ms": latency.latency_ms,
            "bare_untimed_event_ms": lambda: latency.latency_of_event_ms("untimed"),
            "bare_timed_event_ms": lambda: latency.latency_of_event_ms("timed"),
            "bare_timed_pair_ms": latency.latency_of_pair_ms,
            "trtopt_ms": trtopt_ms,
            "bare_qps": lambda: throughput.queries_per_s("untimed"),
            "bare_timed_event_qps": lambda: throughput.queries_per_s("timed"),
            "bare_timed_pair_qps": lambda: throughput.queries_per_s("timed", before=True),
            "trtopt_qps": trtopt_qps,
        }
        latency.latency_ms()
        throughput.queries_per_s("untimed")
        turns = [{name: loop() for name, loop in loops.items()} for _ in range(TURNS)]
    return {name: [turn[name] for turn in turns] for name in loops}


def compare(subject: Subject) -> dict[str, Any]:
    """Rounds on contexts of their own; differences and ratios are within a turn."""
    with no_garbage_collection():
        rounds = [one_round(subject) for _ in range(ROUNDS)]
    rows = {name: [value for one in rounds for value in one[name]] for name in rounds[0]}
    microseconds = {
        name: statistics.median(
            (value - base) * 1e3 for value, base in zip(values, rows["bare_ms"], strict=True)
        )
        for name, values in rows.items()
        if name.endswith("_ms")
    }
    ratios = {
        name: statistics.median(value / base for value, base in zip(values, rows["bare_qps"], strict=True))
        for name, values in rows.items()
        if name.endswith("_qps")
    }
    return {"batch": subject.batch, "over_bare_us": microseconds, "of_bare": ratios, "raw": rows}


def main(folder: str, out: str) -> None:
    """All engines of a folder."""
    target = open_target("tensorrt")
    results = []
    for artifact in read_manifest(Path(folder)).engines:
        session = target.load(read_verified(Path(folder) / artifact.path, artifact.sha256))
        shapes = {name: wanted.min for name, wanted in artifact.plan.shapes.items()}
        ref = EngineRef(path=artifact.path, sha256=artifact.sha256, label=artifact.plan.label)
        data = random_batch(session.inputs, shapes)
        results.append(compare(Subject(session, ref, artifact.plan.batch.min[0], shapes, data)))
        session.close()
        print({key: value for key, value in results[-1].items() if key != "raw"}, flush=True)
    binding = target.device.info.binding
    target.close()
    Path(out).write_text(json.dumps({"binding": binding, "engines": results}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
