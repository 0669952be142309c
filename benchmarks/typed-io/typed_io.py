"""What an input's type and format cost: ResNet-50 in INT8, built once per input and batch, measured in turns.

    python benchmarks/typed-io/typed_io.py run --peers FOLDER --work WORK --out OUT --budget 540
    python benchmarks/typed-io/typed_io.py table --out OUT

FOLDER holds the graphs of ../headline; weights and pixels are seeded. For each batch size all engines are
built, then all of them are measured in one process, in turns of a random order. An engine is kept in WORK as
soon as it is built, a round in OUT as soon as it is measured: run it again and it goes on. What will not be
done within what is left of the budget is passed over; what failed is told in OUT and tried again last.

`build` ends after the engines, which takes no GPU with `--backend tensorrt-rtx`. `--dry-run` goes through all
of it on ONNX Runtime with a tiny model, without vectorised formats, which that has not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from cells import FailedError, OutOfTimeError, read, run_python, write
from peer_graphs import SAMPLES, refilled
from turns import SOURCES

import trtopt
from trtopt.data.packing import quantize_array
from trtopt.device.backends import open_target
from trtopt.errors import TrtoptError
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import contract_named, one_in_flight
from trtopt.measure.engine import LoadedEngine, vouched_engine
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.profiling_passes import time_layers
from trtopt.measure.loop.sampling import Finished, Subject, Until, drive, no_garbage_collection
from trtopt.measure.statistics.comparison import in_turns
from trtopt.precision.compare import Deviation
from trtopt.records import EngineRef
from trtopt.records.tensors import LINEAR

INPUTS = {
    "fp32": ("fp32", "nchw"),
    "fp16": ("fp16", "nchw"),
    "uint8-nhwc": ("uint8", "nhwc"),
    "int8": ("int8", "nchw"),
    "int8-chw4": ("int8", "chw4"),
    "int8-chw32": ("int8", "chw32"),
}
"""The type and layout of each side; a type is one graph."""
BATCHES = (64, 1, 256)
"""The most telling first."""
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CONTRACT = "serving"
"""A CUDA graph, copies from and to page-locked memory; for the rate, the next query's copy meanwhile."""
ROUNDS, BLOCK_S, STAGED = 6, 0.2, 20
LAYERS = 12
"""So many of the first layers are kept, beside those that convert formats."""
SECONDS = {"first build": 110.0, "build": 35.0, "turns": 45.0}
"""About what each takes on an H200."""


