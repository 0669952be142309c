"""Kernels inside engines, cold starts, and outputs whose size depends on data, on a GPU with TensorRT 8.6.

    python benchmarks/kernels/kernels.py run --graphs FOLDER FOLDER --work WORK --out OUT --budget 560

FOLDERs hold graphs without their large weights (NAME.pb.gz and NAME.json, as ../headline takes them), which
are filled with seeded ones; `bert_int8` is `bert` after `trtopt rewrite` and `trtopt quantize` for 8.6. Jobs
run in their order, each if what is left of the budget should do; what is done is kept in OUT/NAME.json, what
failed is tried again after what is missing. Engines and the store of timings stay in WORK. For each engine
OUT has the profile with its kernels, what `trtopt profile` printed, raw records of a few inferences
(recording.py) and the graph without weights; also what CUPTI does here (cupti_probe.py). `--dry-run` goes
through it on ONNX Runtime, without FOLDERs, a GPU and records.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "headline"))

from cupti_probe import library_of_cupti
from peer_graphs import refilled, samples_of

from trtopt.files.manifests import read_manifest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""
_SMALL = 4096


class OutOfTimeError(Exception):
    """The budget ended in the middle of a job."""


class FailedError(Exception):
    """A command did not do what was asked."""


@dataclass(frozen=True)
class Engine:
    """A model in one precision, built for some batch sizes; `placed`: the graph has its Q and DQ already."""

    graph: str
    precision: str
    batches: tuple[int, ...]
    seconds: float
    samples: int = 32
    shapes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.graph}-{self.precision}-{'-'.join(map(str, self.batches))}"


BERT = ("ids:Nx128", "mask:Nx128")
PLACED = Engine("bert_int8", "placed", (32,), 100, shapes=BERT)
ENGINES = (
    Engine("r50", "fp16", (1,), 115),
    Engine("bert", "fp16", (1,), 90, shapes=BERT),
    Engine("bert", "fp16", (32,), 90, shapes=BERT),
    Engine("vit", "fp16", (1,), 130),
)
LATER = (
    Engine("bert_int8", "placed", (1,), 100, shapes=BERT),
    Engine("retinanet", "fp16", (1,), 280, samples=2),
    Engine("bert", "fp16", (8,), 90, shapes=BERT),
    Engine("bert_int8", "placed", (8,), 100, shapes=BERT),
)
DIGITS = Engine("digits", "fp16", (1,), 5, samples=8)
"""Of the dry run."""


class Jobs:
    """Runs jobs within the budget; commands do all work, each in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.budget
        self._out: Path = args.out
        self._work: Path = args.work
        self._backend = "onnxruntime" if args.dry_run else "tensorrt"
        self._environment = {"TRTOPT_CACHE_DIR": str(self._work / "store"), **os.environ}

    def jobs(self) -> Iterator[tuple[str, float, Callable[[], Any]]]:
        """Name, about how many seconds it takes, and what it does."""
        if self._args.dry_run:
            yield DIGITS.name, DIGITS.seconds, lambda: self._engine(DIGITS)
            yield "cold-start", 5, lambda: self._cold_start(DIGITS)
        else:
            yield PLACED.name, PLACED.seconds, lambda: self._engine(PLACED)
            yield "cold-start", 30, lambda: self._cold_start(PLACED)
        for name, make in SIZED.items():
            yield f"sized-{name}", 25, lambda name=name, make=make: self._sized(name, make)
        if not self._args.dry_run:
            yield "probe", 25, self._probe
            for engine in (*ENGINES, *LATER):
                yield engine.name, engine.seconds, lambda engine=engine: self._engine(engine)

    def run(self) -> list[str]:
        """Do what is missing, then what failed before; the names of what is left."""
        asked = [
            job
            for job in self.jobs()
            if not self._args.only or any(word in job[0] for word in self._args.only)
        ]
        missing = [job for job in asked if not self._place(job[0]).is_file()]
        failed = [job for job in asked if "failed" in self._read(job[0])]
        for name, seconds, work in missing + failed:
            if self._left() < seconds:
                continue
            began = time.monotonic()
            try:
                told = {"found": work()}
            except OutOfTimeError:
                print(f"{name}: the budget is over", flush=True)
                break
            except (FailedError, OSError, ValueError, KeyError) as error:
                told = {"failed": f"{type(error).__name__}: {error}"}
            told["seconds"] = round(time.monotonic() - began, 1)
            self._write(name, told)
            print(f"{name}: {told.get('failed', 'done')[:300]} ({told['seconds']} s)", flush=True)
        return [name for name, _, _ in asked if "found" not in self._read(name)]

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────

    def _probe(self) -> str:
        self._command("cupti_probe", [HERE / "cupti_probe.py", self._out / "cupti-probe.json"])
        return "see cupti-probe.json"

    def _engine(self, engine: Engine) -> dict[str, Any]:
        """Build, profile with kernels, record; what fails of the last two does not end the other."""
        began = time.monotonic()
        folder = self._built(engine)
        found: dict[str, Any] = {"build_s": round(time.monotonic() - began, 1)}
        failures = []
        for batch in engine.batches:
            name = f"{engine.graph}-{engine.precision}-b{batch}"
            steps: dict[str, Callable[[], Any]] = {
                "profile": lambda name=name, batch=batch: self._profile(folder, name, batch),
            }
            if not self._args.dry_run:
                steps["recording"] = lambda name=name, batch=batch: self._recording(folder, name, batch)
            for step, work in steps.items():
                began = time.monotonic()
                try:
                    found[f"{name} {step}"] = work()
                except FailedError as error:
                    failures.append(f"{name} {step}: {error}")
                found[f"{name} {step}_s"] = round(time.monotonic() - began, 1)
        manifest = read_manifest(folder)
        graph = folder / manifest.graph_of(manifest.engines[0]).path
        write_light(graph, self._out / f"{engine.name}.graph.pb.gz")
        if failures:
            raise FailedError("; ".join(failures))
        return found

    def _profile(self, folder: Path, name: str, batch: int) -> str:
        result = self._work / f"{name}.profile.json"
        words = ["profile", folder, "--batch", batch, "--duration", 1, "--json", result]
        words += ["-o", self._work / f"{name}.profile", "--trace"]
        try:
            printed = self._trtopt(*words, *([] if self._args.dry_run else ["--kernels"]))
        except FailedError:
            if not self._args.dry_run:  # the layers are worth having alone
                self._keep(result, f"{name}.profile", self._trtopt(*words))
            raise
        self._keep(result, f"{name}.profile", printed)
        return (printed.splitlines() or [""])[0]

    def _keep(self, result: Path, name: str, printed: str) -> None:
        (self._out / f"{name}.txt").write_text(printed)
        (self._out / f"{name}.result.json.gz").write_bytes(gzip.compress(result.read_bytes(), mtime=0))

    def _recording(self, folder: Path, name: str, batch: int) -> str:
        """In two processes: NVTX ranges take CUPTI as what is injected."""
        script = HERE / "recording.py"
        plain = [script, folder, batch, self._out / f"{name}.records.json.gz"]
        printed = self._command("recording", [*plain, "graph", "plain", "profiled", "synced"])
        library = library_of_cupti()
        marked = [script, folder, batch, self._out / f"{name}.nvtx.json.gz", "nvtx"]
        more = {"NVTX_INJECTION64_PATH": library} if library else {}
        return printed + self._command("recording", marked, more)

    def _cold_start(self, engine: Engine) -> str:
        folder = self._built(engine)
        result = self._work / "cold-start.json"
        words = ["bench", folder, "--duration", 1, "--cold-start", "--idle", "1,10,100ms"]
        printed = self._trtopt(*words, "--json", result)
        self._keep(result, "cold-start", printed)
        return printed

    def _sized(self, name: str, make: Callable[[], Sized]) -> dict[str, Any]:
        """The form whose size depends on data through check, pool and bench, and the static form."""
        sized, folder = make(), self._work / f"sized-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {}
        forms = {"dynamic": sized.dynamic} | ({"static": sized.static} if sized.static is not None else {})
        for data, arrays in sized.data.items():
            np.savez(folder / f"{data}.npz", **arrays)
        failures = []
        for form, model in forms.items():
            path, engines = folder / f"{form}.onnx", folder / form
            onnx.save(model, path)
            try:
                self._build(path, engines, ["--rewrite", "none"])
                for data in sized.data:
                    found[f"{form}, {data}"] = self._benched(engines, folder / f"{data}.npz")
                if form == "dynamic":
                    samples = folder / f"{next(iter(sized.data))}.npz"
                    check = ["check", engines, "--against", path, "--data", samples, "--json", "-"]
                    report = json.loads(self._trtopt(*check, fine=(0, 3)))
                    found["check"] = report["subjects"][0]["outputs"]
                    pool = [HERE / "kernels.py", "pool", "--work", engines, "--out", samples, "--only", path]
                    found["pool"] = json.loads(self._command("pool", pool))
            except FailedError as error:
                failures.append(f"{form}: {error}")
        if failures and (name not in UNSURE or not found):
            raise FailedError("; ".join(failures) + f"; found {json.dumps(found)}")
        return found | ({"failures": failures} if failures else {})

    def _benched(self, engines: Path, data: Path) -> dict[str, Any]:
        result = engines.with_suffix(".json")
        words = ["bench", engines, "--batch", 1, "--duration", 0.5, "--data", data, "--json", result]
        self._trtopt(*words)
        latency = json.loads(result.read_text())["points"][0]["latency"]
        samples = latency["samples"]
        whole = np.array(samples["end_ms"]) - np.array(samples["start_ms"])
        compute = [ms for ms in samples["gpu_compute_ms"] if ms is not None]
        return {
            "p50_ms": float(np.median(whole)),
            "compute_ms": float(np.median(compute)) if compute else None,
            "notes": latency["notes"],
        }

    # ── engines ─────────────────────────────────────────────────────────────────────────────────────────

    def _built(self, engine: Engine) -> Path:
        folder = self._work / engine.name
        if (folder / "manifest.json").is_file():
            return folder
        model, samples = self._graph(engine)
        words: list[object] = ["--batch", ",".join(map(str, engine.batches)), "--allow-fallback"]
        if engine.precision == "placed":
            words.append("--no-rewrite")
        else:
            words += ["--precision", engine.precision, "--data", samples]
        for shape in engine.shapes:
            words += ["--shape", shape]
        self._build(model, folder, words)
        return folder

    def _build(self, model: Path, folder: Path, words: list[object]) -> None:
        if (folder / "manifest.json").is_file():
            return
        if self._backend == "tensorrt":
            words = [*words, "--tactic-sources", SOURCES]
        self._trtopt("build", model, "-o", folder, "--backend", self._backend, *words)

    def _graph(self, engine: Engine) -> tuple[Path, Path]:
        """The graph with weights, and samples."""
        folder = self._work / "graphs"
        folder.mkdir(parents=True, exist_ok=True)
        model, samples = folder / f"{engine.graph}.onnx", folder / f"{engine.graph}.npz"
        if engine is DIGITS:
            images = np.load(ROOT / "models" / "digits" / "heldout.npz")["images"]
            np.savez(samples, images=images[: engine.samples])
            return ROOT / "models" / "digits" / "digits.onnx", samples
        if not samples.is_file():
            home = next(one for one in self._args.graphs if (one / f"{engine.graph}.pb.gz").is_file())
            filled = refilled(home, engine.graph)
            onnx.save(filled, model)
            arrays = {name: array[: engine.samples] for name, array in samples_of(filled).items()}
            np.savez(samples, **arrays)
        return model, samples

    # ── commands and files ──────────────────────────────────────────────────────────────────────────────

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _trtopt(self, *words: object, fine: tuple[int, ...] = (0, 4)) -> str:
        return self._command(f"trtopt {words[0]}", ["-m", "trtopt", *words], fine=fine)

    def _command(
        self,
        name: str,
        words: list[object],
        more: Mapping[str, str] | None = None,
        fine: tuple[int, ...] = (0,),
    ) -> str:
        """What a Python command printed; it may take what is left of the budget.

        Raises:
            OutOfTimeError: it did not end in time, and is killed with all that it started.
            FailedError: its exit code is none of `fine`.
        """
        process = subprocess.Popen(
            [sys.executable, *map(str, words)], cwd=ROOT, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**self._environment, **(more or {})},
        )  # fmt: skip
        try:
            printed, errors = process.communicate(timeout=max(0.0, self._left()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise OutOfTimeError from None
        if process.returncode not in fine:
            raise FailedError(f"{name}: exit code {process.returncode}: {errors[-3000:].strip()}")
        return printed

    def _place(self, name: str) -> Path:
        return self._out / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        place = self._place(name)
        found: dict[str, Any] = json.loads(place.read_text()) if place.is_file() else {}
        return found

    def _write(self, name: str, told: Mapping[str, Any]) -> None:
        """Whole or not at all."""
        scratch = self._place(name).with_suffix(".part")
        scratch.write_text(json.dumps(told, indent=1) + "\n")
        scratch.replace(self._place(name))


def write_light(source: Path, target: Path) -> None:
    """The graph with its large weights emptied: names, nodes and shapes stay."""
    model = onnx.load(source)
    constants = [
        item.t
        for node in model.graph.node
        for item in node.attribute
        if item.type == onnx.AttributeProto.TENSOR
    ]
    for tensor in (*model.graph.initializer, *constants):
        if tensor.ByteSize() > _SMALL:
            for field in ("raw_data", "float_data", "int32_data", "int64_data"):
                tensor.ClearField(field)
    target.write_bytes(gzip.compress(model.SerializeToString(), mtime=0))


# ── outputs whose size depends on data ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sized:
    """A graph, the static form of it if there is one, and inputs by what is told of them."""

    dynamic: onnx.ModelProto
    static: onnx.ModelProto | None
    data: Mapping[str, Mapping[str, np.ndarray]]


_ROWS = 8192
_BOXES = 1000
_MOST = 100


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int | str, ...]],
    outputs: Mapping[str, tuple[int, tuple[int | str | None, ...]]],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sized",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def selection() -> Sized:
    """Rows whose score is high: by NonZero and GatherND, or masked by Where."""
    inputs = {"scores": ("batch", _ROWS), "rows": ("batch", _ROWS, 4)}
    constants = {"least": np.float32(0.5), "zero": np.float32(0), "last": np.array([-1])}
    high = helper.make_node("Greater", ["scores", "least"], ["high"], "high")
    dynamic = [
        high,
        helper.make_node("NonZero", ["high"], ["found"], "found"),
        helper.make_node("Transpose", ["found"], ["places"], "places", perm=[1, 0]),
        helper.make_node("GatherND", ["rows", "places"], ["kept"], "kept"),
    ]
    static = [
        high,
        helper.make_node("Unsqueeze", ["high", "last"], ["mask"], "mask"),
        helper.make_node("Where", ["mask", "rows", "zero"], ["kept"], "kept"),
    ]
    random = np.random.default_rng(0)
    data = {}
    for share in (0.01, 0.5, 0.99):
        scores = (random.random((1, _ROWS)) < share).astype(np.float32)
        data[f"{share:.0%}-kept"] = {"scores": scores, "rows": random.random((1, _ROWS, 4), np.float32)}
    used = {key: constants[key] for key in ("least",)}
    return Sized(
        _model(dynamic, inputs, {"kept": (TensorProto.FLOAT, ("kept", 4))}, used),
        _model(static, inputs, {"kept": (TensorProto.FLOAT, ("batch", _ROWS, 4))}, constants),
        data,
    )


