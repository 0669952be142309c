"""The README's table: ResNet-50 and BERT-base by plain TensorRT, Model Optimizer, trtopt and torch.compile.

    cd benchmarks/headline
    python headline.py run --peers FOLDER --work WORK --out OUT --revision REV --budget 480
    python torch_compile.py --out OUT --budget 300          # with a Python that has torch and transformers
    python headline.py table --out OUT

FOLDER holds the graphs that ../int8-vs-modelopt takes. A cell is a model, a batch size and a side; it is
written to OUT/MODEL-BATCH-SIDE.json as soon as it is measured, and a cell that is there is kept.
The most valuable come first; one that will not be done within what is left of the budget is passed over.
Engines stay in WORK. The sides:

    plain         the exported FP32 graph with the builder's FP16 flag, as `trtexec --fp16` builds it
    trtopt-fp16   `trtopt build --precision fp16 --data …`
    modelopt-int8 Model Optimizer's INT8 graph with the builder's FP16 and INT8 flags
    trtopt-int8   `trtopt build --precision int8 --data …`: what its own measurement selects
    torch-compile torch.compile in FP16 (torch_compile.py)

Every engine has the batch size fixed, and is measured in turns with the plain one (`trtopt compare`: latency
with a CUDA graph and without copies). Its outputs are held against the FP32 graph's on ONNX Runtime.
`prepare` writes the graphs alone, which `run` does on its way, and needs no GPU. `--dry-run` goes through all
of it on ONNX Runtime with a tiny model, without a GPU and without FOLDER. Take another OUT on another GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from cells import ROOT, chosen, measure, place_of, read, run_python, unmeasured
from peer_graphs import SAMPLES, allow_half, recalibrated, refilled, samples_of

SOURCES = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""
BASELINE = "plain"
ENGINES = (BASELINE, "trtopt-fp16", "modelopt-int8", "trtopt-int8")
SIDES = {
    BASELINE: "plain FP16",
    "trtopt-fp16": "trtopt FP16",
    "modelopt-int8": "Model Optimizer INT8",
    "trtopt-int8": "trtopt INT8",
    "torch-compile": "torch.compile FP16",
}
BATCHES = ((1, 32), (8, 128))
"""The most telling first."""
LONG_S = 200.0
MISSING = "not yet measured"


@dataclass(frozen=True)
class Model:
    """One row of the table, as far as it does not depend on the batch size."""

    name: str
    float_graph: str
    peer_graph: str
    shapes: tuple[str, ...]
    seconds: Mapping[str, float]
    """About what a cell takes on an H100 with an empty store of timings, by side."""


@dataclass(frozen=True)
class Cell:
    """One figure of the table."""

    model: Model
    batch: int
    side: str

    @property
    def name(self) -> str:
        """Of its file, and what `--only` looks for."""
        return f"{self.model.name}-{self.batch}-{self.side}"


RESNET50 = Model(
    "resnet50",
    "r50",
    "r50_mo_int8_32",
    (),
    {BASELINE: 120, "trtopt-fp16": 130, "modelopt-int8": 75, "trtopt-int8": 180},
)
BERT_BASE = Model(
    "bert-base",
    "bert",
    "bert_mo_int8_32",
    ("ids:Nx128", "mask:Nx128"),
    {BASELINE: 135, "trtopt-fp16": 135, "modelopt-int8": 105, "trtopt-int8": 900},
)
DIGITS = Model("digits", "digits", "digits", (), dict.fromkeys(ENGINES, 1))
"""Of the dry run: a trained model of the repository's own; `trtopt quantize` stands in for the peer."""
MODELS = (RESNET50, BERT_BASE)


