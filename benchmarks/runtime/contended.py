"""What a thread that computes in Python costs the batcher: images copied row by row and by one system call.

    python benchmarks/runtime/contended.py [--rounds 5] [--json FILE]

A batch of 32 images of 600 KB is summed by ONNX Runtime, which takes little. One thread submits, as in
overhead.py; another one counts meanwhile, or does not. Medians of the rounds, in which the ways take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from overhead import saturate, timed

import trtopt
from trtopt.records import BatchPolicy
from trtopt.serving import DynamicBatcher, EnginePool, row_copying as vectored
from trtopt.serving.scheduling import SWITCH_S

ROW, BATCH, BATCHES, WORKERS = 3 * 224 * 224, 32, 8, 2
MODEL = f"""<ir_version: 8, opset_import: ["" : 18]>
sums (float[N, {ROW}] image) => (float[N, 1] y) {{
    axes = Constant <value_ints = [1]> ()
    y = ReduceMean (image, axes)
}}"""
SWITCHES = {"5 ms": 0.005, f"{SWITCH_S * 1e3:g} ms": SWITCH_S}
COPIES = {"NumPy": lambda name: None, "one call": vectored._system_call}


@contextmanager
def counting(is_wanted: bool) -> Iterator[None]:
    """Another thread at work in Python."""
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=count)
    if is_wanted:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if is_wanted:
            thread.join()


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    taken: dict[str, list[float]] = {}
    samples = [{"image": row} for row in np.random.default_rng(0).random((BATCH, ROW), np.float32)]
    policy = BatchPolicy(max_batch=BATCH, max_delay_ms=1000.0, max_waiting=8 * WORKERS * BATCH)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "sums.onnx"
        onnx.save(onnx.parser.parse_model(MODEL), model)
        trtopt.build(model, Path(folder) / "sums", batch=(BATCH,), backend="onnxruntime", rewrite="none")
        with (
            EnginePool.open(Path(folder) / "sums", workers=WORKERS) as pool,
            DynamicBatcher(pool, policy) as batcher,
        ):
            for _ in range(request.rounds):
                for name, us in _round(batcher, samples):
                    taken.setdefault(name, []).append(us)
    result = {"us_per_request": {name: statistics.median(us) for name, us in taken.items()}, "rounds": taken}
    print(json.dumps(result["us_per_request"], indent=2))
    if request.json:
        request.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _round(batcher: DynamicBatcher, samples: list[dict[str, np.ndarray]]) -> Iterator[tuple[str, float]]:
    requests, ahead = BATCHES * BATCH, 4 * WORKERS * BATCH
    before_s, call = sys.getswitchinterval(), vectored._system_call
    for report, switch_s in SWITCHES.items():
        for how, found in COPIES.items():
            for beside in (False, True):
                sys.setswitchinterval(switch_s)
                vectored._system_call = found
                with counting(beside):
                    us = timed(lambda: saturate(batcher, samples, requests, ahead), 1) / requests
                yield f"{how}, {report}, {'beside a busy thread' if beside else 'alone'}", us
    sys.setswitchinterval(before_s)
    vectored._system_call = call


if __name__ == "__main__":
    main()