def main() -> None:
    """Build and measure what there is time for, or print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "build", "table", "turns"])
    parser.add_argument("--peers", type=Path, help="the graphs without weights")
    parser.add_argument("--work", type=Path, help="models and engines; may be thrown away")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds")
    parser.add_argument("--batch", default=",".join(map(str, BATCHES)), help="in this order")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime")
    args = parser.parse_args()
    if args.dry_run:
        args.backend = "onnxruntime"
    if args.step == "table":
        print(table(args.out))
        return
    if args.work is None:
        parser.error(f"{args.step}: --work is needed")
    batches = [int(size) for size in args.batch.split(",")]
    if args.step == "turns":  # of the engines of one batch size; `run` starts it
        measure_in_turns(args.work, args.out, batches[0], args.backend)
    else:
        args.out.mkdir(parents=True, exist_ok=True)
        args.work.mkdir(parents=True, exist_ok=True)
        left = Bench(args).run(batches, measures=args.step == "run")
        print("left:", ", ".join(left) or "none")


class Bench:
    """Runs steps within the budget, each in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.budget
        on_cpu = args.backend == "onnxruntime"
        self._inputs = [name for name, (_, layout) in INPUTS.items() if layout in LINEAR or not on_cpu]

    def run(self, batches: list[int], *, measures: bool) -> list[str]:
        """All that is missing, in order of value; returns what is left."""
        self._prepare()
        left = []
        for batch in batches:
            missing = [name for name in self._inputs if not self._is_built(name, batch)]
            failed = [name for name in missing if self._failure(name, batch).is_file()]
            for name in [one for one in missing if one not in failed] + failed:
                self._build(name, batch)
            left += [f"build {name} {batch}" for name in self._inputs if not self._is_built(name, batch)]
            there = [name for name in self._inputs if self._is_built(name, batch)]
            if not measures or not there:
                continue
            place = self._args.out / f"turns-{batch}.json"
            if not self._is_complete(place, there):
                self._measure("turns", batch)
            if not self._is_complete(place, there):
                left.append(f"turns {batch}")
        return left

    def _is_built(self, name: str, batch: int) -> bool:
        return (self._args.work / f"{batch}-{name}" / "manifest.json").is_file()

    def _failure(self, name: str, batch: int) -> Path:
        out: Path = self._args.out
        return out / f"failed-{batch}-{name}.json"

    @staticmethod
    def _is_complete(place: Path, there: list[str]) -> bool:
        """Whether all engines that there are took every turn, in one run."""
        result = read(place)
        return result.get("rounds") == ROUNDS and result["sides"].keys() >= set(there)

    # ── graphs ──────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self) -> None:
        """The model, its samples and what it answers; then one quantised graph per type, at the same time."""
        work, out = self._args.work, self._args.out
        if not (work / "reference.npy").is_file():
            model = tiny() if self._args.dry_run else refilled(self._args.peers, "r50")
            onnx.save(model, work / "float.onnx")
            name = model.graph.input[0].name
            size = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
            pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, size, size, 3), np.uint8)
            floats = ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)
            for kind, array in (("uint8", pixels), ("fp32", floats), ("fp16", floats.astype(np.float16))):
                np.savez(work / f"{kind}.npz", **{name: array})
            np.savez(work / "int8.npz", **{name: floats})  # an INT8 input is calibrated on floats
            session = onnxruntime.InferenceSession(work / "float.onnx", providers=["CPUExecutionProvider"])
            np.save(work / "reference.npy", session.run(None, {name: floats})[0])
        kinds = list(dict.fromkeys(INPUTS[name][0] for name in self._inputs))
        began = time.monotonic()
        with ThreadPoolExecutor(len(kinds)) as pool:
            for kind, failure in zip(kinds, pool.map(self._quantize, kinds), strict=True):
                note(out / f"failed-quantise-{kind}.json", failure)
        print(f"graphs: {time.monotonic() - began:.1f} s", flush=True)

    def _quantize(self, kind: str) -> str | None:
        work, out = self._args.work, self._args.work / f"{kind}.onnx"
        if out.is_file():
            return None
        (name,) = np.load(work / f"{kind}.npz").files
        typed = {"uint8": ["--io", f"{name}=uint8:nhwc", "--preprocess", "imagenet"], "fp32": []}
        words = ["--precision", "int8", "--data", work / f"{kind}.npz", "--target", self._target()]
        words += typed.get(kind, ["--io", f"{name}={kind}"])
        try:
            words = ["-m", "trtopt", "quantize", work / "float.onnx", "-o", out, *words]
            run_python(f"quantize {kind}", words, self._left())
        except (FailedError, OutOfTimeError) as error:
            return str(error) or "the budget is over"
        return None

    def _target(self) -> str:
        return {"tensorrt": "8.6", "tensorrt-rtx": "rtx"}.get(self._args.backend, "8.6")

    # ── engines ─────────────────────────────────────────────────────────────────────────────────────────

    def _build(self, name: str, batch: int) -> None:
        """From the prepared graph: only the vectorised format is left to ask for."""
        work, (kind, layout) = self._args.work, INPUTS[name]
        graph = work / f"{kind}.onnx"
        is_first = not any(self._is_built(other, batch) for other in self._inputs)
        if not graph.is_file() or self._left() < SECONDS["first build" if is_first else "build"] / 2:
            return
        words = ["-o", work / f"{batch}-{name}", "--batch", batch, "--backend", self._args.backend]
        words += ["--rewrite", "none", "--allow-fallback", "--cache-dir", work / "timings"]
        if self._args.backend == "tensorrt":
            words += ["--tactic-sources", ",".join(SOURCES)]
        if layout not in LINEAR:
            (tensor,) = np.load(work / f"{kind}.npz").files
            words += ["--io", f"{tensor}={kind}:{layout}"]
        self._step(
            f"build {name} {batch}", self._failure(name, batch), "-m", "trtopt", "build", graph, *words
        )

    def _measure(self, step: str, batch: int) -> None:
        if self._left() < SECONDS[step] / 2:
            return
        words = ["--work", self._args.work, "--out", self._args.out, "--batch", batch]
        failure = self._args.out / f"failed-{step}-{batch}.json"
        self._step(f"{step} {batch}", failure, __file__, step, *words, "--backend", self._args.backend)

    def _step(self, name: str, failure: Path, *words: object) -> None:
        """A command that says how it went; why it failed goes into a file."""
        began = time.monotonic()
        try:
            run_python(name, words, self._left())
            note(failure, None)
            told = "done"
        except FailedError as error:
            note(failure, told := str(error))
        except OutOfTimeError:
            told = "the budget is over"
        print(f"{name}: {told} ({time.monotonic() - began:.1f} s)", flush=True)

    def _left(self) -> float:
        return self._end - time.monotonic()


