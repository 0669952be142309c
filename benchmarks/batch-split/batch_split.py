"""What a chain of engines gains: a CNN in INT8, its front on parts of the batch, against the whole engine.

    python benchmarks/batch-split/batch_split.py run --light GRAPH.gz --work WORK --out OUT --budget 540
    python benchmarks/batch-split/batch_split.py table OUT
    python benchmarks/batch-split/batch_split.py run --dry-run --work WORK --out OUT

The graph comes without weights (`benchmarks/shared/weights.py empty`) or whole, as --model; INT8 scales come
from random images. Both engines take turns in one process (`trtopt compare`). A cell is a JSON file in OUT:
the same line again goes on where the budget ended. The dry run takes the digits model and ONNX Runtime.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import trtopt
from trtopt.device.backends import open_builder
from trtopt.errors import TrtoptError
from trtopt.files.manifests import read_manifest
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.segments import Cut, CutGraph
from trtopt.records import Manifest
from trtopt.targets import target_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from cells import ROOT, read, write
from weights import fill

LAYOUTS = {"int8": ("chw32", ""), "float16": ("hwc8", "")}
"""The formats between two engines that are tried, by type; empty is the linear one."""


@dataclass(frozen=True)
class Setting:
    """What is measured: batches, parts, and how long."""

    batches: tuple[int, ...] = (128, 256)
    parts: tuple[int, ...] = (4, 2, 8)
    stages: tuple[tuple[int, ...], ...] = ((256, 56, 56), (512, 28, 28))
    backend: str = "tensorrt"
    duration: float = 4.0
    images: int = 32


DRY = Setting((8,), (2, 4), ((16, 8, 8), (32, 4, 4)), "onnxruntime", 0.2, 8)


def int8_graph(model: Path, work: Path, setting: Setting) -> Path:
    """The rewritten, quantised graph that all engines are built from; INT8 scales come from random images."""
    graph, data = work / "int8.onnx", work / "images.npz"
    if not graph.exists():
        (spec,) = read_onnx(model).inputs
        shape = (setting.images, *(int(axis) for axis in spec.shape[1:]))
        np.savez(data, **{spec.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
        target = target_of(open_builder(setting.backend).backend).name
        trtopt.rewrite(model, work / "rewritten.onnx", target=target)
        trtopt.quantize(work / "rewritten.onnx", graph, precision="int8", data=data, target=target)
    return graph


def engine(graph: Path, folder: Path, setting: Setting, batch: int, split: Sequence[str] = ()) -> Manifest:
    """A build folder with one engine, or one chain."""
    if folder.exists():
        return read_manifest(folder)
    return trtopt.build(
        graph,
        folder,
        batch=batch,
        backend=setting.backend,  # type: ignore[arg-type]
        rewrite="none",
        split=split or None,
    )


def cut_after(graph: CutGraph, stage: tuple[int, ...]) -> Cut | None:
    """The narrowest place, of several the last, where a tensor of a stage's shape carries all."""
    fitting = [cut for cut in graph.cuts() if graph.spec(cut.tensors[0]).shape[1:] == stage]
    return min(reversed(fitting), key=lambda cut: cut.bytes_per_sample, default=None)


def cells(graph: Path, setting: Setting) -> list[tuple[int, int, str]]:
    """(batch, parts, split) in the order in which they are measured: the most telling first."""
    (spec,) = read_onnx(graph).inputs
    known = target_of(open_builder(setting.backend).backend).io_formats
    proto = model_file.load(graph).proto
    found = []
    for batch in setting.batches:
        cuts = CutGraph(proto, {spec.name: (batch, *(int(axis) for axis in spec.shape[1:]))})
        for stage in setting.stages:
            cut = cut_after(cuts, stage)
            if cut is None:
                raise SystemExit(f"no tensor of shape {stage} carries all: give other stages")
            (name,) = cut.tensors
            dtype = cuts.spec(name).dtype
            formats = LAYOUTS.get(dtype, ("",)) if setting.backend != "onnxruntime" else ("",)
            for order, layout in enumerate(one for one in formats if not one or one in known[dtype]):
                for parts in setting.parts:
                    text = f"{name}={layout}:{parts}" if layout else f"{name}:{parts}"
                    found.append((order, setting.parts.index(parts), batch, parts, text))
    return [one[2:] for one in sorted(found, key=lambda one: one[:2])]


