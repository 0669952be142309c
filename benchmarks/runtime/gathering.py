"""How rows of many arrays get into a batch on the GPU: ways in turns, with 1, 2 and 4 callers.

    python benchmarks/runtime/gathering.py [--rows 128] [--row-bytes 602112] [--rounds 5] [--json FILE]

`fill, N`: `Copier.fill` with N threads and its system call, then one copy to the device. `NumPy, N`: the
same, row by row. `by one call`: `Device.gather` takes the rows to the device's batch from where they are, in
page-locked memory or on the device. `each`: a call of the binding for each row; `each, unyielding`: of the
driver, without letting go of the interpreter in between. GB/s of all callers together, by themselves and
next to a thread that computes in Python; medians of the rounds. A way that fails says why.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
from contended import counting

from trtopt.device.api import Device, Stream
from trtopt.device.cuda.cuda_python import open_device
from trtopt.serving import row_copying as vectored, serve_promptly
from trtopt.serving.arrays import Region, address_of
from trtopt.serving.row_copying import Copier

CALLERS, THREADS = (1, 2, 4), (1, 2, 4, 8)
SECONDS = 0.5
Way = Callable[[], None]


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--row-bytes", type=int, default=3 * 224 * 224 * 4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    taken: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    call = vectored._system_call
    with closing(open_device()) as device, ExitStack() as resources:
        copiers = {count: resources.enter_context(closing(Copier(count))) for count in THREADS}
        callers = [
            ways(device, copiers, request.rows, request.row_bytes, resources) for _ in range(max(CALLERS))
        ]
        serve_promptly()
        for _ in range(request.rounds):
            for name in callers[0]:
                vectored._system_call = (lambda _: None) if name.startswith("NumPy") else call
                for count in CALLERS:
                    for beside in (False, True):
                        what = f"{name}; {count} callers; {'beside a busy thread' if beside else 'alone'}"
                        try:
                            with counting(beside):
                                times = sum(repeated(device, [own[name] for own in callers[:count]]))
                        except Exception as error:  # noqa: BLE001  (the others are measured all the same)
                            failed[name] = f"{type(error).__name__}: {error}"
                            continue
                        nbytes = request.rows * request.row_bytes
                        taken.setdefault(what, []).append(times * nbytes / 1e9)
    medians = {what: round(statistics.median(all_), 2) for what, all_ in taken.items()}
    found = {"GB/s": medians, "failed": failed}
    print(json.dumps(found, indent=1))
    if request.json:
        request.json.write_text(json.dumps({**found, "rounds": taken}, indent=1) + "\n", encoding="utf-8")


def repeated(device: Device, ways: Sequence[Way]) -> list[float]:
    """How many times a second each of them is done, all at the same time, a thread each."""
    rates = [0.0] * len(ways)
    failures: list[BaseException] = []
    start = threading.Barrier(len(ways))

    def work(index: int, way: Way) -> None:
        try:
            with device.adopt_thread():
                way()
                start.wait()
                began, count = time.perf_counter(), 0
                while (taken := time.perf_counter() - began) < SECONDS:
                    way()
                    count += 1
                rates[index] = count / taken
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
            start.abort()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return rates


def ways(
    device: Device, copiers: dict[int, Copier], rows: int, row_bytes: int, resources: ExitStack
) -> dict[str, Way]:
    """A caller's own memory and stream, and the ways by name."""
    stream = resources.enter_context(closing(device.stream()))
    batch, staged = device.device_buffer(rows * row_bytes), device.pinned_buffer(rows * row_bytes)
    locked = [device.pinned_buffer(row_bytes) for _ in range(rows)]
    remote = [device.device_buffer(row_bytes) for _ in range(rows)]
    for buffer in (batch, staged, *locked, *remote):
        resources.callback(buffer.close)
    pageable = [np.random.default_rng(row).integers(0, 255, row_bytes, np.uint8) for row in range(rows)]
    view = staged.array.reshape(rows, row_bytes)
    placed = [(row, array[np.newaxis]) for row, array in enumerate(pageable)]
    targets = [batch.address + row * row_bytes for row in range(rows)]

    def filled(copier: Copier) -> Way:
        def way() -> None:
            copier.fill(view, placed)
            device.copy_to_device(batch, staged, stream)
            stream.synchronize()

        return way

    def by_one_call(sources: Sequence[int]) -> Way:
        def way() -> None:
            report = zip(targets, sources, strict=True)
            device.gather([(target, source, row_bytes) for target, source in report], stream)
            stream.synchronize()

        return way

    def each_locked() -> None:
        for target, source in zip(targets, locked, strict=True):
            device.copy_to_device(Region(target, row_bytes), source, stream)
        stream.synchronize()

    def each_on_device() -> None:
        for target, one in zip(targets, remote, strict=True):
            device.copy_on_device(Region(target, row_bytes), one, stream)
        stream.synchronize()

    at_host, at_device = [address_of(one.array) for one in locked], [one.address for one in remote]
    return {
        **{f"fill, {count}": filled(copier) for count, copier in copiers.items()},
        **{f"NumPy, {count}": filled(copier) for count, copier in copiers.items()},
        "page-locked, by one call": by_one_call(at_host),
        "page-locked, each": each_locked,
        "page-locked, each, unyielding": unyielding(targets, at_host, row_bytes, stream),
        "on the device, by one call": by_one_call(at_device),
        "on the device, each": each_on_device,
        "on the device, each, unyielding": unyielding(targets, at_device, row_bytes, stream),
    }


def unyielding(targets: Sequence[int], sources: Sequence[int], row_bytes: int, stream: Stream) -> Way:
    """A call of the driver for each row, all of them before anybody else computes in Python."""
    copy = ctypes.PyDLL("libcuda.so.1").cuMemcpyAsync

    def way() -> None:
        for target, source in zip(targets, sources, strict=True):
            addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
            if copy(*addresses, ctypes.c_size_t(row_bytes), ctypes.c_void_p(stream.handle)):
                raise OSError("cuMemcpyAsync failed")
        stream.synchronize()

    return way


if __name__ == "__main__":
    main()