def top() -> Sized:
    """The best rows: as many as have a high score, or always 100."""
    inputs = {"scores": ("batch", _ROWS)}
    dynamic = [
        helper.make_node("Greater", ["scores", "least"], ["high"], "high"),
        helper.make_node("Cast", ["high"], ["ones"], "ones", to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones"], ["sum"], "sum", keepdims=0),
        helper.make_node("Reshape", ["sum", "one"], ["k"], "k"),
        helper.make_node("TopK", ["scores", "k"], ["best", "places"], "best"),
    ]
    static = [helper.make_node("TopK", ["scores", "most"], ["best", "places"], "best")]
    random = np.random.default_rng(0)
    scores = random.random((1, _ROWS), np.float32)
    scores[scores > 1 - _MOST / _ROWS] += 1
    outputs = {"best": (TensorProto.FLOAT, ("batch", "k")), "places": (TensorProto.INT64, ("batch", "k"))}
    fixed = {"best": (TensorProto.FLOAT, ("batch", _MOST)), "places": (TensorProto.INT64, ("batch", _MOST))}
    return Sized(
        _model(dynamic, inputs, outputs, {"least": np.float32(1), "one": np.array([1])}),
        _model(static, inputs, fixed, {"most": np.array([_MOST])}),
        {"about-100-kept": {"scores": scores}},
    )


def suppression() -> Sized:
    """Boxes that do not overlap a better one: by NonMaxSuppression, or by the plugin with a fixed number."""
    inputs = {"boxes": ("batch", _BOXES, 4), "scores": ("batch", 1, _BOXES)}
    constants = {
        "most": np.array([_MOST]),
        "iou": np.array([0.5], np.float32),
        "least": np.array([0.1], np.float32),
    }
    dynamic = [
        helper.make_node(
            "NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["chosen"], "chosen"
        )
    ]
    static = [
        helper.make_node("Transpose", ["scores"], ["columns"], "columns", perm=[0, 2, 1]),
        helper.make_node(
            "EfficientNMS_TRT", ["boxes", "columns"], ["count", "kept", "best", "labels"], "nms",
            background_class=-1, box_coding=0, iou_threshold=0.5, max_output_boxes=_MOST,
            plugin_version="1", score_activation=0, score_threshold=0.1,
        ),
    ]  # fmt: skip
    fixed = {
        "count": (TensorProto.INT32, ("batch", 1)),
        "kept": (TensorProto.FLOAT, ("batch", _MOST, 4)),
        "best": (TensorProto.FLOAT, ("batch", _MOST)),
        "labels": (TensorProto.INT32, ("batch", _MOST)),
    }
    random = np.random.default_rng(0)
    data = {}
    for name, extent in (("apart", 1000.0), ("crowded", 30.0)):
        corner = random.random((1, _BOXES, 2), np.float32) * np.float32(extent)
        boxes = np.concatenate([corner, corner + 10], axis=2).astype(np.float32)
        data[name] = {"boxes": boxes, "scores": random.random((1, 1, _BOXES), np.float32)}
    return Sized(
        _model(dynamic, inputs, {"chosen": (TensorProto.INT64, ("chosen", 3))}, constants),
        _model(static, inputs, fixed, {}),
        data,
    )


SIZED: Mapping[str, Callable[[], Sized]] = {"nonzero": selection, "nms": suppression, "topk": top}
UNSURE = ("nms", "topk")
"""One of the two forms may be refused here: what the other does is kept."""


def pool(engines: Path, samples: Path, model: Path) -> dict[str, Any]:
    """Rows that the pool returns, beside ONNX Runtime's."""
    import onnxruntime

    from trtopt.serving import EnginePool

    data = dict(np.load(samples))
    right = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [one.name for one in right.get_outputs()]
    wanted = dict(zip(names, right.run(names, data), strict=True))
    with EnginePool.open(engines) as opened:
        found = opened.run(data)
        again = opened.run(data)
        refused = opened.usage().graph_refused
    return {
        "shapes": {name: list(array.shape) for name, array in found.items()},
        "right_shapes": {name: list(array.shape) for name, array in wanted.items()},
        "largest_difference": {
            name: float(np.abs(found[name].astype(float) - wanted[name].astype(float)).max(initial=0))
            if found[name].shape == wanted[name].shape
            else None
            for name in names
        },
        "same_again": all(np.array_equal(found[name], again[name]) for name in names),
        "graph_refused": refused,
    }


def main() -> None:
    """Run what there is time for; `pool` is the part of it that needs a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "pool"])
    parser.add_argument(
        "--graphs", type=Path, nargs="+", default=[], help="folders of graphs without weights"
    )
    parser.add_argument("--work", type=Path, required=True, help="models and engines; may be thrown away")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="jobs whose name has one of these")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime")
    args = parser.parse_args()
    if args.step == "pool":
        print(json.dumps(pool(args.work, args.out, Path(args.only[0]))))
        return
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    print("left:", ", ".join(Jobs(args).run()) or "none")


if __name__ == "__main__":
    main()