def note(place: Path, failure: str | None) -> None:
    """Keep why something failed, or forget it."""
    if failure is None:
        place.unlink(missing_ok=True)
    else:
        write(place, {"failed": failure})


def tiny() -> onnx.ModelProto:
    """Of the dry run: two convolutions of an image, padded and not."""
    random = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3), "u": (8, 10)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "u"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) * 0.2, name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def filled(work: Path, kind: str, batch: int) -> dict[str, np.ndarray]:
    """A batch of the samples as the input of this type takes them, in its layout without vectors."""
    file = np.load(work / f"{kind}.npz")
    rows = {name: np.resize(file[name], (batch, *file[name].shape[1:])) for name in file.files}
    if kind != "int8":
        return rows
    graph = onnx.load(work / "int8.onnx").graph
    (reader,) = (node for node in graph.node if graph.input[0].name in node.input)
    (scale,) = (numpy_helper.to_array(item) for item in graph.initializer if item.name == reader.input[1])
    return {name: quantize_array(name, array, float(scale), saturate=True) for name, array in rows.items()}


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────


class Side:
    """One engine, loaded once: a stream with one query in flight, and one that is kept busy."""

    def __init__(self, work: Path, name: str, batch: int, target: Any, resources: ExitStack) -> None:
        folder = work / f"{batch}-{name}"
        manifest = read_manifest(folder)
        (engine,) = manifest.engines
        shapes = {tensor: shape.opt for tensor, shape in engine.plan.shapes.items()}
        loaded = LoadedEngine(path=str(folder / engine.path), artifact=engine, batch=batch, shapes=shapes)
        content = vouched_engine(target, loaded)
        session = resources.enter_context(closing(target.load(content)))
        ref = EngineRef(path=engine.path, sha256=engine.sha256, label=engine.plan.label)
        self._subject = Subject(session, ref, batch, shapes, filled(work, INPUTS[name][0], batch))
        terms = contract_named(CONTRACT)
        self._one, self._busy = (
            resources.enter_context(closing(InferenceStream(session, shapes, self._subject.data, how)))
            for how in (one_in_flight(terms), terms)
        )
        (given,) = (binding for binding in self._one.bindings if binding.is_input)
        self.told: dict[str, Any] = {
            "bytes_per_sample": given.nbytes // batch,
            "type": given.dtype.name,
            "layout": given.layout,
            "graph_refused": self._one.graph_refused,
            "build_s": round(engine.build_seconds, 1),
            "engine_sha256": engine.sha256,
            "notes": [*manifest.notes, *manifest.alarms],
            "turns": [],
        }

    def warm_up(self) -> None:
        """Both streams."""
        for stream in (self._one, self._busy):
            drive([stream], Until(20, 0.3), [])

    def judge(self, reference: np.ndarray) -> None:
        """What it answers to the samples, against the FP32 graph."""
        (got,) = self._one.outputs()[0].values()
        count = min(len(got), len(reference))
        deviation = Deviation("y")
        deviation.add(reference[:count], got[:count])
        difference = deviation.result()
        self.told["cosine"], self.told["sqnr_db"] = difference.cosine, difference.sqnr_db

    def take_turn(self) -> None:
        """Latency, stages in queries of their own, and the rate; medians of the block."""
        latency = self._block(self._one, 5, BLOCK_S)
        staged = self._block(self._one, STAGED, 0.0, timed=True)
        busy = self._block(self._busy, 20, BLOCK_S)
        seconds = busy[-1][1].end_s - busy[0][1].start_s
        turn = {"latency_ms": statistics.median((one.end_s - one.start_s) * 1e3 for _, one in latency)}
        for stage in ("h2d_ms", "gpu_compute_ms", "d2h_ms"):
            times = [getattr(one, stage) for _, one in staged]
            if None not in times:
                turn[stage] = statistics.median(times)
        turn["samples_s"] = len(busy) * self._subject.batch / seconds
        self.told["turns"].append({key: round(value, 5) for key, value in turn.items()})

    def _block(
        self, stream: InferenceStream, queries: int, seconds: float, *, timed: bool = False
    ) -> list[Finished]:
        """After a switch, until when caches are another side's."""
        drive([stream], Until(3, 0.02), [])
        taken: list[Finished] = []
        drive([stream], Until(queries, seconds), taken, timed=timed)
        return taken

    def time_layers(self) -> None:
        """The first layers, and those that convert formats: medians in ms."""
        layers = [
            (layer.name, round(float(np.median(layer.ms)), 5)) for layer in time_layers(self._subject).layers
        ]
        converting = [item for item in layers if "reformat" in item[0].lower()]
        self.told["reformat_ms"] = round(sum(ms for _, ms in converting), 5)
        self.told["layers_ms"] = round(sum(ms for _, ms in layers), 5)
        self.told["first_layers"] = layers[:LAYERS]
        self.told["converting_layers"] = converting


