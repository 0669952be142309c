"""Whether rows get into a batch while the engine computes another one: copies beside inferences.

    python docs/measurements/runtime/overlap.py FOLDER [--seconds 0.5] [--rounds 3] [--json FILE]

FOLDER holds a build; its largest engine runs in one thread and stream, copies of as many rows as its batch
holds in another, each waited for before the next: milliseconds of either, alone and beside the other (medians
of the rounds). Rows lie in page-locked memory or on the device, each in memory of its own. `by one call` is
`Device.gather`; `a call each`, one after the other without letting go of the interpreter in between, as the
driver is called by ctypes.PyDLL.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from trtopt.device.api import Device, Piece
from trtopt.device.backends import open_target
from trtopt.dtypes import numpy_dtype
from trtopt.runtime.arrays import address_of
from trtopt.workspace import read_manifest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bare import query

Work = Callable[[], object]


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    engine = max(read_manifest(asked.folder).engines, key=lambda one: one.plan.batch.max)
    (rows,) = engine.plan.batch.max
    row_bytes = sum(
        math.prod(engine.plan.shapes[spec.name].opt[1:]) * numpy_dtype(spec.dtype).itemsize
        for spec in engine.inputs
    )
    taken: dict[str, list[tuple[float, ...]]] = {}
    with closing(open_target(engine.plan.backend.name)) as target, ExitStack() as resources:
        device = target.device
        compute = query(target, asked.folder, rows, resources)
        copies = ways(device, rows, row_bytes, resources)
        for _ in range(asked.rounds):
            taken.setdefault("inference", []).append(beside(device, asked.seconds, compute))
            for name, copy in copies.items():
                taken.setdefault(name, []).append(beside(device, asked.seconds, copy))
                taken.setdefault(f"inference, {name}", []).append(
                    beside(device, asked.seconds, compute, copy)
                )
    medians = {
        name: [round(statistics.median(each), 3) for each in zip(*rounds, strict=True)]
        for name, rounds in taken.items()
    }
    result = {"rows": rows, "row_bytes": row_bytes, "ms": medians}
    print(json.dumps(result, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def ways(device: Device, rows: int, row_bytes: int, resources: ExitStack) -> dict[str, Work]:
    """Copies of all rows into a batch on the device, by name."""
    stream = resources.enter_context(closing(device.stream()))
    batch = resources.enter_context(closing(device.device_buffer(rows * row_bytes)))
    made: dict[str, Work] = {}
    for place, buffer in (("page-locked", device.pinned_buffer), ("device", device.device_buffer)):
        buffers = [resources.enter_context(closing(buffer(row_bytes))) for _ in range(rows)]
        sources = [one.address if place == "device" else address_of(one.array) for one in buffers]
        pieces = [(batch.address + row * row_bytes, source, row_bytes) for row, source in enumerate(sources)]
        made[f"{place}, by one call"] = lambda pieces=pieces: (
            device.gather(pieces, stream),
            stream.synchronize(),
        )
        if device.info.kind == "gpu":
            made[f"{place}, a call each"] = lambda pieces=pieces: (
                each(pieces, stream.handle),
                stream.synchronize(),
            )
    return made


def each(pieces: list[Piece], stream: int) -> None:
    """A call of the driver for each piece."""
    copy = ctypes.PyDLL("libcuda.so.1").cuMemcpyAsync
    for target, source, nbytes in pieces:
        status = copy(
            ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)
        )
        if status:
            sys.exit(f"cuMemcpyAsync: error {status}")


def beside(device: Device, seconds: float, *works: Work) -> tuple[float, ...]:
    """Milliseconds that each takes, a thread each, all at the same time."""
    took_ms = [0.0] * len(works)
    ready, is_over = threading.Barrier(len(works) + 1), threading.Event()

    def repeat(index: int, work: Work) -> None:
        with device.adopt_thread():
            work()
            ready.wait()
            begin_s, count = time.perf_counter(), 0
            while not is_over.is_set():
                work()
                count += 1
            took_ms[index] = (time.perf_counter() - begin_s) * 1e3 / max(1, count)

    threads = [threading.Thread(target=repeat, args=given) for given in enumerate(works)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(seconds)
    is_over.set()
    for thread in threads:
        thread.join()
    return tuple(took_ms)


if __name__ == "__main__":
    main()
