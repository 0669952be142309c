"""What `trtopt tune` finds within a budget: ResNet-50 at batch 1 and offline, BERT-base at batch 32.

    python tune.py run --peers FOLDER --work WORK --out OUT --revision REV --budget 480
    python tune.py table --out OUT

Run it again and it goes on, where the last candidate ended. `--dry-run` tunes a tiny model on ONNX Runtime.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from cells import ROOT, chosen, read, write
from turns import SOURCES

HERE = Path(__file__).resolve().parent
DIGITS = ROOT / "models" / "digits" / "digits.onnx"
SHAPES = {"bert": '[shapes]\nids = "Nx128"\nmask = "Nx128"\n'}
"""What a graph's recipe says of axes besides the batch."""
_STOPPING_S = 20.0
"""To end after Ctrl-C."""


@dataclass(frozen=True)
class Cell:
    """A model, an objective, batch sizes to choose among (the baseline's first), minutes to spend."""

    name: str
    graph: str
    objective: str
    batches: str
    minutes: int


CELLS = (
    Cell("resnet50-latency-1", "r50", "latency", "1", 12),
    Cell("resnet50-offline", "r50", "throughput", "128,256", 20),
    Cell("bert-base-latency-32", "bert", "latency", "32", 15),
)
DRY_CELLS = (
    Cell("digits-latency-1", "digits", "latency", "1", 1),
    Cell("digits-offline", "digits", "throughput", "8,32", 1),
)


def main() -> None:
    """Tune for as long as the budget lasts, or print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "table"])
    parser.add_argument("--peers", type=Path, help="the graphs without weights: r50 and bert")
    parser.add_argument("--work", type=Path, help="models, samples and build folders: keep it to go on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--revision", default="", help="of trtopt, to be kept in every cell")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of this call")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name has one of these")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime")
    args = parser.parse_args()
    if args.step == "table":
        print(table(args.out))
        return
    if args.work is None or (args.peers is None and not args.dry_run):
        parser.error("run: --work and --peers are needed")
    for folder in (args.out, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.budget
    for cell in chosen(DRY_CELLS if args.dry_run else CELLS, args.only):
        print(f"{cell.name}: {tuned(cell, args, end)}", flush=True)


def tuned(cell: Cell, args: argparse.Namespace, end: float) -> str:
    """Begin or continue a cell's tuning; what came of it."""
    place = args.out / f"{cell.name}.json"
    if read(place).get("stopped"):
        return "done before"
    left = end - time.monotonic()
    if left <= _STOPPING_S:
        return "no time left"
    model, samples = prepared(cell.graph, args)
    folder, result = args.work / cell.name, args.work / f"{cell.name}.tuned.json"
    recipe = recipe_of(cell.graph, args)
    command = [sys.executable, "-m", "trtopt", "tune", str(model), "-o", str(folder), "--batch", cell.batches]
    command += ["--objective", cell.objective, "--data", str(samples), "--min-cosine", "0.99", "--resume"]
    command += ["--backend", "onnxruntime" if args.dry_run else "tensorrt", "--recipe", str(recipe)]
    command += [
        "--budget",
        f"{cell.minutes}m",
        "--cache-dir",
        str(args.work / "cache"),
        "--json",
        str(result),
    ]
    if args.dry_run:
        command += ["--duration", "0.2"]
    with subprocess.Popen(command) as process:
        try:
            status = process.wait(left - _STOPPING_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                status = process.wait(_STOPPING_S)
            except subprocess.TimeoutExpired:  # what was measured is in the ledger all the same
                process.kill()
                status = process.wait()
    ledger = folder / "ledger.json"
    if not ledger.is_file():
        return f"no baseline yet (exit code {status})"
    done = read(result) if status == 0 else {}
    found = {
        "cell": cell.name,
        "revision": args.revision,
        "changes": done.get("changes"),
        "batch": done.get("batch"),
        "streams": done.get("streams"),
        "stopped": done.get("stopped", ""),
        "ledger": read(ledger),
    }
    write(place, found)
    return found["stopped"] or f"interrupted after {len(found['ledger']['entries'])} candidates"


def prepared(graph: str, args: argparse.Namespace) -> tuple[Path, Path]:
    """The float model with seeded weights, and samples."""
    model, samples = args.work / f"{graph}.onnx", args.work / f"{graph}.npz"
    if args.dry_run:
        shutil.copyfile(DIGITS, model)
        shutil.copyfile(DIGITS.with_name("heldout.npz"), samples)
    elif not samples.is_file():
        sys.path.insert(0, str(HERE.parent / "shared"))
        from peer_graphs import refilled, samples_of

        filled = refilled(args.peers, graph)
        onnx.save(filled, model)
        np.savez(samples, **samples_of(filled))
    return model, samples


def recipe_of(graph: str, args: argparse.Namespace) -> Path:
    """What the baseline is built with: no cuDNN and no cuBLAS, and lengths that the graph leaves open."""
    recipe: Path = args.work / f"{graph}.toml"
    sources = "" if args.dry_run else f"tactic_sources = {list(SOURCES)}\n"
    recipe.write_text(sources + SHAPES.get(graph, ""))
    return recipe


def table(out: Path) -> str:
    """Every candidate of every cell, predicted and measured."""
    lines = ["| cell | candidate | expected | measured | 95 % interval | s | verdict |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for file in sorted(out.glob("*.json")):
        found = read(file)
        ledger = found["ledger"]
        base = ledger["baseline"]
        lines.append(
            f"| {found['cell']} | baseline: {base['cost']:.4g} {base['unit']} | | | "
            f"| {base['total_s']:.0f} | |"
        )
        lines += [row(entry) for entry in ledger["entries"]]
        if final := ledger.get("final"):
            bounds = f"{final['low']:+.1%} to {final['high']:+.1%}"
            lines.append(f"| | the result against the baseline | | {final['gain']:+.1%} | {bounds} | | |")
    return "\n".join(lines)


def row(entry: dict[str, Any]) -> str:
    """A candidate; gains are shares saved."""
    worth = entry["predicted_gain"] * entry["probability"]
    measured = entry.get("measured_gain")
    cells = [
        "",
        entry["candidate"],
        f"{worth:+.1%}",
        "–" if measured is None else f"{measured:+.1%}",
        "–" if measured is None else f"{entry['measured_low']:+.1%} to {entry['measured_high']:+.1%}",
        f"{entry['cost_s']:.0f}",
        entry["verdict"],
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