def measure(graph: Path, work: Path, setting: Setting, batch: int, split: str) -> dict[str, Any]:
    """One cell: the chain against the whole engine, in turns."""
    began = time.monotonic()
    whole, chain = work / f"whole-{batch}", work / f"chain-{batch}-{file_name(split)}"
    engine(graph, whole, setting, batch)
    made = engine(graph, chain, setting, batch, [split])
    built_s = time.monotonic() - began
    checked = trtopt.check(chain, graph, data=work / "images.npz")
    compared = trtopt.compare(whole, chain, duration=setting.duration)
    (row,) = compared.outcome.rows
    ratio = row.comparison.ratio
    bytes_between = sum(
        int(np.prod(spec.shape)) * one.repeats * np.dtype(spec.dtype).itemsize
        for one in made.engines[0].chain[:-1]
        for spec in one.outputs
    )
    return {
        "built_s": built_s,
        "bytes_between": bytes_between,
        "cosine": min(output.cosine for output in checked.subjects[0].outputs),
        "whole_ms": row.a_ms,
        "chain_ms": row.b_ms,
        "ratio": None if ratio is None else [ratio.low, ratio.value, ratio.high],
        "verdict": row.comparison.verdict.name,
        "unstable": list(row.remarks),
    }


def run(args: argparse.Namespace) -> None:
    """Every cell that is not there yet, until the budget ends."""
    began, setting = time.monotonic(), DRY if args.dry_run else Setting()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.model or args.work / "model.onnx"
    if args.dry_run:
        model = ROOT / "models" / "digits" / "digits.onnx"
    elif args.light is not None and not model.exists():
        fill(args.light, model)
    graph = int8_graph(model, args.work, setting)
    last_s = 0.0
    for batch, parts, split in cells(graph, setting):
        file = args.out / f"{batch}-{file_name(split)}.json"
        if file.exists():
            continue
        started = time.monotonic()
        if started - began + 1.2 * last_s > args.budget:
            print(f"budget: {split} at batch {batch} and what follows is left", flush=True)
            break
        cell: dict[str, Any] = {"batch": batch, "parts": parts, "split": split}
        try:
            cell |= measure(graph, args.work, setting, batch, split)
        except TrtoptError as error:
            cell["failed"] = error.problem
        write(file, cell)
        last_s = time.monotonic() - started
        print(f"{line_of(cell)} ({last_s:.0f} s)", flush=True)


def file_name(split: str) -> str:
    """A cut as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in split).strip("-")


def line_of(cell: dict[str, Any]) -> str:
    """A cell in one line: rates of the whole engine and of the chain."""
    where = f"batch {cell['batch']} {cell['split']}"
    if "failed" in cell:
        return f"{where}: failed: {cell['failed']}"
    rates = ", ".join(
        f"{cell['batch'] / cell[name] * 1e3:,.0f} samples/s" for name in ("whole_ms", "chain_ms")
    )
    return f"{where}: whole and chain {rates}; the chain is {cell['verdict']}"


def main() -> None:
    """Measure or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("run")
    measuring.add_argument("--light", type=Path)
    measuring.add_argument("--model", type=Path)
    measuring.add_argument("--work", type=Path, required=True)
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--budget", type=float, default=1e9, help="seconds")
    measuring.add_argument("--dry-run", action="store_true")
    table = commands.add_parser("table")
    table.add_argument("out", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        if not (args.dry_run or args.light or args.model):
            parser.error("run: --light or --model is needed")
        run(args)
        return
    for file in sorted(args.out.glob("*.json")):
        print(line_of(read(file)))


if __name__ == "__main__":
    main()
