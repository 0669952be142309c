"""Kernels inside engines, cold starts, and outputs whose size depends on data, on a GPU with TensorRT 8.6.

    python benchmarks/kernels/graphs.py FOLDER
    python benchmarks/kernels/kernels.py run --graphs FOLDER --work WORK --out OUT --budget 560 --only WORD …
    python benchmarks/kernels/kernels.py prices --out OUT

FOLDER holds graphs without weights, which are drawn again. Jobs run in their order, what has never been
measured first, each if what is left of the budget may do, and within its own limit. Every step of a job is
kept in OUT/NAME.json as soon as it has ended, and so is what failed or ran out of time. The same command goes
on: WORK remembers what has been done, also where OUT is another folder, and what failed is tried again after
what is missing. Engines and the store of timings stay in WORK. For each engine OUT has the profile with its
kernels, what `trtopt profile` printed, raw records of a few inferences (recording.py) and the graph without
weights; also what CUPTI does here (cupti_probe.py). `prices` shows what the jobs `sized-…` measured, as
trtopt/rewrite/lint.py keeps it. `--dry-run` goes through it on ONNX Runtime, without FOLDER, a
GPU and records.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from cells import ROOT, FailedError, OutOfTimeError, chosen, read, run_python, write
from cupti_probe import library_of_cupti
from weights import fill

from trtopt.files.manifests import read_manifest

HERE = Path(__file__).resolve().parent
SOURCES = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""
_SMALL = 4096


@dataclass(frozen=True)
class Engine:
    """A graph, built for one batch size, which took `build_s` on one H200, or is guessed to."""

    graph: str
    batch: int
    build_s: float
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.graph}-b{self.batch}"


BERT = ("--axis", "sequence=128")
RESNET = Engine("r50_fp16", 1, 40)
"""Also of the markers and the cold starts: it is built soonest."""
ENGINES = (
    Engine("bert_int8", 8, 57, BERT),
    Engine("bert_fp16", 8, 63, BERT),
    Engine("bert_int8", 32, 77, BERT),
    Engine("retinanet_fp16", 1, 297),
    Engine("bert_fp16", 32, 90, BERT),
    Engine("bert_int8", 1, 54, BERT),
    Engine("bert_int8_default", 32, 77, BERT),
    Engine("bert_fp16", 1, 58, BERT),
    RESNET,
    Engine("vit_fp16", 1, 60),
)
DIGITS = Engine("digits", 1, 10)
"""Of the dry run."""


@dataclass(frozen=True)
class Job:
    """It is begun where `least_s` are left, and ended after `most_s`."""

    name: str
    least_s: float
    most_s: float
    work: Callable[[], Any]


class Jobs:
    """Runs jobs within the budget; commands do all work, each in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.budget
        self._job_end = self._end
        self._out: Path = args.out
        self._work: Path = args.work
        self._backend = "onnxruntime" if args.dry_run else "tensorrt"
        self._environment = {"TRTOPT_CACHE_DIR": str(self._work / "store"), **os.environ}

    def jobs(self) -> Iterator[Job]:
        """All, in their order."""
        if self._args.dry_run:
            yield self._engine_job(DIGITS)
        for name, make in SIZED.items():
            for form in ("dynamic", "static"):
                if self._args.dry_run and (name, form) == ("nms", "static"):
                    continue  # a plugin of TensorRT's
                yield Job(
                    f"sized-{name}-{form}", 30, 60,
                    lambda name=name, make=make, form=form: self._sized(name, make(), form),
                )  # fmt: skip
        if not self._args.dry_run:
            yield Job("markers", 75, 150, self._markers)
        yield Job("cold-start", 60, 120, self._cold_start)
        if not self._args.dry_run:
            yield from map(self._engine_job, ENGINES)
            yield Job("probe", 30, 60, self._probe)

    def _engine_job(self, engine: Engine) -> Job:
        least = 0 if self._is_built(engine) else engine.build_s
        return Job(
            engine.name, least + 30, 1.3 * engine.build_s + 90, lambda: self._engine(engine)
        )  # profile and records take some 30 s

    def run(self) -> list[str]:
        """Do what is missing, then what failed before; the names of what is left."""
        asked = chosen(self.jobs(), self._args.only)
        missing = [job for job in asked if not self._state(job.name)]
        failed = [job for job in asked if "failed" in self._state(job.name)]
        for job in missing + failed:
            left = self._end - time.monotonic()
            if left < job.least_s:
                print(f"{job.name}: skipped: it takes {job.least_s:.0f} s, {left:.0f} s are left", flush=True)
                continue
            self._job_end = min(self._end, time.monotonic() + job.most_s)
            began = time.monotonic()
            try:
                told = {"found": job.work()}
            except OutOfTimeError as error:
                told = self._state(job.name) | {"failed": str(error)}
            except (FailedError, OSError, ValueError, KeyError) as error:
                told = self._state(job.name) | {"failed": f"{type(error).__name__}: {error}"}
            told["seconds"] = round(time.monotonic() - began, 1)
            self._write(job.name, told)
            print(f"{job.name}: {told.get('failed', 'done')[:300]} ({told['seconds']} s)", flush=True)
        return [job.name for job in asked if "failed" in self._state(job.name) or not self._state(job.name)]

    def _state(self, name: str) -> dict[str, Any]:
        """What has been done of a job, by this run or an earlier one; empty: nothing."""
        return read(self._work / "done" / f"{name}.json")

    def _write(self, name: str, told: Mapping[str, Any]) -> None:
        for folder in (self._out, self._work / "done"):
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / f"{name}.json", told)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────

    def _probe(self) -> str:
        self._python("cupti_probe", [HERE / "cupti_probe.py", self._out / "cupti-probe.json"])
        return "see cupti-probe.json"

    def _engine(self, engine: Engine) -> dict[str, Any]:
        """Build, profile with kernels, record; what fails of the last two does not end the other.

        What an earlier run has done is not done again.
        """
        found: dict[str, Any] = self._state(engine.name).get("found", {})
        began = time.monotonic()
        folder = self._built(engine)
        found.setdefault("build_s", round(time.monotonic() - began, 1))
        manifest = read_manifest(folder)
        graph = folder / manifest.graph_of(manifest.engines[0]).path
        write_light(graph, self._out / f"{engine.name}.graph.pb.gz")
        steps: dict[str, Callable[[], str]] = {"profile": lambda: self._profile(folder, engine)}
        if not self._args.dry_run:
            steps["recording"] = lambda: self._recording(folder, engine)
        failures = []
        for step, work in steps.items():
            if step in found:
                continue
            began = time.monotonic()
            try:
                found[step] = work()
            except (FailedError, OutOfTimeError) as error:
                failures.append(f"{step}: {error}")
            found[f"{step}_s"] = round(time.monotonic() - began, 1)
            self._write(engine.name, {"found": found, "failed": "; ".join(failures) or "interrupted"})
        if failures:
            raise FailedError("; ".join(failures))
        return found

    def _profile(self, folder: Path, engine: Engine) -> str:
        result = self._work / f"{engine.name}.profile.json"
        words = ["profile", folder, "--batch", engine.batch, "--duration", 1, "--json", result]
        words += ["-o", self._work / f"{engine.name}.profile", "--trace"]
        try:
            printed = self._trtopt(*words, *([] if self._args.dry_run else ["--kernels"]))
        except FailedError:
            if not self._args.dry_run:  # the layers are worth having alone
                self._keep(result, f"{engine.name}.profile", self._trtopt(*words))
            raise
        self._keep(result, f"{engine.name}.profile", printed)
        return (printed.splitlines() or [""])[0]

    def _keep(self, result: Path, name: str, printed: str) -> None:
        (self._out / f"{name}.txt").write_text(printed)
        (self._out / f"{name}.result.json.gz").write_bytes(gzip.compress(result.read_bytes(), mtime=0))

    def _recording(self, folder: Path, engine: Engine) -> str:
        target = self._out / f"{engine.name}.records.json.gz"
        return self._python(
            "recording", [HERE / "recording.py", folder, engine.batch, target, "graph", "plain"]
        )

    def _markers(self) -> str:
        """Plain launches with TensorRT's NVTX ranges, for which CUPTI must be what NVTX injects."""
        folder = self._built(RESNET)
        library = library_of_cupti()
        if library is None:
            raise FailedError("there is no CUPTI to inject")
        target = self._out / f"{RESNET.name}.markers.json.gz"
        words = [HERE / "recording.py", folder, RESNET.batch, target, "nvtx"]
        return self._python("recording", words, {"NVTX_INJECTION64_PATH": library})

    def _cold_start(self) -> dict[str, Any]:
        began = time.monotonic()
        folder = self._built(DIGITS if self._args.dry_run else RESNET)
        built = time.monotonic()
        result = self._work / "cold-start.json"
        words = ["bench", folder, "--duration", 1, "--cold-start"]
        printed = self._trtopt(*words, "--json", result)
        self._keep(result, "cold-start", printed)
        whole = {"build_s": round(built - began, 1), "bench_s": round(time.monotonic() - built, 1)}
        return {**whole, "printed": printed.splitlines()}

    def _sized(self, name: str, sized: Sized, form: str) -> dict[str, Any]:
        """Bench of one form; where the size depends on data, on all data, and through check and the pool."""
        folder = self._work / f"sized-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        path, engines = folder / f"{form}.onnx", folder / form
        is_dynamic = form == "dynamic"
        onnx.save(sized.dynamic if is_dynamic else sized.static, path)
        for data, arrays in sized.data.items():
            np.savez(folder / f"{data}.npz", **arrays)
        self._build(path, engines, ["--rewrite", "none"])
        benched = sized.data if is_dynamic else [sized.priced]
        found: dict[str, Any] = {data: self._benched(engines, folder / f"{data}.npz") for data in benched}
        if is_dynamic:
            samples = folder / f"{sized.priced}.npz"
            check = ["check", engines, "--against", path, "--data", samples, "--json", "-"]
            report = json.loads(self._trtopt(*check, fine=(0, 3)))
            found["check"] = report["subjects"][0]["outputs"]
            words = [HERE / "kernels.py", "pool", "--work", engines, "--out", samples, "--model", path]
            found["pool"] = json.loads(self._python("pool", words))
        return found

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
        if not self._is_built(engine):
            words: list[object] = [
                "--batch",
                engine.batch,
                "--allow-fallback",
                "--rewrite",
                "none",
                *engine.options,
            ]
            self._build(self._graph(engine), folder, words)
        return folder

    def _is_built(self, engine: Engine) -> bool:
        return (self._work / engine.name / "manifest.json").is_file()

    def _build(self, model: Path, folder: Path, words: list[object]) -> None:
        if (folder / "manifest.json").is_file():
            return
        if self._backend == "tensorrt":
            words = [*words, "--tactic-sources", SOURCES]
        self._trtopt("build", model, "-o", folder, "--backend", self._backend, *words)

    def _graph(self, engine: Engine) -> Path:
        """The graph with weights."""
        if engine is DIGITS:
            return ROOT / "models" / "digits" / "digits.onnx"
        model = self._work / "graphs" / f"{engine.graph}.onnx"
        if not model.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            part = model.with_suffix(".part")
            fill(self._args.graphs / f"{engine.graph}.onnx.gz", part)
            part.replace(model)
        return model

    # ── commands and files ──────────────────────────────────────────────────────────────────────────────

    def _trtopt(self, *words: object, fine: tuple[int, ...] = (0, 4)) -> str:
        return self._python(f"trtopt {words[0]}", ["-m", "trtopt", *words], fine=fine)

    def _python(
        self,
        name: str,
        words: list[object],
        more: Mapping[str, str] | None = None,
        fine: tuple[int, ...] = (0,),
    ) -> str:
        """What it printed; it may take what is left of the job's time."""
        left, environment = self._job_end - time.monotonic(), {**self._environment, **(more or {})}
        try:
            return run_python(name, words, left, fine=fine, environment=environment)
        except OutOfTimeError:
            raise OutOfTimeError(f"{name}: no end within the {left:.0f} s that were left") from None


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
    """A graph, its static form, and inputs by what is told of them; prices are of the data `priced`."""

    op: str
    dynamic: onnx.ModelProto
    static: onnx.ModelProto
    data: Mapping[str, Mapping[str, np.ndarray]]
    priced: str
    subject: str


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
        "NonZero",
        _model(dynamic, inputs, {"kept": (TensorProto.FLOAT, ("kept", 4))}, used),
        _model(static, inputs, {"kept": (TensorProto.FLOAT, ("batch", _ROWS, 4))}, constants),
        data,
        "50%-kept",
        f"half of {_ROWS:,} rows of 4",
    )


