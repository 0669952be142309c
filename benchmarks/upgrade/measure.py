"""Planted wrong results and clean upgrades on ONNX Runtime: what `trtopt compare --upgrade` says of each.

python benchmarks/upgrade/measure.py [-o results.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import onnx
import onnxruntime
from cases import BATCH, MODELS, plant, planted, write

import trtopt
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.bounds import accuracy_alarms
from trtopt.records import OutputChange
from trtopt.requests.measure import CompareRequest
from trtopt.workflows.bench.resolve_engines import resolve_engines
from trtopt.workflows.compare.upgrade import changed_outputs, rounded_models

ROOT = Path(__file__).resolve().parents[2]
OWN = {name: ROOT / "models" / name / f"{name}.onnx" for name in ("digits", "digits_transformer")}
LEVELS = ("disable", "all")
ROUNDED = "rounded"
"""ONNX Runtime computes runs of FP16 operators in FP32: this engine rounds after each."""
PRECISIONS = ("fp32", "fp16")
SEEDS = (1, 2, 3)
"""Of weights that were not looked at while the rule was made."""


class Bench:
    """Builds each engine once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, name: str, precision: str, level: str, fault: str = "", seed: int = 0) -> Path:
        """The folder of the model, or of the wrong one."""
        if level == ROUNDED:
            return self.rounded(name, seed)
        folder = self.folder / f"{name}-{precision}-{level}-{fault}-{seed}".replace(" ", "_")
        if not folder.exists():
            path = OWN.get(name) or write(name, folder.with_suffix(".onnx"), fault, seed)
            trtopt.build(
                path,
                folder,
                batch=BATCH,
                backend="onnxruntime",
                precision="fp16" if precision == "fp16" else None,
                graph_optimization=level,
            )
        return folder

    def rounded(self, name: str, seed: int) -> Path:
        """An FP16 model whose engine rounds what each operator makes, as a GPU that fuses nothing would."""
        half = self.build(name, "fp16", "all", "", seed)
        folder = half.with_name(f"{half.name}-{ROUNDED}")
        if not folder.exists():
            graph = onnx.load(half / Path(read_manifest(half).onnx.path).name)
            path, made = (folder.with_name(f"{folder.name}{end}") for end in (".onnx", "-alone"))
            onnx.save(in_fp32(ModelFile(graph, half, external=False)).proto, path)
            trtopt.build(
                path,
                made,
                batch=BATCH,
                backend="onnxruntime",
                graph_optimization="disable",
                rewrite="none",
            )
            plant(half, made, folder)
        return folder

    def changes(self, old: Path, new: Path) -> Sequence[OutputChange]:
        """What the certificate has on results."""
        request = CompareRequest(old, new, batch=BATCH, backend="onnxruntime")
        with ExitStack() as held:
            sides = [held.enter_context(resolve_engines(path, request, [])) for path in (old, new)]
            pair = [side.engines[0] for side in sides]
            rounded = rounded_models(old / Path(read_manifest(old).onnx.path).name, pair)
            return changed_outputs(rounded, pair, request, [])


def main() -> None:
    """Every case, and a file of the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("results.json"))
    args = parser.parse_args()
    clean = [*itertools.product((*MODELS, *OWN), PRECISIONS, (LEVELS, LEVELS[::-1]), [""], [0])]
    ends = (("all", ROUNDED), (ROUNDED, "all"))
    clean += itertools.product((*MODELS, *OWN), ["fp16"], ends, [""], [0])
    others = [*itertools.product(MODELS, PRECISIONS, (LEVELS, LEVELS[::-1]), [""], SEEDS)]
    others += itertools.product(MODELS, ["fp16"], ends, [""], SEEDS)
    wrong = [(name, precision, LEVELS, fault, 0) for name, fault in planted() for precision in PRECISIONS]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        for name, precision, (a, b), fault, seed in (*clean, *others, *wrong):
            if (fault, precision) == ("rounded to FP16", "fp16"):
                continue  # which is what that model does
            old = bench.build(name, precision, a, "", seed)
            new = bench.build(name, precision, b, fault, seed)
            kind = fault or ("held out" if seed else "clean")
            start = time.perf_counter()
            changes = bench.changes(old, new)
            rows.append(
                {
                    "kind": kind,
                    "model": name,
                    "seed": seed,
                    "precision": precision,
                    "levels": f"{a} to {b}",
                    "wrong": sum(one.wrong for one in changes),
                    "undecided": sum(one.undecided for one in changes),
                    "alarms_of_check": len(accuracy_alarms([one.b for one in changes])),
                    "skipped": sum(one.skipped for one in changes),
                    "values": sum(one.values for one in changes),
                    "times": min(round(max(one.times for one in changes), 3), 1e6),
                    "inputs": sorted(
                        {what.removesuffix(" inputs") for one in changes for what in one.inputs}
                    ),
                    "seconds": round(time.perf_counter() - start, 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    head = {"trtopt": trtopt.__version__, "onnxruntime": onnxruntime.__version__}
    lines = ",\n".join(map(json.dumps, rows))
    args.output.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
