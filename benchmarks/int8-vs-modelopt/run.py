"""INT8 by `trtopt quantize` and by Model Optimizer, side by side, engines tuned for each batch size.

    cd benchmarks/int8-vs-modelopt
    python run.py jobs build --peers FOLDER --work WORK --out OUT > BUILDS.json
    python ../shared/on_every_gpu.py BUILDS.json DONE 1500
    python run.py jobs measure --work WORK --out OUT > MEASUREMENTS.json
    python ../shared/on_every_gpu.py MEASUREMENTS.json DONE 1500
    python run.py table --out OUT

FOLDER holds `r50`, `r50_mo_int8_32`, `bert` and `bert_mo_int8_32`, each a graph whose large initializers are
empty (`NAME.pb.gz`) and what to fill them with (`NAME.json`: shape, type and standard deviation by name). The
weights are seeded noise: graph, Q/DQ and scales are real, and so is the speed.

Every case is one model at one batch size. Its sides are built one after the other, with the store's timing
cache; several cases may share a card meanwhile (`--gpus 0,0,0`). Then they are measured in turns, forwards
and backwards, on a card of their own. All engines have one recipe: static batch, FP16 and INT8 allowed,
tactics without cuDNN and cuBLAS, a CUDA graph, no copies. Where `verdict.py` has been run with the same WORK,
the engine that it selected is one side more; and so is, for ResNet-50, one engine of the peer's graph for
all batch sizes. `build MODEL:BATCH --backend tensorrt-rtx` tries the first half on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtopt.onnxio.graph_walk import WEAK_TYPES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
import turns
from peer_graphs import fill_biases
from turns import SOURCES

ATTENTION_LAYERS = ("*/attention/*",)
SIDES: dict[str, dict[str, Any]] = {
    "resnet50": {
        "float": "r50",
        "peer": "r50_mo_int8_32",
        "sides": ("fp16", "peer int8", "ours int8", "ours int8, float head"),
        "asked": {"ours int8": {}, "ours int8, float head": {"exclude": ("Gemm",)}},
        "shapes": {},
        "batches": (1, 64, 8, 128),
    },
    "bert-base": {
        "float": "bert",
        "peer": "bert_mo_int8_32",
        "sides": ("fp16", "ours int8, attention too", "peer int8", "ours int8", "ours int8, FFN alone"),
        "asked": {
            "ours int8": {},
            "ours int8, FFN alone": {"exclude": ATTENTION_LAYERS},
            "ours int8, attention too": {"include": ATTENTION_LAYERS},
        },
        "shapes": {"ids": "Nx128", "mask": "Nx128"},
        "batches": (32, 1, 8),
    },
}
HANDED_OUT = "selected"
ONE_ENGINE, ONE_ENGINE_SIZES = "peer int8, one engine", {"resnet50": (1, 64, 128)}
"""The peer's graph as one engine for all batch sizes, tuned at the second, as its users build it."""
SAMPLES = 32


def main() -> None:
    """Print the jobs, run the case of one, or show what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["jobs", "build", "measure", "table"])
    parser.add_argument("what", nargs="?", metavar="MODEL:BATCH", help="of `jobs`: build or measure")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="tensorrt")
    args = parser.parse_args()
    if args.step == "jobs":
        json.dump(jobs(args), sys.stdout, indent=1)
    elif args.step == "table":
        print(table([json.loads(file.read_text()) for file in sorted(args.out.glob("*.json"))]))
    else:
        model, batch = args.what.split(":")
        (build_case if args.step == "build" else measure_case)(args, model, int(batch))


def jobs(args: argparse.Namespace) -> list[dict[str, str]]:
    """For `on_every_gpu.py`: a case each, that of the first batch size of every model first."""
    longest = max(len(spec["batches"]) for spec in SIDES.values())
    cases = [
        (model, spec["batches"][turn])
        for turn in range(longest)
        for model, spec in SIDES.items()
        if turn < len(spec["batches"])
    ]
    peers = ["--peers", args.peers] if args.what == "build" else []
    places = [
        *peers,
        "--work",
        args.work,
        "--out",
        args.out,
        "--backend",
        args.backend,
    ]
    command = [sys.executable, Path(__file__).absolute(), args.what, "{}", *places]
    return [
        {
            "name": f"{'build-' if args.what == 'build' else ''}int8-{model}-{batch}",
            "run": shlex.join(str(word).format(f"{model}:{batch}") for word in command),
        }
        for model, batch in cases
    ]


# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────


def refilled(folder: Path, name: str) -> onnx.ModelProto:
    """The graph with seeded weights of its shapes and deviations."""
    model = onnx.load_from_string(gzip.decompress((folder / f"{name}.pb.gz").read_bytes()))
    wanted = json.loads((folder / f"{name}.json").read_text())
    random = np.random.default_rng(1)
    constants = [
        (f"const:{node.output[0]}", item.t)
        for node in model.graph.node
        if node.op_type == "Constant"
        for item in node.attribute
        if item.name == "value"
    ]
    for key, tensor in [*((item.name, item) for item in model.graph.initializer), *constants]:
        if key in wanted:
            shape, dtype, deviation = wanted[key]
            values = random.standard_normal(shape, dtype=np.float32) * max(deviation, 1e-3)
            tensor.raw_data = (np.rint(values) if "int" in dtype else values).astype(dtype).tobytes()
    fill_biases(model)
    return model


def allow_half(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model so that TensorRT 8.6 reads it, and may run it in FP16, as trtexec --fp16 does.

    Model Optimizer numbers its graphs 19; their operators mean the same at 17, the newest that 8.6 reads.
    """
    model.opset_import[0].version = min(model.opset_import[0].version, 17)
    onnx.checker.check_model(model)
    model.metadata_props.add(key=WEAK_TYPES, value="float16")
    path.write_bytes(model.SerializeToString())
    return path


