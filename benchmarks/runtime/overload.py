"""Overload for minutes: is every accepted request answered exactly once, and does memory stay flat?

python benchmarks/runtime/overload.py BUILD_FOLDER INPUTS.npz [--seconds 600] [--json FILE]

Three threads send samples as fast as they are let, more than the engines can take: while the queue is full
they try again a millisecond later. A third of the accepted requests is cancelled at a random moment, some
do not fit the model. Every answer is held against the pool's own, computed before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, Future
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import DataError, QueueFullError
from trtopt.records import BatchPolicy
from trtopt.serving import DynamicBatcher, EnginePool

SENDERS = 3
MAX_WAITING = 512


class Load:
    """Sends requests and counts what becomes of them."""

    def __init__(self, batcher: DynamicBatcher, samples: np.ndarray, answers: dict[str, np.ndarray]) -> None:
        self.batcher, self.samples, self.answers = batcher, samples, answers
        self.guard = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.stop = threading.Event()

    def count(self, what: str) -> None:
        """One more of these."""
        with self.guard:
            self.counts[what] += 1

    def send(self, seed: int) -> None:
        """What one thread does until it is stopped."""
        choose = random.Random(seed)
        pending: list[Future[dict[str, np.ndarray]]] = []
        while not self.stop.is_set():
            index = choose.randrange(len(self.samples))
            if choose.random() < 0.01:
                self.send_misfit(index)
            try:
                future = self.batcher.submit(self.samples[index])
            except QueueFullError:
                self.count("rejected")
                time.sleep(0.001)
                continue
            self.count("accepted")
            future.add_done_callback(lambda done, index=index: self.finished(done, index))
            if choose.random() < 1 / 3:
                pending.append(future)
            if len(pending) > choose.randrange(100):
                pending.pop(choose.randrange(len(pending))).cancel()

    def send_misfit(self, index: int) -> None:
        """A sample that lacks a column."""
        try:
            self.batcher.submit(self.samples[index][..., :-1])
        except DataError:
            self.count("invalid")

    def finished(self, future: Future[dict[str, np.ndarray]], index: int) -> None:
        """What became of an accepted request."""
        try:
            outputs = future.result()
        except CancelledError:
            self.count("cancelled")
        except Exception as error:  # noqa: BLE001  (whatever it is, it is counted)
            self.count(f"failed: {type(error).__name__}")
        else:
            right = all(
                np.allclose(outputs[name], rows[index], atol=1e-4) for name, rows in self.answers.items()
            )
            self.count("answered" if right else "answered wrong")


def resident_mib() -> float:
    """What the system keeps in memory for this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def overload(folder: str, inputs: str, seconds: float) -> dict[str, object]:
    """Send for so many seconds, then close and count."""
    with EnginePool.open(folder, workers=2) as pool:
        name = pool.catalogue.inputs[0].name
        samples = np.load(inputs)[name]
        policy = BatchPolicy(max_batch=pool.largest_batch, max_delay_ms=2.0, max_waiting=MAX_WAITING)
        with DynamicBatcher(pool, policy) as batcher:
            load = Load(batcher, samples, pool.run(samples))
            senders = [threading.Thread(target=load.send, args=(seed,)) for seed in range(SENDERS)]
            memory_mib = []
            began_s = time.monotonic()
            for sender in senders:
                sender.start()
            while time.monotonic() < began_s + seconds:
                time.sleep(min(1.0, seconds / 20))
                memory_mib.append(resident_mib())
            load.stop.set()
            for sender in senders:
                sender.join()
        report, usage = batcher.statistics(), pool.usage()
    tenth = max(1, len(memory_mib) // 10)
    return {
        "seconds": seconds,
        "counted": dict(load.counts),
        "batcher": msgspec.to_builtins(report, str_keys=True),
        "pool": msgspec.to_builtins(usage),
        "resident_mib": {
            "first tenth, median": float(np.median(memory_mib[:tenth])),
            "second tenth, median": float(np.median(memory_mib[tenth : 2 * tenth] or memory_mib)),
            "last tenth, median": float(np.median(memory_mib[-tenth:])),
            "most": max(memory_mib),
        },
    }


def main() -> None:
    """Read the command line, run, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("inputs")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = overload(arguments.folder, arguments.inputs, arguments.seconds)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
