"""Where INT8 pays, found out by `trtopt build` itself for four models at several batch sizes.

    python verdict.py jobs --peers FOLDER --light LIGHT --work WORK --out OUT [--precision best] > JOBS.json
    python ../on_every_gpu.py JOBS.json DONE 1500
    python verdict.py table --out OUT

ResNet-50 and BERT-base are those of `run.py` (`--peers`); the others are graphs of `weights.py` in LIGHT,
exported in FP32. A job is one model: `trtopt build --precision … --calib …` for all its batch sizes at once,
on a GPU of its own, with the store's timing cache: layers that `run.py` has built are not timed again. What
came of it is written as `OUT/PRECISION-MODEL.json` (the verdict from the manifest, build times, wall time).
The engines stay in WORK, where `run.py measure` takes those that were handed out for one side more.

`verdict.py run MODEL … --backend onnxruntime` tries one without a GPU (the times are the CPU's).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from run import SIDES, handed_out, refilled, samples_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from turns import SOURCES
from weights import fill

LIGHT = {"efficientnet-b0": (1, 32), "vit-b16": (1, 8, 32, 128)}
"""Batch sizes by model; EfficientNet's depthwise convolutions take minutes an engine."""
ENGINES_AT_ONCE = 2


def main() -> None:
    """Print the jobs, run one, or show what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["jobs", "run", "table"])
    parser.add_argument("model", nargs="?", choices=[*SIDES, *LIGHT], help="of `run`")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--light", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", default="int8", choices=["int8", "best"])
    parser.add_argument("--backend", default="tensorrt")
    asked = parser.parse_args()
    if asked.step == "jobs":
        json.dump([job(asked, model) for model in (*SIDES, *LIGHT)], sys.stdout, indent=1)
    elif asked.step == "run":
        run(asked, asked.model)
    else:
        print(table([json.loads(file.read_text()) for file in sorted(asked.out.glob("*.json"))]))


def job(asked: argparse.Namespace, model: str) -> dict[str, str]:
    """For `on_every_gpu.py`."""
    places = [f"--{name}={getattr(asked, name).absolute()}" for name in ("peers", "light", "work", "out")]
    how = [f"--precision={asked.precision}", f"--backend={asked.backend}"]
    command = [sys.executable, str(Path(__file__).absolute()), "run", model, *places, *how]
    return {"name": f"verdict-{asked.precision}-{model}", "run": shlex.join(command)}


def run(asked: argparse.Namespace, model: str) -> None:
    """Build with the verdict, and write what came of it."""
    import trtopt

    asked.work.mkdir(parents=True, exist_ok=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    source, samples = asked.work / f"{model}-float.onnx", asked.work / f"{model}-verdict.npz"
    if model in SIDES:
        source.write_bytes(refilled(asked.peers, SIDES[model]["float"]).SerializeToString())
        shapes, batches = SIDES[model]["shapes"], tuple(sorted(SIDES[model]["batches"]))
    else:
        fill(asked.light / f"{model}.onnx.gz", source)
        shapes, batches = {}, LIGHT[model]
    np.savez(samples, **samples_of(onnx.load(source, load_external_data=False)))
    began = time.monotonic()
    manifest = trtopt.build(
        source,
        handed_out(asked.work, model, asked.precision),
        batch=batches,
        precision=asked.precision,
        calib=str(samples),
        shapes=shapes or None,
        jobs=ENGINES_AT_ONCE,
        backend=asked.backend,
        tactic_sources=SOURCES if asked.backend == "tensorrt" else None,
        force=True,
    )
    result = {
        "model": model,
        "seconds": round(time.monotonic() - began, 1),
        "build_seconds": [engine.build_seconds for engine in manifest.engines],
        "verdict": msgspec.to_builtins(manifest.verdict),
        "notes": manifest.notes,
    }
    place = asked.out / f"{asked.precision}-{model}.json"
    place.write_text(json.dumps(result, indent=1) + "\n")


def table(results: list[dict[str, Any]]) -> str:
    """One row a candidate and batch size."""
    lines = ["| model | batch | candidate | ms | against the baseline | verdict | handed out |"]
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
