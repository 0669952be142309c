"""Rounds of build, bench and unload in one process: memory, file handles and threads must stay as they are.

    python benchmarks/reliability/soak.py --rounds 1000 --json soak-cpu.json
    python benchmarks/reliability/soak.py --backend tensorrt --rounds 200 --json soak-gpu.json

A round runs in this process what a worker process runs: with ONNX Runtime it builds the digits model, loads
the engine, measures it and unloads it; with TensorRT it loads an engine that was built once, captures a CUDA
graph, runs it, follows every allocation of a second load, and unloads. Every tenth round also calls
`trtopt.bench`, and with ONNX Runtime `trtopt.build`, which start worker processes. After each round are read:
resident memory, open file descriptors, threads and child processes of this process; with TensorRT also the
device memory in use by any process (NVML), and what was not returned to the engine's allocator. The first
fifth of the rounds does not count. Flat is: handles, threads and children the same after every round, nothing
left in the allocator, resident memory growing by less than 1 KiB a round (least squares), device memory the
same to the MiB. Exits with 1 if anything is not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import trtopt
from trtopt.builder.engine import BuildJob
from trtopt.device.backends import open_builder
from trtopt.device.nvml import device_memory_of
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import DEFAULT, contract_named
from trtopt.measure.engine import BenchJob
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import EngineArtifact
from trtopt.requests.recipe import make_recipe
from trtopt.targets import ONNXRUNTIME
from trtopt.workers.jobs import type_of
from trtopt.workflows.race import engine_at
from trtopt.workflows.workbench import make_plans

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.onnx"
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")  # neither cuBLAS nor cuDNN is needed
BATCH = 8
THROUGH_PROCESSES = 10
MOST_GROWTH_BYTES = 1024.0
FIGURES = ("resident_bytes", "handles", "threads", "children", "live_bytes", "device_mib")
UNKNOWN = -1


def ignore(phase: str, fraction: float | None) -> None:
    """No listener."""


class Rounds:
    """What is done again and again, in a folder of its own."""

    def __init__(self, folder: Path, backend: str) -> None:
        self._folder, self._whole, self._backend = folder, folder / "whole", backend
        self._builder = open_builder(backend)
        self._onnx = read_onnx(DIGITS)
        recipe = make_recipe(None, {"backend": backend, "batch": (BATCH,), "rewrite": "none"})
        (self._plan,) = make_plans(self._onnx, recipe, self._builder.backend)
        (folder / "here").mkdir()
        self._build_by_processes()
        (self._artifact,) = read_manifest(self._whole).engines

    @property
    def on_cpu(self) -> bool:
        """Whether ONNX Runtime builds and runs."""
        return self._backend == ONNXRUNTIME

    def here(self) -> int | None:
        """A round in this process; returns what the allocator has not got back, where it was followed."""
        folder, artifact = self._whole, self._artifact
        if self.on_cpu:
            folder, artifact = self._folder / "here", self._build()
        job = BenchJob(
            engine=engine_at(folder, self._onnx.inputs, artifact, BATCH),
            data=None,
            contract=contract_named(DEFAULT),
            warmup_s=0.0,
            duration_s=0.01,
            layers=False,
            memory=not self.on_cpu,
        )
        result = type_of(job).run(job, ignore)
        assert result.point.failure is None
        assert self.on_cpu or result.point.latency.contract.graph
        memory = result.point.memory
        return None if memory is None else memory.live_bytes[-1]

    def _build(self) -> EngineArtifact:
        job = BuildJob(
            onnx=str(DIGITS),
            types=self._onnx.types,
            plan=self._plan,
            folder=str(self._folder / "here"),
            timing_cache=None,
        )
        engine: EngineArtifact = type_of(job).run(job, ignore)
        return engine

    def by_processes(self) -> None:
        """A round as users start it, in worker processes."""
        if self.on_cpu:
            self._build_by_processes()
        trtopt.bench(self._whole, duration=0.01, warmup=0.0)

    def _build_by_processes(self) -> None:
        flags: dict[str, Any] = {"batch": (BATCH,), "backend": self._backend, "rewrite": "none"}
        if not self.on_cpu:
            flags["tactic_sources"] = SOURCES
        trtopt.build(DIGITS, self._whole, timing_cache="none", **flags)

    def device_mib(self) -> int | None:
        """Device memory in use by anybody."""
        room = None if self.on_cpu else device_memory_of(self._builder.device)
        return None if room is None else (room.total_bytes - room.free_bytes) >> 20


def held() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    tasks = os.listdir("/proc/self/task")
    children = 0
    for task in tasks:
        with suppress(FileNotFoundError):  # a thread that has just ended
            children += len(Path(f"/proc/self/task/{task}/children").read_text().split())
    return {
        "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": len(tasks),
        "children": children,
    }


def soaked(rounds: Rounds, count: int) -> NDArray[np.int64]:
    """What there was after each round, [count, len(FIGURES)]; allocated before, so that it does not grow."""
    seen = np.full((count, len(FIGURES)), UNKNOWN, np.int64)
    for number in range(count):
        live = rounds.here()
        if number % THROUGH_PROCESSES == 0:
            rounds.by_processes()
        figures = {**held(), "live_bytes": live, "device_mib": rounds.device_mib()}
        row = (figures[name] for name in FIGURES)
        seen[number] = [UNKNOWN if figure is None else figure for figure in row]
        if (number + 1) % 100 == 0:
            print(f"{number + 1}: {figures}", file=sys.stderr, flush=True)
    return seen


def judged(seen: NDArray[np.int64]) -> dict[str, Any]:
    """Of the rounds that count: growth of resident memory, all figures' ranges, and what is not flat."""
    counted = {name: seen[len(seen) // 5 :, index] for index, name in enumerate(FIGURES)}
    resident = counted["resident_bytes"].astype(np.float64)
    growth = float(np.polyfit(np.arange(len(resident)), resident, 1)[0])
    ranges = {
        name: [int(values.min()), int(values.max())]
        for name, values in counted.items()
        if values[0] != UNKNOWN
    }
    uneven = {name for name, (least, most) in ranges.items() if least != most} - {"resident_bytes"}
    if growth >= MOST_GROWTH_BYTES:
        uneven.add("resident_bytes")
    if ranges.get("live_bytes", [0, 0])[1]:
        uneven.add("live_bytes")
    return {
        "rounds": len(seen),
        "judged": len(resident),
        "resident_growth_bytes_a_round": round(growth, 1),
        "ranges": ranges,
        "not_flat": sorted(uneven),
    }


def main() -> None:
    """Soak, judge, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--backend", default=ONNXRUNTIME, choices=(ONNXRUNTIME, "tensorrt"))
    parser.add_argument("--json", type=Path, help="write what was found, and every hundredth round")
    request = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        rounds = Rounds(Path(scratch), request.backend)
        seen = soaked(rounds, request.rounds)
    found = {
        "backend": request.backend,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - began, 1),
        **judged(seen),
    }
    if request.json:
        after = [dict(zip(FIGURES, row, strict=True)) for row in seen[99::100].tolist()]
        request.json.write_text(json.dumps({**found, "every_hundredth": after}, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["not_flat"] else 0)


if __name__ == "__main__":
    main()
