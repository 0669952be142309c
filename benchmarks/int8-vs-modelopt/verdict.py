"""Where INT8 pays, found out by `trtopt build` itself for four models at several batch sizes.

    python verdict.py jobs --peers FOLDER --light LIGHT --work WORK --out OUT [--precision best] > JOBS.json
    python ../shared/on_every_gpu.py JOBS.json DONE 1500
    python verdict.py table --out OUT

ResNet-50 and BERT-base are those of `run.py` (`--peers`); the others are graphs of `weights.py` in LIGHT,
exported in FP32. A job is a model at one batch size, on a GPU of its own: `trtopt build --precision … --data
…` with the store's timing cache: layers that `run.py` has built are not timed again. What came of it is
written as `OUT/PRECISION-MODEL-BATCH.json` (the verdict from the manifest, build times, wall time). Every
step is printed with the seconds since the job began. The engines stay in WORK, where `run.py measure` takes
those selected for one side more.

`verdict.py run MODEL BATCH … --backend onnxruntime` tries one without a GPU (the times are the CPU's).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from run import SIDES, refilled, samples_of, selected

from trtopt.workflows.listener import Listener

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from turns import SOURCES
from weights import fill

LIGHT = {"efficientnet-b0": (1, 32), "vit-b16": (1, 32, 8, 128)}
"""Batch sizes by model, the most telling first."""
OPT_LEVELS = {"efficientnet-b0": 2, "vit-b16": 2}
"""Where the builder's own takes too long: five minutes for an engine of EfficientNet's, two for each of ViT's
four.
"""


def main() -> None:
    """Print the jobs, run one, or show what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["jobs", "run", "table"])
    parser.add_argument("model", nargs="?", choices=[*SIDES, *LIGHT], help="of `run`")
    parser.add_argument("batch", nargs="?", type=int, help="of `run`")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--light", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--precision", default="int8", choices=["int8", "best"])
    parser.add_argument("--backend", default="tensorrt")
    request = parser.parse_args()
    if request.step == "jobs":
        batches = {model: side["batches"] for model, side in SIDES.items()} | LIGHT
        each = [job(request, model, batch) for model in batches for batch in batches[model]]
        json.dump(each, sys.stdout, indent=1)
    elif request.step == "run":
        if request.model is None or request.batch is None:
            parser.error("run: which MODEL, at which BATCH?")
        run(request, request.model, request.batch)
    else:
        print(table([json.loads(file.read_text()) for file in sorted(request.out.glob("*.json"))]))


def job(request: argparse.Namespace, model: str, batch: int) -> dict[str, str]:
    """For `on_every_gpu.py`."""
    places = [f"--{name}={getattr(request, name).absolute()}" for name in ("peers", "light", "work", "out")]
    how = [f"--precision={request.precision}", f"--backend={request.backend}"]
    command = [sys.executable, str(Path(__file__).absolute()), "run", model, str(batch), *places, *how]
    return {"name": f"verdict-{request.precision}-{model}-{batch}", "run": shlex.join(command)}


def run(request: argparse.Namespace, model: str, batch: int) -> None:
    """Build with the verdict, and write what came of it."""
    request.work.mkdir(parents=True, exist_ok=True)
    request.out.mkdir(parents=True, exist_ok=True)
    steps = Steps(f"{model} at {batch}")
    steps.say("writing the graph and samples")
    source, samples = prepared(request, model, batch)
    result = judged(request, model, source, samples, batch, steps.listener())
    place = request.out / f"{request.precision}-{model}-{batch}.json"
    place.write_text(json.dumps(result, indent=1) + "\n")
    steps.say(f"done in {result['seconds']} s")


def prepared(request: argparse.Namespace, model: str, batch: int) -> tuple[Path, Path]:
    """The model's graph, and samples for it, of this job's own."""
    source, samples = (request.work / f"{model}-{batch}-{name}" for name in ("float.onnx", "verdict.npz"))
    if model in SIDES:
        source.write_bytes(refilled(request.peers, SIDES[model]["float"]).SerializeToString())
    else:
        fill(request.light / f"{model}.onnx.gz", source)
    np.savez(samples, **samples_of(onnx.load(source, load_external_data=False)))
    return source, samples


def judged(
    request: argparse.Namespace, model: str, source: Path, samples: Path, size: int, listener: Listener
) -> dict[str, Any]:
    """One batch size: what was selected and why."""
    import trtopt

    began = time.monotonic()
    manifest = trtopt.build(
        source,
        selected(request.work, model, request.precision, size),
        batch=(size,),
        precision=request.precision,
        data=str(samples),
        shapes=SIDES[model]["shapes"] or None if model in SIDES else None,
        backend=request.backend,
        tactic_sources=SOURCES if request.backend == "tensorrt" else None,
        opt_level=OPT_LEVELS.get(model) if request.backend == "tensorrt" else None,
        force=True,
        listener=listener,
    )
    return {
        "model": model,
        "seconds": round(time.monotonic() - began, 1),
        "build_seconds": [engine.build_seconds for engine in manifest.engines],
        "verdict": msgspec.to_builtins(manifest.verdict),
        "notes": manifest.notes,
    }


class Steps:
    """Prints each step, with the seconds since the beginning."""

    def __init__(self, model: str) -> None:
        self._model, self._began = model, time.monotonic()
        self._labels: list[str] = []
        self._phases: dict[int, str] = {}

    def say(self, text: str) -> None:
        """Print it at once: a job that is killed later has shown how far it came."""
        print(f"{time.monotonic() - self._began:7.1f} s {self._model}: {text}", flush=True)

    def listener(self) -> Listener:
        """Hears a build."""
        return Listener(note=self.say, plans=self._plan, progress=self._progress)

    def _plan(self, labels: Sequence[str]) -> None:
        self._labels, self._phases = list(labels), {}

    def _progress(self, index: int, phase: str, fraction: float | None) -> None:
        first, *_ = phase.split()  # "turn 1 of 40" is followed by 39 more
        if self._phases.get(index) != first:
            self._phases[index] = first
            self.say(f"{self._labels[index]}: {phase}")


def table(results: list[dict[str, Any]]) -> str:
    """One row a candidate and batch size."""
    lines = ["| model | batch | candidate | ms | against the baseline | verdict | selected |"]
    lines.append("|---|--:|---|--:|--:|---|---|")
    found = [
        (result["model"], batch["batch"], batch)
        for result in results
        for batch in (result["verdict"] or {"batches": []})["batches"]
    ]
    for model, size, batch in sorted(found, key=lambda one: one[:2]):
        for one in batch["times"]:
            against = one["against_baseline"] or {"ratio": 1.0, "verdict": "baseline"}
            taken = "yes" if one["candidate"] == batch["chosen"] else ""
            cells = (model, size, one["candidate"], f"{one['latency_ms']:.4f}")
            report = (f"{against['ratio'] - 1:+.1%}", against["verdict"], taken)
            lines.append(f"| {' | '.join(map(str, (*cells, *report)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