def top() -> Sized:
    """The best scores: as many as are high, or always 100."""
    inputs = {"scores": ("batch", _ROWS)}
    dynamic = [
        helper.make_node("Greater", ["scores", "least"], ["high"], "high"),
        helper.make_node("NonZero", ["high"], ["found"], "found"),
        helper.make_node("Shape", ["found"], ["k"], "k", start=1),
        helper.make_node("TopK", ["scores", "k"], ["best", "places"], "best"),
    ]
    static = [helper.make_node("TopK", ["scores", "most"], ["best", "places"], "best")]
    random = np.random.default_rng(0)
    scores = random.random((1, _ROWS), np.float32)
    scores[scores > 1 - _MOST / _ROWS] += 1
    outputs = {"best": (TensorProto.FLOAT, ("batch", "k")), "places": (TensorProto.INT64, ("batch", "k"))}
    fixed = {"best": (TensorProto.FLOAT, ("batch", _MOST)), "places": (TensorProto.INT64, ("batch", _MOST))}
    return Sized(
        "TopK",
        _model(dynamic, inputs, outputs, {"least": np.float32(1)}),
        _model(static, inputs, fixed, {"most": np.array([_MOST])}),
        {"about-100-kept": {"scores": scores}},
        "about-100-kept",
        f"about {_MOST} of {_ROWS:,} scores",
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
        "NonMaxSuppression",
        _model(dynamic, inputs, {"chosen": (TensorProto.INT64, ("chosen", 3))}, constants),
        _model(static, inputs, fixed, {}),
        data,
        "crowded",
        f"{_BOXES:,} crowded boxes of one class",
    )


