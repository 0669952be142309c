"""What an input's type and format cost: one model in INT8, built once per input, measured in turns.

    python benchmarks/typed-io/typed_io.py build MODEL.onnx PIXELS.npz WORK
    python benchmarks/typed-io/typed_io.py measure WORK > results.json
    python benchmarks/typed-io/typed_io.py table results.json

PIXELS.npz holds UINT8 images [samples, H, W, 3] under the name of the model's only input, which takes them
normalised by ImageNet's figures. `--backend onnxruntime --batch 1 --rounds 1` tries the linear inputs on a
machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import trtopt
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import BenchPoint
from trtopt.records.typed_io import stored_shape

INPUTS = {
    "fp32": "fp32",
    "fp16": "fp16",
    "uint8-nhwc": "uint8:nhwc",
    "int8": "int8",
    "int8-chw4": "int8:chw4",
    "int8-chw32": "int8:chw32",
}
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
BATCHES = (1, 64, 256)
ROUNDS = 4


def build(model: Path, pixels: Path, work: Path, batches: tuple[int, ...], backend: str) -> None:
    """One build folder per input, all of one precision and one calibration set."""
    (spec,) = read_onnx(model).inputs
    images = np.load(pixels)[spec.name]
    floats = work / "floats.npz"
    normalised = ((images / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)
    np.savez(floats, **{spec.name: normalised})
    for name, io in INPUTS.items():
        if backend == "onnxruntime" and "chw" in io:
            continue
        is_pixels = io.startswith("uint8")
        trtopt.build(
            model,
            work / name,
            batch=batches,
            precision="int8",
            data=pixels if is_pixels else floats,
            verdict=False,
            io={spec.name: io},
            preprocess="imagenet" if is_pixels else None,
            backend=backend,  # type: ignore[arg-type]
        )


def measure(work: Path, batches: tuple[int, ...], rounds: int, duration: float) -> dict[str, Any]:
    """Per input and batch: bytes, and of each turn the times of copies, reformats, and the rate."""
    names = [name for name in INPUTS if (work / name).is_dir()]
    found: dict[str, dict[str, Any]] = {
        name: {
            str(batch): {"bytes_per_sample": _bytes_per_sample(work / name), "turns": []} for batch in batches
        }
        for name in names
    }
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            report = trtopt.bench(
                work / name, batch=batches, contract="trtexec-10", duration=duration, layers=turn == 0
            )
            for point in report.points:
                entry = found[name][str(point.batch)]
                entry["turns"].append(_turn(point))
                if point.layers is not None:
                    entry["reformat_ms"] = _reformats(point)
    return found


def _turn(point: BenchPoint) -> dict[str, float]:
    timed, rated = point.latency.stages, (point.throughput or point.latency).samples
    host = {
        key: round(trtopt.summarise(values).median, 4)
        for key in ("h2d_ms", "gpu_compute_ms")
        if (values := getattr(timed, key))
    }
    host["latency_ms"] = round(trtopt.summarise(point.latency.samples.latency_ms).median, 4)
    return {**host, "samples_s": round(trtopt.throughput(rated, point.batch).samples_per_s, 1)}


def _bytes_per_sample(folder: Path) -> int:
    """What is copied to the device for one sample."""
    plan = read_manifest(folder).engines[0].plan
    ((name, shapes),) = plan.shapes.items()
    (spec,) = read_manifest(folder).onnx.inputs
    stored = stored_shape(plan.io_layouts.get(name, "nchw"), (1, *shapes.opt[1:]))
    return int(np.prod(stored)) * numpy_dtype(spec.dtype).itemsize


def _reformats(point: BenchPoint) -> float:
    """The medians of the layers that convert formats, summed."""
    assert point.layers is not None
    layers = [layer for layer in point.layers.layers if "reformat" in layer.name.lower()]
    return round(float(sum(np.median(layer.ms) for layer in layers)), 4)


def table(results: dict[str, dict[str, Any]]) -> None:
    """Print medians over turns as Markdown."""
    columns = ("h2d_ms", "gpu_compute_ms", "latency_ms", "samples_s")
    print(
        "| input | batch | bytes/sample | copy, ms | reformats, ms | compute, ms | latency, ms | samples/s |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, sizes in results.items():
        for batch, entry in sizes.items():
            medians = {
                key: np.median([turn[key] for turn in entry["turns"] if key in turn] or [np.nan])
                for key in columns
            }
            print(
                f"| {name} | {batch} | {entry['bytes_per_sample']:,} | {medians['h2d_ms']:.4f} "
                f"| {entry.get('reformat_ms', float('nan')):.4f} | {medians['gpu_compute_ms']:.4f} "
                f"| {medians['latency_ms']:.4f} | {medians['samples_s']:,.0f} |"
            )


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(dest="step", required=True)
    places = {"build": ("model", "pixels", "work"), "measure": ("work",), "table": ("results",)}
    for name, paths in places.items():
        step = steps.add_parser(name)
        for place in paths:
            step.add_argument(place, type=Path)
        step.add_argument("--batch", default=",".join(map(str, BATCHES)))
        step.add_argument("--backend", default="tensorrt")
        step.add_argument("--rounds", type=int, default=ROUNDS)
        step.add_argument("--duration", type=float, default=1.0)
    args = parser.parse_args()
    batches = tuple(map(int, args.batch.split(",")))
    if args.step == "build":
        args.work.mkdir(parents=True, exist_ok=True)
        build(args.model, args.pixels, args.work, batches, args.backend)
    elif args.step == "measure":
        json.dump(measure(args.work, batches, args.rounds, args.duration), sys.stdout, indent=1)
    else:
        table(json.loads(args.results.read_text()))


if __name__ == "__main__":
    main()