def file_of(work: Path, model: str, side: str) -> Path:
    """Where a side's graph lies."""
    return work / f"{model}-{side.replace(', ', '-').replace(' ', '-')}.onnx"


def prepared(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """What came of preparing the model's graphs, which is done once."""
    args.work.mkdir(parents=True, exist_ok=True)
    summary = args.work / f"{model}.prepared.json"
    with (args.work / f"{model}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not summary.is_file():
            summary.write_text(json.dumps(prepare(args, model)))
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def prepare(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Write the graphs of all sides; how long quantising took."""
    import trtopt
    from trtopt.requests.models import QuantizeOptions
    from trtopt.rewrite.rewrite import rewrite_model
    from trtopt.workflows.precision.quantize import quantize

    spec, summary = SIDES[model], {}
    source, work = args.work / f"{model}.onnx", args.work
    source.write_bytes(refilled(args.peers, spec["float"]).SerializeToString())
    allow_half(refilled(args.peers, spec["peer"]), file_of(work, model, "peer int8"))
    rewritten, half = work / f"{model}-rewritten.onnx", file_of(work, model, "fp16")
    rewrite_model(source, rewritten, target="8.6", check=False)
    trtopt.cast(rewritten, half, precision="fp16", target="8.6", compare=False)
    samples = work / f"{model}.npz"
    np.savez(samples, **samples_of(onnx.load(source, load_external_data=False)))
    for side, patterns in spec["asked"].items():
        request = QuantizeOptions(precision="int8", target="8.6", data=str(samples), method="max", **patterns)
        report = quantize(source, file_of(work, model, side), request)
        summary[side] = {"seconds": report.seconds, "activations": report.pairs, "weights": report.weights}
    return summary


def samples_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Seeded inputs to calibrate on."""
    random, found = np.random.default_rng(0), {}
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        shape = [axis.dim_value or (SAMPLES if place == 0 else 128) for place, axis in enumerate(axes)]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        drawn = random.standard_normal(shape, dtype=np.float32)
        found[value.name] = drawn if is_float else np.ones(shape, np.int64)
        if value.name == "ids":
            found[value.name] = random.integers(0, 30_000, shape)
    return found


# ── cases ───────────────────────────────────────────────────────────────────────────────────────────────


def folder_of(args: argparse.Namespace, model: str, batch: int, side: str) -> Path:
    """The build of one side of a case."""
    work: Path = args.work
    return work / f"{model}-{batch}-{file_of(work, model, side).stem}"


def selected(work: Path, model: str, precision: str, batch: int) -> Path:
    """The build that `verdict.py` makes of a model for a batch size."""
    return work / f"{model}-{batch}-verdict-{precision}"


def one_engine(work: Path, model: str) -> Path:
    """The build of the peer's graph for all batch sizes."""
    return work / f"{model}-peer-one-engine"


def build_case(args: argparse.Namespace, model: str, batch: int) -> None:
    """Build every side; the file is rewritten after each."""
    import trtopt

    spec, sizes = SIDES[model], ONE_ENGINE_SIZES.get(model, (0, 0))
    args.out.mkdir(parents=True, exist_ok=True)
    place = args.out / f"{model}-{batch}.json"
    result: dict[str, Any] = {
        "model": model,
        "batch": batch,
        "prepared": prepared(args, model),
        "sides": {},
    }
    sources = SOURCES if args.backend == "tensorrt" else None
    for side in spec["sides"]:
        start = time.monotonic()
        manifest = trtopt.build(
            file_of(args.work, model, side), folder_of(args, model, batch, side), batch=(batch,),
            backend=args.backend, shapes=spec["shapes"] or None, tactic_sources=sources, rewrite="none",
        )  # fmt: skip
        seconds, engine = round(time.monotonic() - start, 1), manifest.engines[0].sha256[:12]
        result["sides"][side] = {"build_s": seconds, "engine": engine, "p50_ms": []}
        place.write_text(json.dumps(result))
        print(model, batch, side, f"built in {seconds} s", flush=True)
    if batch == sizes[1]:
        trtopt.build(
            file_of(args.work, model, "peer int8"), one_engine(args.work, model), batch=sizes, dynamic=True,
            backend=args.backend, shapes=spec["shapes"] or None, tactic_sources=sources, rewrite="none",
        )  # fmt: skip


def measure_case(args: argparse.Namespace, model: str, batch: int) -> None:
    """Measure in turns what was built; the file is rewritten after each."""
    place = args.out / f"{model}-{batch}.json"
    result = json.loads(place.read_text())
    folders = {side: folder_of(args, model, batch, side) for side in result["sides"]}
    others = {
        HANDED_OUT: selected(args.work, model, "int8", batch),
        ONE_ENGINE: one_engine(args.work, model),
    }
    for side, folder in others.items():
        if folder.is_dir():
            folders[side] = folder
            result["sides"][side] = {"p50_ms": []}

    def note(side: str, ms: float) -> None:
        result["sides"][side]["p50_ms"].append(ms)
        place.write_text(json.dumps(result))

    turns.measure(folders, batch, note)


def table(results: list[dict[str, Any]]) -> str:
    """Medians over the turns, and each side's gain over the peer's."""
    lines = ["| model | batch | side | p50 ms | peer / side |", "|---|--:|---|--:|--:|"]
    for item in sorted(results, key=lambda item: (item["model"], item["batch"])):
        medians = turns.medians(item["sides"])
        for side, value in medians.items():
            gain = f"{medians['peer int8'] / value:.3f}" if "peer int8" in medians else "–"
            lines.append(f"| {item['model']} | {item['batch']} | {side} | {value:.4f} | {gain} |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    main()