def main() -> None:
    """Prepare, measure what there is time for, or print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["prepare", "run", "table"])
    parser.add_argument("--peers", type=Path, help="the graphs without weights")
    parser.add_argument("--work", type=Path, help="models and engines; may be thrown away")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--revision", default="", help="of trtopt, to be kept in every cell")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name has one of these")
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of sampling a side")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime")
    args = parser.parse_args()
    if args.step == "table":
        print(table(args.out))
        return
    if args.work is None or (args.peers is None and not args.dry_run):
        parser.error(f"{args.step}: --work and --peers are needed")
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    models, bench = (DIGITS,) if args.dry_run else MODELS, Bench(args)
    if args.step == "prepare":
        for model in models:
            print(bench.prepared(model))
        return
    left = bench.run(cells(models))
    print("left:", ", ".join(left) or "none")


def cells(models: tuple[Model, ...]) -> list[Cell]:
    """All that engines can tell, the most valuable first, those of many minutes after the rest."""
    found: list[Cell] = []
    for batches in BATCHES:
        group = [Cell(model, batch, side) for model in models for batch in batches for side in ENGINES]
        found += sorted(group, key=lambda cell: cell.model.seconds[cell.side] > LONG_S)
    return found


class Bench:
    """Runs cells within the budget; commands of trtopt do all work, each in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.budget
        self._backend = "onnxruntime" if args.dry_run else "tensorrt"

    def run(self, wanted: list[Cell]) -> list[str]:
        """Measure what is missing, what failed before last; the names of what is left."""
        out, asked = self._args.out, chosen(wanted, self._args.only)
        for cell in unmeasured(asked, out):
            if self._left() > cell.model.seconds[cell.side]:
                about = {"model": cell.model.name, "batch": cell.batch, "side": cell.side}
                about |= {"revision": self._args.revision}
                measure(cell, out, about, partial(self._measured, cell), summary)
        return [cell.name for cell in asked if "ms" not in read(place_of(cell, out))]

    def _measured(self, cell: Cell) -> dict[str, Any]:
        plain = self._built(Cell(cell.model, cell.batch, BASELINE))
        folder = self._built(cell)
        manifest = json.loads((folder / "manifest.json").read_text())
        engine, verdict = manifest["engines"][0], manifest["verdict"]
        return {
            **self._compared(plain, folder, cell.batch),
            **self._checked(folder, cell.model),
            **(selection(verdict["batches"][0]) if verdict else {}),
            "build_s": round(engine["build_seconds"], 1),
            "engine_sha256": engine["sha256"],
            "device": engine["device"]["name"],
            "backend": f"{engine['plan']['backend']['name']} {engine['plan']['backend']['version']}",
        }

    def _built(self, cell: Cell) -> Path:
        folder = self._work(cell.model) / f"{cell.batch}-{cell.side}"
        if (folder / "manifest.json").is_file():
            return folder
        graphs = self.prepared(cell.model)
        words = ["-o", folder, "--batch", cell.batch, "--backend", self._backend]
        if self._backend == "tensorrt":
            words += ["--tactic-sources", SOURCES]
        for shape in cell.model.shapes:
            words += ["--shape", shape]
        if cell.side.startswith("trtopt-"):
            calib = ["--data", graphs / "samples.npz"]
            words += ["--precision", cell.side.removeprefix("trtopt-"), *calib]
            model = graphs / "float.onnx"
        else:
            words += ["--rewrite", "none", "--allow-fallback"]
            model = graphs / f"{cell.side}.onnx"
        self._trtopt("build", model, *words)
        return folder

    def _compared(self, plain: Path, folder: Path, batch: int) -> dict[str, Any]:
        result = folder / "compare.json"
        words = ["--batch", batch, "--duration", self._args.duration, "--json", result]
        # the sides are unlike graphs of one model: only --force compares those
        self._trtopt("compare", plain, folder, "--force", *words, fine=(0, 3, 4, 5))
        report = json.loads(result.read_text())
        (judged,), (run, *_) = report["verdicts"], report["runs"]
        baseline, ours = (median_ms(turns) for turns in run["turns"])
        return {
            "ms": ours,
            "plain_ms": baseline,
            **{key: judged[key] for key in ("ratio", "low", "high", "verdict")},
            "contract": run["turns"][0]["contract"]["name"],
        }

    def _checked(self, folder: Path, model: Model) -> dict[str, Any]:
        graphs = self.prepared(model)
        words = ["--against", graphs / "float.onnx", "--data", graphs / "samples.npz", "--json", "-"]
        report = json.loads(self._trtopt("check", folder, *words))
        (output,) = report["subjects"][0]["outputs"]
        return {key: output[key] for key in ("cosine", "sqnr_db", "top1")}

    # ── graphs ──────────────────────────────────────────────────────────────────────────────────────────

    def _work(self, model: Model) -> Path:
        work: Path = self._args.work
        return work / model.name

    def prepared(self, model: Model) -> Path:
        """The folder of the model's graphs and samples, made once and then complete."""
        folder = self._work(model) / "graphs"
        if folder.is_dir():
            return folder
        scratch = folder.with_name(f"graphs.part{os.getpid()}")  # one run a GPU may make them at once
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        if self._args.dry_run:
            self._write_digits(scratch)
        else:
            exported = refilled(self._args.peers, model.float_graph)
            onnx.save(exported, scratch / "float.onnx")
            onnx.save(allow_half(exported), scratch / f"{BASELINE}.onnx")
            samples = samples_of(exported)
            peer = recalibrated(refilled(self._args.peers, model.peer_graph), samples)
            onnx.save(allow_half(peer), scratch / "modelopt-int8.onnx")
            np.savez(scratch / "samples.npz", **samples)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(scratch)  # the other run was faster
        return folder

    def _write_digits(self, folder: Path) -> None:
        stored = ROOT / "models" / "digits"
        shutil.copyfile(stored / "digits.onnx", folder / "float.onnx")
        np.savez(folder / "samples.npz", images=np.load(stored / "heldout.npz")["images"][:SAMPLES])
        onnx.save(allow_half(onnx.load(folder / "float.onnx")), folder / f"{BASELINE}.onnx")
        calib = ["--data", folder / "samples.npz", "--precision", "int8", "--target", "8.6"]
        self._trtopt("quantize", folder / "float.onnx", "-o", folder / "modelopt-int8.onnx", *calib)

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _trtopt(self, *words: object, fine: tuple[int, ...] = (0,)) -> str:
        return run_python(f"trtopt {words[0]}", ["-m", "trtopt", *words], self._left(), fine=fine)


