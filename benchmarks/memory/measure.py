"""How much memory and time the graph stages take on LLaMA-like models of several sizes.

    python benchmarks/memory/measure.py WORK RESULTS.json --layers 1 4 12 --stages rewrite cast quantize check

WORK takes the models, their outputs and all temporary files, and is emptied of them again. Memory is that
of the command and every process that it started, sampled every 20 ms: `held` is what cannot be dropped
(anonymous and shared pages), `pss` has the pages of mapped files in it, which the system drops when it needs
them. A command that holds more than --limit GiB is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from llama import write_model

GIB = 2**30
STAGES = {
    "rewrite": "rewrite m.onnx -o rewritten.onnx",
    "cast": "cast m.onnx -o half.onnx --precision fp16 --data m.npz",
    "check": "check half.onnx --against m.onnx --data m.npz",
    "quantize": "quantize m.onnx -o int8.onnx --precision int8 --data m.npz",
}
"""The check takes what the cast wrote."""


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def memory_of(pid: int) -> tuple[int, int]:
    """Bytes that a process holds, and its proportional set size."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0, 0
    kib = {line.split()[0]: int(line.split()[1]) for line in lines}
    return (kib["Anonymous:"] + kib["Pss_Shmem:"]) * 1024, kib["Pss:"] * 1024


def disk_of(folder: Path, before: frozenset[Path]) -> int:
    """Bytes in new files of the folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            file = Path(root, name)
            if file not in before:
                try:
                    total += file.stat().st_size
                except FileNotFoundError:
                    continue
    return total


def cpu_seconds() -> float:
    """Processor time of all commands so far and of what they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(folder: Path, words: str, limit: float) -> dict[str, Any]:
    """Run one command; its time, its peaks and what it said."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    before = frozenset(path for path in folder.rglob("*") if path.is_file())
    held = pss = disk = 0
    over = False
    start, start_cpu = time.monotonic(), cpu_seconds()
    with TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "trtopt", *words.split()],
            cwd=folder,
            stdout=said,
            stderr=said,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        while process.poll() is None:
            everyone = family(process.pid)
            one = [sum(part) for part in zip(*map(memory_of, everyone), strict=True)] or [0, 0]
            held, pss, disk = max(held, one[0]), max(pss, one[1]), max(disk, disk_of(folder, before))
            if one[0] > limit * GIB:
                over = True
                for pid in reversed(everyone):
                    os.kill(pid, 9)
            time.sleep(0.02)
        seconds = time.monotonic() - start
        said.seek(0)
        text = said.read().decode(errors="replace")
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds() - start_cpu, 1),
        "held_gib": round(held / GIB, 2),
        "pss_gib": round(pss / GIB, 2),
        "disk_gib": round(disk / GIB, 2),
        "exit": "over the limit" if over else process.returncode,
        "said": text.strip().splitlines()[-3:],
    }


def main() -> None:
    """Measure every size and stage, writing the results after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 12])
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, default=["rewrite", "cast", "check", "quantize"]
    )
    parser.add_argument("--limit", type=float, default=16.0)
    given = parser.parse_args()
    rows = json.loads(given.results.read_text()) if given.results.exists() else []
    for layers in given.layers:
        folder = given.work / f"layers{layers}"
        folder.mkdir(parents=True)
        weights = write_model(folder / "m.onnx", layers)
        for stage in given.stages:
            row = {"stage": stage, "layers": layers, "weights_gib": round(weights / GIB, 2)}
            row |= measured(folder, STAGES[stage], given.limit)
            row["bound_gib"] = round(2.5 * weights / GIB + 0.5, 2)
            print(row, flush=True)
            rows = [old for old in rows if (old["stage"], old["layers"]) != (stage, layers)] + [row]
            given.results.write_text(json.dumps(rows, indent=1) + "\n")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
