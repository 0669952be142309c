"""What copies inside and outside of a CUDA graph cost: each engine of a build, launched three ways in turns.

    python benchmarks/runtime/launching.py FOLDER [--rounds 9] [--json FILE]

`inference`: a graph of the inference alone. `copies around`: the same, and a call for each input and output
before and after it. `copies inside`: a graph of all of that, as `trtopt.serving` launches. Microseconds until
the last call has come back (`calls`), and until the answer is there (`done`); medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from trtopt.device.api import Device, Session
from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.records import EngineArtifact

WARM, TIMES = 10, 100


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    engines = read_manifest(request.folder).engines
    found = {}
    with closing(open_target(engines[0].plan.backend.name)) as target:
        for engine in engines:
            with ExitStack() as resources:
                session = resources.enter_context(
                    closing(target.load(read_verified(request.folder / engine.path, engine.sha256)))
                )
                found[engine.plan.label] = measured(target.device, session, engine, request.rounds, resources)
    print(json.dumps(found, indent=2))
    if request.json:
        request.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measured(
    device: Device, session: Session, engine: EngineArtifact, rounds: int, resources: ExitStack
) -> dict[str, dict[str, float]]:
    """By way: medians of microseconds."""
    shapes = {name: shape.opt for name, shape in engine.plan.shapes.items()}
    context = resources.enter_context(closing(session.context(shapes)))
    stream = resources.enter_context(closing(device.stream()))
    hosts = {one.name: device.pinned_buffer(one.nbytes) for one in context.bindings}
    buffers = {one.name: device.device_buffer(one.nbytes) for one in context.bindings}
    for buffer in (*hosts.values(), *buffers.values()):
        resources.callback(buffer.close)
    context.bind(buffers)

    def send() -> None:
        for one in context.bindings:
            if one.is_input:
                device.copy_to_device(buffers[one.name], hosts[one.name], stream)

    def fetch() -> None:
        for one in context.bindings:
            if not one.is_input:
                device.copy_to_host(hosts[one.name], buffers[one.name], stream)

    def infer() -> None:
        context.enqueue(stream)

    def everything() -> None:
        send()
        infer()
        fetch()

    everything()
    stream.synchronize()
    bare, full = (
        resources.enter_context(closing(device.capture(stream, work))) for work in (infer, everything)
    )

    def around() -> None:
        send()
        bare.launch(stream)
        fetch()

    ways = {
        "inference": lambda: bare.launch(stream),
        "copies around": around,
        "copies inside": lambda: full.launch(stream),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timed(way, stream.synchronize))
    return {
        name: {
            "calls": round(statistics.median(calls for calls, _ in pairs), 1),
            "done": round(statistics.median(done for _, done in pairs), 1),
        }
        for name, pairs in taken.items()
    }


def timed(way: Callable[[], None], wait: Callable[[], None]) -> tuple[float, float]:
    """Medians of microseconds until the calls are back, and until all is done."""
    calls_us, done_us = [], []
    for number in range(WARM + TIMES):
        began = time.perf_counter()
        way()
        back = time.perf_counter()
        wait()
        done = time.perf_counter()
        if number >= WARM:
            calls_us.append((back - began) * 1e6)
            done_us.append((done - began) * 1e6)
    return statistics.median(calls_us), statistics.median(done_us)


if __name__ == "__main__":
    main()