def summary(told: Mapping[str, Any]) -> object:
    """The latency, or why there is none."""
    return told.get("ms", told.get("failed"))


def selection(judged: Mapping[str, Any]) -> dict[str, Any]:
    """What the build selected, and each candidate's latency and the seconds of its build."""
    times = {time["candidate"]: round(time["latency_ms"], 4) for time in judged["times"]}
    seconds = {time["candidate"]: round(time["build_seconds"], 1) for time in judged["times"]}
    return {"selected": judged["chosen"], "candidates_ms": times, "candidates_build_s": seconds}


def median_ms(turns: Mapping[str, Any]) -> float:
    """Of the latency of all queries of one side."""
    blocks = turns["blocks"]
    starts = np.concatenate([block["start_ms"] for block in blocks])
    ends = np.concatenate([block["end_ms"] for block in blocks])
    return round(float(np.median(ends - starts)), 4)


# ── table ───────────────────────────────────────────────────────────────────────────────────────────────


def table(out: Path) -> str:
    """Latency, and accuracy against FP32, as Markdown."""
    found = [read(place) for place in sorted(out.glob("*.json"))]
    by_cell = {(cell["model"], cell["batch"], cell["side"]): cell for cell in found}
    names = dict.fromkeys([model.name for model in MODELS] + sorted(cell["model"] for cell in found))
    if found and all(cell["model"] == DIGITS.name for cell in found):
        names = {DIGITS.name: None}
    rows = [(name, batch) for name in names for batch in sorted(sum(BATCHES, ()))]
    where = sorted({(cell["device"], cell["backend"]) for cell in found if "device" in cell})
    lines = [f"{device}, {backend}" for device, backend in where]
    for title, shown in (("p50 latency, ms", latency), ("cosine, SQNR against FP32", accuracy)):
        lines += [
            "",
            f"| {title} | batch | {' | '.join(SIDES.values())} |",
            "|---|--:|" + "--:|" * len(SIDES),
        ]
        for name, batch in rows:
            figures = [shown(by_cell.get((name, batch, side))) for side in SIDES]
            lines.append(f"| {name} | {batch} | {' | '.join(figures)} |")
    return "\n".join(lines).strip()


def latency(cell: Mapping[str, Any] | None) -> str:
    """Milliseconds, the change against the plain engine in the same run, and what was selected."""
    if cell is None or "ms" not in cell:
        return "failed" if cell else MISSING
    text = f"{cell['ms']:.3f}"
    if cell["side"] not in (BASELINE, "torch-compile"):
        text += f" ({cell['ratio'] - 1:+.1%}, {cell['verdict']})"
    return text + (f", {cell['selected']}" if cell.get("selected") else "")


def accuracy(cell: Mapping[str, Any] | None) -> str:
    """Of the output."""
    if cell is None or "ms" not in cell:
        return "failed" if cell else MISSING
    return f"{cell['cosine']:.5f}, {cell['sqnr_db']:.1f} dB"


if __name__ == "__main__":
    main()
