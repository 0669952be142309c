"""Where a batch's time goes at saturation, step by step.

    python benchmarks/runtime/steps.py FOLDER [INPUTS.npz] [--workers 2]
        [--samples host|page-locked|device] [--json FILE]

FOLDER holds a build; requests are submitted as in overhead.py. Median microseconds of each step over all
batches of the largest engine, as the thread that does it sees them: waiting for the interpreter is in them.
`between ends` is from one batch's end to the next of any worker, on average, which throughput is made of.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from overhead import PLACES, placed_samples, samples_for, saturate

from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest
from trtopt.records import BatchPolicy
from trtopt.serving import (
    DynamicBatcher,
    EnginePool,
    pool_worker as worker,
    prepared_engine as prepared,
    serve_promptly,
)

WARM, BATCHES = 20, 200
TAKEN_US: dict[str, list[float]] = defaultdict(list)
STEPS: tuple[tuple[str, Any, str], ...] = (
    ("rows into the batch by the host", prepared.Prepared, "_fill"),
    ("by the device, and asking for it", prepared.Prepared, "_gather"),
    ("launch", prepared.Prepared, "_launch"),
    ("rows out of the batch", worker, "own_rows"),
    ("run, all of these", worker.Worker, "run"),
    ("whole batch with answers", DynamicBatcher, "_run"),
    ("next batch chosen", DynamicBatcher, "_next"),
    ("submit", DynamicBatcher, "submit"),
)


def timed_step(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """The same, noting how long it took."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return step(*args, **kwargs)
        finally:
            TAKEN_US[name].append((time.perf_counter() - began_s) * 1e6)

    return call


def main() -> None:
    """Read the command line, measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("inputs", nargs="?")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", choices=PLACES, default="host")
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    for name, owner, attribute in STEPS:
        setattr(owner, attribute, timed_step(name, getattr(owner, attribute)))
    ends_s: list[float] = []
    run = DynamicBatcher._run

    def noted(self: DynamicBatcher, batch: Any) -> None:
        run(self, batch)
        ends_s.append(time.perf_counter())

    DynamicBatcher._run = noted  # type: ignore[method-assign]
    with EnginePool.open(request.folder, workers=request.workers) as pool, ExitStack() as resources:
        largest = pool.largest_batch
        rows = samples_for(pool, request.folder, request.inputs, largest)
        backend = read_manifest(request.folder).engines[0].plan.backend.name
        target = resources.enter_context(closing(open_target(backend)))
        samples = placed_samples(request.samples, rows, target.device, resources)
        ahead = 4 * request.workers * largest
        policy = BatchPolicy(max_batch=largest, max_delay_ms=1000.0, max_waiting=2 * ahead)
        with DynamicBatcher(pool, policy) as batcher:
            serve_promptly()
            saturate(batcher, samples, WARM * largest, ahead)
            TAKEN_US.clear()
            ends_s.clear()
            saturate(batcher, samples, BATCHES * largest, ahead)
    steps = {name: statistics.median(taken) for name, taken in TAKEN_US.items()}
    ends_s.sort()
    steps["between ends"] = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) * 1e6
    result = {
        "workers": request.workers,
        "samples": request.samples,
        "largest_batch": largest,
        "us": steps,
    }
    print(json.dumps(result, indent=2))
    if request.json:
        request.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