SIZED: Mapping[str, Callable[[], Sized]] = {"nonzero": selection, "nms": suppression, "topk": top}


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


def prices(out: Path) -> list[str]:
    """What was measured of both forms, as lines of the table of prices."""
    lines = []
    for name, make in SIZED.items():
        sized = make()
        forms = [read(out / f"sized-{name}-{form}.json") for form in ("dynamic", "static")]
        if all("found" in form for form in forms):
            dynamic, static = (form["found"][sized.priced]["p50_ms"] for form in forms)
            price = f"Price(dynamic_ms={dynamic:.4f}, static_ms={static:.4f}, subject={sized.subject!r})"
            lines.append(f'"{sized.op}": {price},')
        else:
            reasons = [form.get("failed", "not measured") for form in forms if "found" not in form]
            lines.append(f"# {sized.op}: {'; '.join(reasons)[:300]}")
    return lines


def main() -> None:
    """Run what there is time for; `pool` is the part of it that needs a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "prices", "pool"])
    parser.add_argument("--graphs", type=Path, help="folder of graphs without weights")
    parser.add_argument("--work", type=Path, help="models and engines; may be thrown away")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="what the pool's engines were built from")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="jobs whose name has one of these")
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime")
    args = parser.parse_args()
    if args.step == "pool":
        print(json.dumps(pool(args.work, args.out, args.model)))
        return
    if args.step == "prices":
        print(*prices(args.out), sep="\n")
        return
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    print("left:", ", ".join(Jobs(args).run()) or "none")


if __name__ == "__main__":
    main()
