"""What a row costs Python: the batcher at saturation on a device that neither computes nor copies.

    python benchmarks/runtime/handing_over.py FOLDER [--workers 1] [--rounds 9] [--json FILE]

FOLDER holds a build for ONNX Runtime; a device stands in for a GPU, whose calls return at once. Rows lie in
pageable memory, in page-locked memory and "on the device", and come one per request or several
(`submit_rows`), in turns. Microseconds a row, medians of the rounds: by the clock, and on all processors,
which other programs disturb less. `loop_ms`, of three million turns of a loop, shows Python's speed here.
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
from overhead import PLACES, placed_samples, samples_for, saturate

from trtopt.device.cuda import device as cuda_device
from trtopt.device.ort.host import HostDevice
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.records import BatchPolicy
from trtopt.serving import DynamicBatcher, EnginePool, prepared_engine as prepared, serve_promptly
from trtopt.serving.pool import Source

TURNS, BATCHES = 3_000_000, 100
TOGETHER = (8, 64)


class Idle(HostDevice):
    """Reports itself as a GPU; copies go to a driver that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, kind="gpu")

    def gather(self, pieces: object, stream: object) -> None:
        """As a CUDA device does."""
        cuda_device.copy_pieces(pieces, 0)  # type: ignore[arg-type]


class Driver:
    """Of CUDA 12.8."""

    def cuMemcpyBatchAsync(self, *_: object) -> int:
        """Succeed."""
        return 0


class IdleTarget(OnnxRuntimeTarget):
    """ONNX Runtime's engines on it."""

    def __init__(self) -> None:
        super().__init__()
        self.device = Idle()


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cuda_device.load_driver = Driver  # type: ignore[assignment]
    prepared.Prepared._launch = lambda *_: None  # type: ignore[method-assign]
    prepared.LOCKED_BYTES = 0  # as a batch of images: the device reads page-locked rows
    engines = read_manifest(args.folder).engines
    sources = [Source(one, read_verified(args.folder / one.path, one.sha256)) for one in engines]
    began_s = time.perf_counter()
    for turn in range(TURNS):
        turn & 7
    loop_ms = (time.perf_counter() - began_s) * 1e3
    with EnginePool(IdleTarget(), sources, workers=args.workers) as pool, ExitStack() as resources:
        largest = pool.largest_batch
        rows = samples_for(pool, args.folder, None, largest)
        ways = {
            (place, count): placed_samples(
                place, rows, HostDevice(), resources, together=count if count > 1 else None
            )
            for place in PLACES
            for count in (1, *(count for count in TOGETHER if count <= largest))
        }
        ahead = 4 * args.workers * largest
        policy = BatchPolicy(max_batch=largest, max_delay_ms=1000.0, max_waiting=2 * ahead)
        with DynamicBatcher(pool, policy) as batcher:
            serve_promptly()
            rounds = [
                {way: us_per_row(batcher, samples, way[1], largest, ahead) for way, samples in ways.items()}
                for _ in range(args.rounds)
            ]
    result = {
        "python": platform.python_version(),
        "loop_ms": round(loop_ms, 1),
        "workers": args.workers,
        "largest_batch": largest,
        "us_per_row": {
            f"{place}, {count} per request": {
                "wall": round(statistics.median(one[place, count][0] for one in rounds), 2),
                "processors": round(statistics.median(one[place, count][1] for one in rounds), 2),
            }
            for place, count in ways
        },
        "rounds": [{f"{place}, {count}": us for (place, count), us in one.items()} for one in rounds],
    }
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def us_per_row(
    batcher: DynamicBatcher, samples: list[dict[str, object]], count: int, largest: int, ahead: int
) -> tuple[float, float]:
    """Of requests of so many rows: by the clock, and on all processors."""
    requests = BATCHES * largest // count
    began_s, used_s = time.perf_counter(), time.process_time()
    saturate(batcher, samples, requests, ahead // count, together=count > 1)
    spent = time.perf_counter() - began_s, time.process_time() - used_s
    wall_us, processors_us = (round(seconds / (requests * count) * 1e6, 3) for seconds in spent)
    return wall_us, processors_us


if __name__ == "__main__":
    main()