def measure_in_turns(work: Path, out: Path, batch: int, backend: str) -> None:
    """All engines of a batch size in one process; the file is written after each round."""
    place, reference = out / f"turns-{batch}.json", np.load(work / "reference.npy")
    names = [name for name in INPUTS if (work / f"{batch}-{name}" / "manifest.json").is_file()]
    with closing(open_target(backend)) as target, ExitStack() as resources:
        result: dict[str, Any] = described(target, batch) | {"rounds": 0, "contract": CONTRACT, "sides": {}}
        sides = []
        for name in names:
            try:
                side = Side(work, name, batch, target, resources)
                side.warm_up()
                side.judge(reference)
                side.time_layers()
            except TrtoptError as error:
                result["sides"][name] = {"failed": error.problem}
            else:
                sides.append(side)
                result["sides"][name] = side.told
        order = in_turns(len(sides), ROUNDS, seed=batch)
        for turn, index in enumerate(order):
            with no_garbage_collection():
                sides[index].take_turn()
            if (turn + 1) % len(sides) == 0:
                result["rounds"] += 1
                write(place, result)


def described(target: Any, batch: int) -> dict[str, Any]:
    """Where and when."""
    return {
        "batch": batch,
        "device": target.device.info.name,
        "backend": str(target.backend),
        "trtopt": trtopt.__version__,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }


# ── table ───────────────────────────────────────────────────────────────────────────────────────────────


def table(out: Path) -> str:
    """Medians over turns, as Markdown."""
    found = sorted((read(place) for place in out.glob("turns-*.json")), key=lambda one: one["batch"])
    lines = list(dict.fromkeys(f"{one['device']}, {one['backend']}, {one['date']}" for one in found))
    lines += [
        "",
        "| input | batch | bytes/sample | copy, ms | reformats, ms | compute, ms | latency, ms | samples/s "
        "| cosine |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        for name in INPUTS:
            lines.append(row(name, one["batch"], one["sides"].get(name)))
    failures = [f"{place.stem}: {read(place)['failed']}" for place in sorted(out.glob("failed-*.json"))]
    return "\n".join([*lines, *([""] if failures else []), *failures]).strip()


def median_of(side: Mapping[str, Any], key: str) -> float:
    """Over its turns; not a number where nothing was measured."""
    values = [turn[key] for turn in side.get("turns", ()) if key in turn]
    return statistics.median(values) if values else float("nan")


def row(name: str, batch: int, side: Mapping[str, Any] | None) -> str:
    """Of the table."""
    if side is None or "failed" in side:
        return f"| {name} | {batch} |{' failed |' * 7 if side else ' not measured |' * 7}"
    times = [f"{median_of(side, key):.4f}" for key in ("h2d_ms", "gpu_compute_ms", "latency_ms")]
    copy, compute, latency = times
    return (
        f"| {name} | {batch} | {side['bytes_per_sample']:,} | {copy} | {side['reformat_ms']:.4f} | {compute} "
        f"| {latency} | {median_of(side, 'samples_s'):,.0f} | {side['cosine']:.5f} |"
    )


if __name__ == "__main__":
    main()
