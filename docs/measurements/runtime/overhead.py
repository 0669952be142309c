"""What the batcher costs: one request at a time, and against the bare engines at saturation.

python docs/measurements/runtime/overhead.py BUILD_FOLDER INPUTS.npz [--rounds 9] [--json FILE]

The ways take turns, so that what else the machine does falls on all of them alike; medians of the rounds.
One at a time: a batch of 1 by the session alone, by `EnginePool.run`, by `DynamicBatcher.submit(…).result()`
with no delay. At saturation: batches of the largest engine by the pool alone, and as many requests that one
thread submits, up to four batches ahead of the answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trtopt.device.backends import open_target
from trtopt.records import BatchPolicy
from trtopt.runtime import DynamicBatcher, EnginePool
from trtopt.workspace import read_manifest, read_verified

ALONE, BATCHES = 2000, 200


def timed(work: Callable[[], object], times: int) -> float:
    """Microseconds a call."""
    began_s = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began_s) / times * 1e6


def bare_session(folder: Path, sample: np.ndarray) -> Callable[[], object]:
    """The engine of batch 1 on buffers of its own, as `trtopt bench` would run it."""
    engine = next(one for one in read_manifest(folder).engines if one.plan.batch.max == (1,))
    target = open_target(engine.plan.backend.name)
    session = target.load(read_verified(folder / engine.path, engine.sha256))
    context = session.context({session.inputs[0].name: (1, *sample.shape)})
    stream = target.device.stream()
    context.bind({binding.name: target.device.device_buffer(binding.nbytes) for binding in context.bindings})

    def run() -> None:
        context.enqueue(stream)
        stream.synchronize()

    return run


def saturate(batcher: DynamicBatcher, samples: np.ndarray, requests: int, ahead: int) -> None:
    """Submit so many, never more than `ahead` of the answers."""
    waiting: deque[object] = deque()
    for index in range(requests):
        waiting.append(batcher.submit(samples[index % len(samples)]))
        if len(waiting) >= ahead:
            waiting.popleft().result()
    for future in waiting:
        future.result()


def main() -> None:
    """Read the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("inputs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    taken: dict[str, list[float]] = {}
    with EnginePool.open(arguments.folder) as pool:
        largest = pool.largest_batch
        samples = np.load(arguments.inputs)[pool.catalogue.inputs[0].name]
        session = bare_session(arguments.folder, samples[0])
        policy = BatchPolicy(max_batch=largest, max_delay_ms=0.0, max_waiting=8 * largest)
        full = BatchPolicy(max_batch=largest, max_delay_ms=1000.0, max_waiting=8 * largest)
        with DynamicBatcher(pool, policy) as at_once, DynamicBatcher(pool, full) as patient:
            ways = {
                "alone: session": lambda: timed(session, ALONE),
                "alone: pool": lambda: timed(lambda: pool.run(samples[:1]), ALONE),
                "alone: batcher": lambda: timed(lambda: at_once.submit(samples[0]).result(), ALONE),
                "full: pool": lambda: timed(lambda: pool.run(samples[:largest]), BATCHES) / largest,
                "full: batcher": lambda: (
                    timed(lambda: saturate(patient, samples, BATCHES * largest, 4 * largest), 1)
                    / (BATCHES * largest)
                ),
            }
            for _ in range(arguments.rounds):
                for name, way in ways.items():
                    taken.setdefault(name, []).append(way())
            sizes = patient.statistics().batch_sizes
    result = {
        "us_per_request": {name: statistics.median(values) for name, values in taken.items()},
        "rounds": taken,
        "batch_sizes_at_saturation": sizes,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
