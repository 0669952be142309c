"""What a request costs Python: the batcher at saturation on a device that neither computes nor copies.

    python benchmarks/runtime/handing_over.py FOLDER [--workers 2] [--rounds 5] [--json FILE]

FOLDER holds a build for ONNX Runtime; samples lie "on the device", whose calls return at once. Microseconds a
request, median of the rounds. `loop_ms`, of three million turns of a loop, shows Python's speed here.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
from overhead import placed_samples, samples_for, saturate, timed

from trtopt.device.cuda import batched
from trtopt.device.ort.host import HostDevice
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.records import BatchPolicy, DeviceInfo
from trtopt.serving import DynamicBatcher, EnginePool, prepared_engine as prepared, serve_promptly
from trtopt.serving.pool import Source

TURNS, BATCHES = 3_000_000, 200


class Idle(HostDevice):
    """Reports itself as a GPU; copies go to a driver that does nothing."""

    @property
    def info(self) -> DeviceInfo:
        """Of another kind."""
        return msgspec.structs.replace(super().info, kind="gpu")

    def gather(self, pieces: object, stream: object) -> None:
        """As a CUDA device does."""
        batched.copy_pieces(pieces, 0)  # type: ignore[arg-type]


class Driver:
    """Of CUDA 12.8."""

    def cuMemcpyBatchAsync(self, *_: object) -> int:
        """Succeed."""
        return 0


class IdleTarget(OnnxRuntimeTarget):
    """ONNX Runtime's engines on it."""

    def __init__(self) -> None:
        super().__init__()
        self._device = Idle()


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    batched.load_driver = Driver  # type: ignore[assignment]
    prepared.Prepared._launch = lambda *_: None  # type: ignore[method-assign]
    engines = read_manifest(args.folder).engines
    sources = [Source(one, read_verified(args.folder / one.path, one.sha256)) for one in engines]
    began_s = time.perf_counter()
    for turn in range(TURNS):
        turn & 7
    loop_ms = (time.perf_counter() - began_s) * 1e3
    with EnginePool(IdleTarget(), sources, workers=args.workers) as pool, ExitStack() as resources:
        largest = pool.largest_batch
        rows = samples_for(pool, args.folder, None, largest)
        samples = placed_samples("device", rows, HostDevice(), resources)
        ahead = 4 * args.workers * largest
        policy = BatchPolicy(max_batch=largest, max_delay_ms=1000.0, max_waiting=2 * ahead)
        with DynamicBatcher(pool, policy) as batcher:
            serve_promptly()
            requests = BATCHES * largest
            rounds = [
                timed(lambda: saturate(batcher, samples, requests, ahead), 1) / requests
                for _ in range(args.rounds)
            ]
    result = {
        "python": platform.python_version(),
        "loop_ms": round(loop_ms, 1),
        "workers": args.workers,
        "largest_batch": largest,
        "us_per_request": round(statistics.median(rounds), 2),
        "rounds": [round(one, 2) for one in rounds],
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
