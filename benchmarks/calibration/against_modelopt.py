"""Calibrating ResNet-50 to INT8: trtopt against Model Optimizer, in turns on the same cores.

    python benchmarks/calibration/against_modelopt.py RESNET50.onnx PEER_PYTHON WORK_FOLDER OUT.json

PEER_PYTHON is a Python with `nvidia-modelopt[onnx]` on the CPU. Images are seeded noise: only time and memory
are measured here. Wall time and processor time are of the whole process, imports and all, memory is its peak.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 3
IMAGES = 32
MANY = 512


def main(model: str, peer: str, work: str, out: str) -> None:
    """All rounds, then the large calibration."""
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    few, many = _images(folder, IMAGES), _images(folder, MANY)
    sides = {
        "trtopt, auto": _trtopt(model, few, folder, "auto"),
        "trtopt, max": _trtopt(model, few, folder, "max"),
        "trtopt, entropy": _trtopt(model, few, folder, "entropy"),
        "Model Optimizer, max": _peer(peer, model, few, folder, "max"),
        "Model Optimizer, entropy": _peer(peer, model, few, folder, "entropy"),
    }
    taken: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            taken[side].append(_run(sides[side]))
            print(side, taken[side][-1], flush=True)
    large = {f"trtopt, auto, {MANY} images": [_run(_trtopt(model, many, folder, "auto"))]}
    rows = {
        side: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for side, runs in (taken | large).items()
    }
    Path(out).write_text(json.dumps({"medians": rows, "runs": taken | large}, indent=1) + "\n")
    for side, row in rows.items():
        print(
            f"| {side} | {row['wall_s']:.1f} | {row['processor_s']:.1f} | {row['peak_mib'] / 1024:.2f} |",
            flush=True,
        )


def _images(folder: Path, count: int) -> Path:
    file = folder / f"images{count}.npz"
    if not file.is_file():
        generator = np.random.default_rng(0)
        images = generator.standard_normal((count, 3, 224, 224), dtype=np.float32)
        np.savez(file, image=images)
    return file


def _trtopt(model: str, images: Path, folder: Path, method: str) -> list[str]:
    out = ["-o", str(folder / "ours.onnx"), "--precision", "int8", "--target", "8.6"]
    return [
        sys.executable,
        "-m",
        "trtopt",
        "quantize",
        model,
        *out,
        "--data",
        str(images),
        "--method",
        method,
    ]


def _peer(python: str, model: str, images: Path, folder: Path, method: str) -> list[str]:
    copied = shutil.copy(model, folder / "peer.onnx")  # it writes to its input
    command = [python, "-m", "modelopt.onnx.quantization", "--onnx_path", copied, "--quantize_mode", "int8"]
    command += ["--calibration_method", method, "--calibration_data_path", str(images)]
    return [*command, "--output_path", str(folder / "theirs.onnx"), "--high_precision_dtype", "fp32"]


def _run(command: list[str]) -> dict[str, Any]:
    """Seconds and MiB of one process and its children."""
    began = time.perf_counter()
    log = Path(command[command.index("-o") + 1 if "-o" in command else command.index("--output_path") + 1])
    with log.with_suffix(".txt").open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: status {status}, see {log.with_suffix('.txt')}")
    return {
        "wall_s": time.perf_counter() - began,
        "processor_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
