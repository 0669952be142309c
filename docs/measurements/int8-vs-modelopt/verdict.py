"""The break-even verdict for ResNet-50 and BERT-base on one machine's GPUs, by `trtopt build` itself.

    python docs/measurements/int8-vs-modelopt/verdict.py --peers FOLDER --out FOLDER [--precision int8|best]

FOLDER of `--peers` holds `r50` and `bert` as for `run.py`, whose seeded weights and samples are taken.
Every case is one model at one batch size: `trtopt build --precision … --calib …`, a process of its own with a
time limit (`--seconds-a-case`), one a GPU at a time; none begins after `--seconds`. Cases of a model share a
timing cache. What came of each is written as soon as it is there: `PRECISION-MODEL-BATCH.json` (the verdict
from the manifest, build times, wall time) and its log. What is there already is not measured again, so that
an interrupted run goes on where it was.

Without a GPU `--backend tensorrt-rtx` tries the graphs (engines are built and not measured) and `onnxruntime`
all of it (the times are the CPU's).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from run import SIDES, refilled, samples_of

TACTICS = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"  # neither cuDNN nor cuBLAS is needed for these models


def main() -> None:
    """Prepare the models once, run the cases, print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", default="int8", choices=["int8", "best"])
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--models", nargs="*", default=list(SIDES))
    parser.add_argument("--batches", nargs="*", type=int, help="only these batch sizes")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--seconds-a-case", type=float, default=420.0)
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    asked.out.mkdir(parents=True, exist_ok=True)
    for model in asked.models:
        prepare(asked, model)
    cases = [
        (model, batch)
        for model in asked.models
        for batch in SIDES[model]["batches"]
        if not asked.batches or batch in asked.batches
    ]
    waiting = [case for case in cases if not place_of(asked, *case).is_file()]
    guard = threading.Lock()

    def serve(gpu: str) -> None:
        while time.monotonic() < end:
            with guard:
                if not waiting:
                    return
                model, batch = waiting.pop(0)
            run_case(asked, model, batch, gpu, min(asked.seconds_a_case, end - time.monotonic()))

    threads = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus(asked.backend)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = [json.loads(file.read_text()) for case in cases if (file := place_of(asked, *case)).is_file()]
    print(table(results))


def gpus(backend: str) -> list[str]:
    """Where cases go on at once: those of CUDA_VISIBLE_DEVICES, or all."""
    if backend != "tensorrt":
        return [""]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]


def place_of(asked: argparse.Namespace, model: str, batch: int) -> Path:
    """Where a case's result goes."""
    place: Path = asked.out / f"{asked.precision}-{model}-{batch}.json"
    return place


def prepare(asked: argparse.Namespace, model: str) -> None:
    """The float model and its samples, unless they are there."""
    source, samples = asked.out / f"{model}.onnx", asked.out / f"{model}.npz"
    if not source.is_file():
        source.write_bytes(refilled(asked.peers, SIDES[model]["float"]).SerializeToString())
        np.savez(samples, **samples_of(onnx.load(source)))


def run_case(asked: argparse.Namespace, model: str, batch: int, gpu: str, seconds: float) -> None:
    """One build with its verdict; a case that fails or takes too long leaves its log alone."""
    place = place_of(asked, model, batch)
    folder = asked.out / f"{asked.precision}-{model}-{batch}.trtopt"
    command = [
        *(sys.executable, "-m", "trtopt", "build", str(asked.out / f"{model}.onnx"), "-o", str(folder)),
        *("--batch", str(batch), "--precision", asked.precision, "--calib", str(asked.out / f"{model}.npz")),
        *("--backend", asked.backend, "--allow-fallback"),
        *(part for name, shape in SIDES[model]["shapes"].items() for part in ("--shape", f"{name}:{shape}")),
        *(("--tactic-sources", TACTICS) if asked.backend == "tensorrt" else ()),
        *(("--timing-cache", str(asked.out / f"{model}.cache")) if asked.backend == "tensorrt" else ()),
    ]
    visible = {"CUDA_VISIBLE_DEVICES": gpu} if asked.backend == "tensorrt" else {}
    print(f"{model} {batch} on GPU {gpu}: at most {seconds:.0f} s", flush=True)
    began = time.monotonic()
    with place.with_suffix(".log").open("w") as log:
        try:
            subprocess.run(
                ["env", *(f"{name}={value}" for name, value in visible.items()), *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=max(seconds, 1),
                check=True,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"{model} {batch}: {error}; see {log.name}", flush=True)
            return
    manifest = json.loads((folder / "manifest.json").read_bytes())
    result = {
        "model": model,
        "batch": batch,
        "seconds": round(time.monotonic() - began, 1),
        "build_seconds": [engine["build_seconds"] for engine in manifest["engines"]],
        "verdict": manifest["verdict"],
        "notes": manifest["notes"],
    }
    place.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{model} {batch}: {result['seconds']} s", flush=True)


def table(results: list[dict[str, Any]]) -> str:
    """One row a candidate."""
    lines = ["| model | batch | candidate | p50 ms | against the baseline | verdict | handed out |"]
    lines.append("|---|--:|---|--:|--:|---|---|")
    for result in results:
        for batch in (result["verdict"] or {"batches": []})["batches"]:
            for one in batch["times"]:
                judged = one["against_baseline"] or {"ratio": 1.0, "verdict": "baseline"}
                taken = "yes" if one["candidate"] == batch["chosen"] else ""
                cells = (result["model"], batch["batch"], one["candidate"], f"{one['latency_ms']:.4f}")
                told = (f"{judged['ratio'] - 1:+.1%}", judged["verdict"], taken)
                lines.append(f"| {' | '.join(map(str, (*cells, *told)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
