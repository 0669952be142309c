"""What the batcher costs: one request at a time, and against the bare engines at saturation.

python benchmarks/runtime/overhead.py FOLDER [INPUTS.npz] [--workers 1] [--rounds 9]
    [--json FILE]

FOLDER holds a build. The ways take turns, so that what else the machine does falls on all of them alike;
medians of the rounds.
One at a time: a batch of 1 by the session alone (its CUDA graph, if there is one, and no copies), by
`EnginePool.run`, by `DynamicBatcher.submit(…).result()` with no delay. At saturation: batches of the largest
engine by the session alone, by the pool, and as many requests that one thread submits, up to four batches for
each worker ahead of the answers. Without INPUTS seeded random ones. The samples lie in pageable memory of the
host, and are not copied when they are submitted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from trtopt.data.random_inputs import random_batch
from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest
from trtopt.records import BatchPolicy
from trtopt.serving import DynamicBatcher, EnginePool, serve_promptly

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from bare import query

ALONE, BATCHES = 2000, 200
Samples = dict[str, np.ndarray]


def timed(work: Callable[[], object], times: int) -> float:
    """Microseconds a call."""
    began_s = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began_s) / times * 1e6


def samples_for(pool: EnginePool, folder: Path, inputs: str | None, count: int) -> Samples:
    """So many rows of every input at least: of the file, else random ones as the first engine takes them."""
    names = [spec.name for spec in pool.catalogue.inputs]
    if inputs is not None:
        file = np.load(inputs)
        return {name: file[name] for name in names}
    shapes = read_manifest(folder).engines[0].plan.shapes
    rows = {name: (count, *shapes[name].opt[1:]) for name in names}
    return random_batch(pool.catalogue.inputs, rows)


def saturate(batcher: DynamicBatcher, samples: Sequence[object], requests: int, ahead: int) -> None:
    """Submit so many, never more than `ahead` of the answers."""
    waiting: deque[object] = deque()
    for index in range(requests):
        waiting.append(batcher.submit(samples[index % len(samples)], copy=False))
        if len(waiting) >= ahead:
            waiting.popleft().result()
    for future in waiting:
        future.result()


def main() -> None:
    """Read the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("inputs", nargs="?")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    taken: dict[str, list[float]] = {}
    folder, workers = arguments.folder, arguments.workers
    with EnginePool.open(folder, workers=workers) as pool, ExitStack() as resources:
        largest = pool.largest_batch
        rows = samples_for(pool, folder, arguments.inputs, largest)
        first, batch = ({name: array[:count] for name, array in rows.items()} for count in (1, largest))
        backend = read_manifest(folder).engines[0].plan.backend.name
        target = resources.enter_context(closing(open_target(backend)))

        samples = [{name: array[index] for name, array in rows.items()} for index in range(largest)]
        alone, full = (query(target, folder, size, resources) for size in (1, largest))
        ahead = 4 * workers * largest
        policy = BatchPolicy(max_batch=largest, max_delay_ms=0.0, max_waiting=2 * ahead)
        patient = BatchPolicy(max_batch=largest, max_delay_ms=1000.0, max_waiting=2 * ahead)
        with DynamicBatcher(pool, policy) as at_once, DynamicBatcher(pool, patient) as full_only:
            ways = {
                "alone: session": lambda: timed(alone, ALONE),
                "alone: pool": lambda: timed(lambda: pool.run(first), ALONE),
                "alone: batcher": lambda: timed(
                    lambda: at_once.submit(samples[0], copy=False).result(), ALONE
                ),
                "full: session": lambda: timed(full, BATCHES) / largest,
                "full: pool": lambda: timed(lambda: pool.run(batch), BATCHES) / largest,
                "full: batcher": lambda: (
                    timed(lambda: saturate(full_only, samples, BATCHES * largest, ahead), 1)
                    / (BATCHES * largest)
                ),
            }
            serve_promptly()
            for _ in range(arguments.rounds):
                for name, way in ways.items():
                    taken.setdefault(name, []).append(way())
            sizes = full_only.statistics().batch_sizes
    result = {
        "workers": workers,
        "largest_batch": largest,
        "us_per_request": {name: statistics.median(values) for name, values in taken.items()},
        "rounds": taken,
        "batch_sizes_at_saturation": sizes,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
