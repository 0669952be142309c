"""Every model of the collection: plain TensorRT in FP16 against `trtopt build --precision fp16`.

    python plain.py run --light LIGHT --work WORK --out OUT --revision REV --budget 1500
    python plain.py table --out OUT

LIGHT holds the exported FP32 graphs without weights (`../collection/graphs.py LIGHT --dtype fp32`), which are
refilled from a seed. A cell is a model and a batch size; it is written to OUT/MODEL-BATCH.json as soon as it
is measured, and kept. Both engines have the batch size fixed:

    plain    the FP32 graph with the builder's FP16 flag, as `trtexec --fp16` builds it (replay.py)
    trtopt   `trtopt build --precision fp16`; with `--rewrite all` by all rewrite rules, into another OUT

With `--first export` the first is not plain TensorRT but `trtopt build --precision fp16 --rewrite none`: what
the rewrite rules alone do, into another OUT.

They are measured in turns in one process by a loop of this benchmark's own (replay.py). Where trtopt's engine
is slower both are built and measured once more (MODEL-BATCH-again.json), with empty timing caches: two builds
of one graph differ. A cell that will not be done within what is left of `--budget` is passed over, one that
failed comes last. `--dry-run` goes through all of it on ONNX Runtime with the repository's own models.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collection"))
from cells import ROOT, chosen, measure, place_of, read, run_python, unmeasured
from jobs import FEWER, SHAPES
from replay import SOURCES
from weights import fill

HERE = Path(__file__).resolve().parent

BATCHES = (1, 32, 8)
"""The most telling first."""
BUILD_S = {
    "resnet50": 85,
    "bert-base": 50,
    "rnnt-prediction": 11,
    "vit-b16": 60,
    "minigo": 37,
    "dlrm": 23,
    "gpt-decode": 101,
    "gpt-prefill": 112,
    "convnext-t": 69,
    "whisper-encoder": 102,
    "rnnt-encoder": 31,
    "dlrm-dcnv2": 35,
    "rnnt-joint": 13,
    "digits": 28,
    "digits-transformer": 17,
    "bert-large": 114,
    "efficientnet-b0": 309,
    "maskrcnn": 230,
    "retinanet": 263,
    "unet3d": 140,
}
"""How long one engine for 1 to 128 took on an H200 (../collection), the most telling models first."""
MEASURING_S = 15
DRY = ("digits", "digits-transformer")
PRACTICAL = 0.01
"""A change of latency below this is none."""
MISSING = "not measured yet"


@dataclass(frozen=True)
class Cell:
    """A model at a batch size; `again` is the second pair of builds."""

    model: str
    batch: int
    again: bool = False

    @property
    def name(self) -> str:
        """Of its file, and what `--only` looks for."""
        return f"{self.model}-{self.batch}{'-again' if self.again else ''}"

    @property
    def seconds(self) -> float:
        """About what it takes."""
        return 2 * BUILD_S[self.model] + MEASURING_S


def main() -> None:
    """Measure what there is time for, or print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "table"])
    parser.add_argument("--light", type=Path, help="the graphs without weights")
    parser.add_argument("--work", type=Path, help="models and engines; may be thrown away")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--revision", default="", help="of trtopt, to be kept in every cell")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name has one of these")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="sizes")
    parser.add_argument("--first", default="plain", choices=["plain", "export"])
    parser.add_argument("--rewrite", default="default", choices=["default", "all", "none"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turn", type=float, default=0.2, help="seconds a side and round")
    parser.add_argument("--dry-run", action="store_true", help="small models on ONNX Runtime")
    args = parser.parse_args()
    if args.step == "table":
        print(table(args.out))
        return
    if args.work is None or (args.light is None and not args.dry_run):
        parser.error("run: --work and --light are needed")
    if not args.dry_run and not any(args.light.glob("*.onnx.gz")):
        parser.error(f"--light {args.light}: holds no graphs (*.onnx.gz): see README.md")
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    left = Bench(args).run()
    print("left:", ", ".join(left) or "none")


class Bench:
    """Runs cells within the budget; builds and measurements are processes of their own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.budget

    def run(self) -> list[str]:
        """Measure what is missing, what failed before last; the names of what is left."""
        out, asked = self._args.out, self._asked()
        for cell in unmeasured(asked, out):
            for one in (cell, replace(cell, again=True)):
                if one.again and (verdict_of(read(place_of(cell, out))) != "SLOWER" or one in asked):
                    break
                if self._left() > (2 if self._args.dry_run else one.seconds):
                    about = {"model": one.model, "batch": one.batch, "first": self._args.first}
                    about |= {"rewrite": self._args.rewrite, "revision": self._args.revision}
                    measure(one, out, about, partial(self._measured, one), summary)
        return [cell.name for cell in asked if "turns" not in read(place_of(cell, out))]

    def _asked(self) -> list[Cell]:
        there = {file.name.removesuffix(".onnx.gz") for file in (self._args.light or HERE).glob("*.onnx.gz")}
        names = DRY if self._args.dry_run else [name for name in BUILD_S if name in there]
        cells = [
            Cell(name, batch)
            for batch in self._args.batch
            for name in names
            if batch in FEWER.get(name, self._args.batch)
        ]
        # second builds that an earlier run had no time for
        slower = [cell for cell in cells if verdict_of(read(place_of(cell, self._args.out))) == "SLOWER"]
        cells += [replace(cell, again=True) for cell in slower]
        return chosen(cells, self._args.only)

    def _measured(self, cell: Cell) -> dict[str, Any]:
        model = self._model(cell.model)
        shapes, types = inputs_of(model, cell)
        if self._args.first == "plain":
            plain = self._plain(cell, model, shapes)
        else:
            plain, _ = self._trtopt(cell, model, "none", "export")
        ours, manifest = self._trtopt(cell, model, self._args.rewrite, "trtopt")
        engine, result = manifest["engines"][0], self._folder(cell) / "turns.json"
        words = ["--rounds", self._args.rounds, "--seconds", self._args.turn]
        self._python(
            HERE / "replay.py", "measure", plain, ours, json.dumps(shapes), json.dumps(types), result, *words
        )
        measured: dict[str, Any] = json.loads(result.read_text())
        rewrite = manifest["rewrite"] or {"applied": {}}
        about = {
            "mib": [round(file.stat().st_size / 2**20, 1) for file in (plain, ours)],
            "rules": rewrite["applied"],
            "notes": [note for note in manifest["notes"] if "FP32" in note],
            "device": engine["device"]["name"],
            "backend": f"{engine['plan']['backend']['name']} {engine['plan']['backend']['version']}",
        }
        shutil.rmtree(self._folder(cell))  # large; what is wanted of it is known
        return {**measured, **about}

    def _folder(self, cell: Cell) -> Path:
        work: Path = self._args.work
        folder = work / cell.model / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _model(self, name: str) -> Path:
        """The FP32 graph, refilled once."""
        work: Path = self._args.work
        model = work / name / "float.onnx"
        if not model.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            part = model.with_name("part.onnx")
            if self._args.dry_run:
                stored = name.replace("-", "_")
                shutil.copyfile(ROOT / "models" / stored / f"{stored}.onnx", part)
            else:
                fill(self._args.light / f"{name}.onnx.gz", part)
            part.rename(model)
        return model

    def _plain(self, cell: Cell, model: Path, shapes: Mapping[str, list[int]]) -> Path:
        if self._args.dry_run:
            copy = self._folder(cell) / "plain.onnx"
            shutil.copyfile(model, copy)
            return copy
        plan = self._folder(cell) / "plain.plan"
        cache = [] if cell.again else ["--cache", model.with_name("plain.cache")]
        self._python(HERE / "replay.py", "build", model, plan, json.dumps(shapes), *cache)
        return plan

    def _trtopt(self, cell: Cell, model: Path, rewrite: str, name: str) -> tuple[Path, dict[str, Any]]:
        """The engine, and the manifest of its folder."""
        folder = self._folder(cell) / name
        shutil.rmtree(folder, ignore_errors=True)
        words: list[object] = ["-o", folder, "--batch", cell.batch, "--precision", "fp16"]
        words += ["--rewrite", rewrite, "--allow-fallback"]
        words += [
            word
            for name, shape in extra_shapes(cell.model).items()
            for word in ("--shape", f"{name}:{shape}")
        ]
        if self._args.dry_run:
            words += ["--backend", "onnxruntime"]
        else:
            cache = "none" if cell.again else model.with_name(f"trtopt-{rewrite}.cache")
            words += ["--backend", "tensorrt", "--tactic-sources", ",".join(SOURCES), "--timing-cache", cache]
        self._python("-m", "trtopt", "build", model, *words)
        manifest = json.loads((folder / "manifest.json").read_text())
        return folder / manifest["engines"][0]["path"], manifest

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _python(self, *words: object) -> None:
        step = " ".join(Path(word).name if isinstance(word, Path) else str(word) for word in words[:3])
        run_python(step, words, self._left())


def extra_shapes(model: str) -> dict[str, str]:
    """Those that the graph leaves open besides the batch; the first of the collection's."""
    return next(iter(SHAPES.get(model, {"": {}}).values()))


def inputs_of(file: Path, cell: Cell) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The shape and the NumPy type of every input at the cell's batch size."""
    graph = onnx.load(file, load_external_data=False).graph
    given, held = extra_shapes(cell.model), {item.name for item in graph.initializer}
    shapes, types = {}, {}
    for item in graph.input:
        if item.name in held:
            continue
        tensor = item.type.tensor_type
        axes: list[object] = [axis.dim_value or "N" for axis in tensor.shape.dim]
        if item.name in given:
            axes = [*given[item.name].split("x")]
        shapes[item.name] = [cell.batch if axis == "N" else int(str(axis)) for axis in axes]
        types[item.name] = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return shapes, types


# ── judging ─────────────────────────────────────────────────────────────────────────────────────────────


def ratio_of(cell: Mapping[str, Any]) -> tuple[float, float, float]:
    """Latency of trtopt's engine over plain's: the median over rounds with its 95 % interval (bootstrap)."""
    pairs = zip(cell["turns"]["trtopt"], cell["turns"]["plain"], strict=True)
    ratios = np.array([ours["device_ms"] / plain["device_ms"] for ours, plain in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(ratios)), float(low), float(high)


def verdict_of(cell: Mapping[str, Any]) -> str | None:
    """FASTER, SLOWER or SAME, as far as one pair of builds can tell; None of what was not measured."""
    if "turns" not in cell:
        return None
    _, low, high = ratio_of(cell)
    return "SLOWER" if low > 1 + PRACTICAL else "FASTER" if high < 1 - PRACTICAL else "SAME"


def median_ms(cell: Mapping[str, Any], side: str) -> float:
    """Of all turns of a side, on the device."""
    return float(np.median([turn["device_ms"] for turn in cell["turns"][side]]))


def summary(cell: Mapping[str, Any]) -> str:
    """One line."""
    if "turns" not in cell:
        return str(cell.get("failed", MISSING))
    ratio, low, high = ratio_of(cell)
    plain, ours = (median_ms(cell, side) for side in ("plain", "trtopt"))
    interval = f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
    return f"{plain:.4f} → {ours:.4f} ms, {interval}, {verdict_of(cell)}"


def table(out: Path) -> str:
    """All cells as Markdown, with the second pair of builds where there is one."""
    found = {place.stem: read(place) for place in sorted(out.glob("*.json"))}
    lines = [
        "| model | batch | plain, ms | trtopt, ms | change (95 %) | verdict | built again | cosine | rules |",
        "|---|--:|--:|--:|--:|---|---|--:|---|",
    ]
    first = [cell for name, cell in found.items() if not name.endswith("-again")]
    for cell in sorted(first, key=lambda cell: (cell["model"], cell["batch"])):
        if "turns" not in cell:
            lines.append(f"| {cell['model']} | {cell['batch']} | failed | | | | | | |")
            continue
        ratio, low, high = ratio_of(cell)
        again = found.get(f"{cell['model']}-{cell['batch']}-again", {})
        told = f"{ratio_of(again)[0] - 1:+.1%}, {verdict_of(again)}" if "turns" in again else "–"
        rules = ", ".join(f"{count} {name}" for name, count in cell["rules"].items()) or "none"
        figures = [f"{median_ms(cell, side):.4f}" for side in ("plain", "trtopt")]
        change = f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
        row = [cell["model"], str(cell["batch"]), *figures, change, str(verdict_of(cell)), told]
        lines.append(f"| {' | '.join([*row, format(cell['cosine'], '.5f'), rules])} |")
    where = sorted({f"{cell['device']}, {cell['backend']}" for cell in first if "device" in cell})
    return "\n".join([*where, "", *lines]).strip()


if __name__ == "__main__":
    main()
