"""Planted causes: does `trtopt explain` name each one, and allege none between engines that are alike?

    python benchmarks/explain/planted.py run --work WORK --out OUT [--budget 240]
    python benchmarks/explain/planted.py judge --out OUT

`run` makes small graphs (an encoder layer of BERT-base, or half of one; a CNN with squeeze-and-excitation, or
the front of one; seeded weights), builds each, and keeps the profile of its kernels in
OUT/NAME.profile.json as soon as it is there; last it tries remedies with `trtopt explain --try`, into
OUT/try-NAME.json. What fails leaves OUT/NAME.failed.txt and ends nothing else; the same command goes on where
an earlier one ended. `judge` needs no GPU: it explains every pair whose profiles are there and writes
OUT/planted.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from cells import chosen
from turns import SOURCES

import trtopt
from trtopt.records import ProfileReport

TOKENS, WIDTH, HEADS = 128, 768, 12
SIDE, CHANNELS, GATE = 56, 128, 32
BATCH = {"encoder": 32, "cnn": 16}
LEAST_S, TRY_S = 15.0, 60.0
"""An engine takes about so long with its profile; two with remedies of one."""
COSTLY = 0.02
"""A cause that changes A's latency by less is no claim, whether planted or between engines that are alike."""
ALLEGING = re.compile("only|lost|merges|wider|copies|reformats|gates|attention that|→")
"""What says that the engines differ in kind; that equal work took longer may be true of two builds."""


# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────────


class Draft:
    """A graph that is written from its input on; `float16` or FP32 with Q/DQ."""

    def __init__(self, half: bool, seed: int) -> None:
        self.kind = np.dtype(np.float16 if half else np.float32)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, values: Any, kind: Any = None) -> str:
        """An initializer, of the graph's type or another."""
        array = np.asarray(values, self.kind if kind is None else kind)
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def node(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Its output."""
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def weight(self, name: str, *shape: int) -> NDArray[Any]:
        """Seeded, of a product or a convolution."""
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.random.normal(0, fan_in**-0.5, shape).astype(np.float32)

    def pair(self, name: str, value: str, scale: float = 0.04) -> str:
        """A Q and a DQ behind a tensor."""
        step = self.constant(f"{name}/scale", np.float32(scale), np.float32)
        zero = self.constant(f"{name}/zero", 0, np.int8)
        return self.node(
            "DequantizeLinear",
            f"{name}/DQ",
            self.node("QuantizeLinear", f"{name}/Q", value, step, zero),
            step,
            zero,
        )

    def quantized(self, name: str, values: NDArray[Any], axis: int) -> str:
        """A weight with a Q and a DQ, of one scale a channel."""
        others = tuple(index for index in range(values.ndim) if index != axis)
        scales = np.abs(values).max(others) / 127
        own = self.constant(f"{name}/scales", scales, np.float32)
        zeros = self.constant(f"{name}/zeros", np.zeros(len(scales)), np.int8)
        whole = self.constant(name, values, np.float32)
        narrow = self.node("QuantizeLinear", f"{name}/Q", whole, own, zeros, axis=axis)
        return self.node("DequantizeLinear", f"{name}/DQ", narrow, own, zeros, axis=axis)

    def model(self, shape: Sequence[int | str], outputs: Sequence[str]) -> onnx.ModelProto:
        """With an input of this shape, checked."""
        kind = helper.np_dtype_to_tensor_dtype(self.kind)
        given = helper.make_tensor_value_info("x", kind, shape)
        made = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "planted", [given], made, [*self.constants.values()])
        found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        found = onnx.shape_inference.infer_shapes(found)
        onnx.checker.check_model(found)
        return found


def encoder(
    int8: bool = False, half: bool = False, plant: str = "", seed: int = 0, only: str = ""
) -> onnx.ModelProto:
    """An encoder layer of BERT-base on hidden states: products in INT8, in FP16, or all in FP32.

    `only` its "attention" or its "mlp".
    """
    draft = Draft(half, seed)

    def product(value: str, name: str, wide: int, narrow: int) -> str:
        weight, bias = draft.weight(name, wide, narrow), draft.random.normal(0, 0.1, narrow)
        own = f"{name}/weight"
        if plant == "island" and name == "fc1":
            value = draft.node("Cast", f"{name}/Cast", value, to=TensorProto.FLOAT)
            made = draft.node("MatMul", f"{name}/MatMul", value, draft.constant(own, weight, np.float32))
            made = draft.node("Cast", f"{name}/Cast_1", made, to=TensorProto.FLOAT16)
        elif plant == "transposed" and name == "fc2":
            turned = draft.quantized(own, np.ascontiguousarray(weight.T), 0)
            turned = draft.node("Transpose", f"{own}/Transpose", turned, perm=[1, 0])
            made = draft.node("MatMul", f"{name}/MatMul", value, turned)
        else:
            given = draft.quantized(own, weight, 1) if int8 else draft.constant(own, weight)
            made = draft.node("MatMul", f"{name}/MatMul", value, given)
        return draft.node("Add", f"{name}/Add", made, draft.constant(f"{name}/bias", bias))

    def narrow(name: str, value: str, scale: float = 0.04) -> str:
        return draft.pair(name, value, scale) if int8 else value

    def heads(value: str, name: str, order: Sequence[int]) -> str:
        shape = draft.constant(f"{name}/shape", [0, TOKENS, HEADS, WIDTH // HEADS], np.int64)
        return draft.node(
            "Transpose",
            f"{name}/Transpose",
            draft.node("Reshape", f"{name}/Reshape", value, shape),
            perm=order,
        )

    def norm(name: str, value: str) -> str:
        scale, bias = (
            draft.constant(f"{name}/scale", np.ones(WIDTH)),
            draft.constant(f"{name}/bias", np.zeros(WIDTH)),
        )
        return draft.node("LayerNormalization", name, value, scale, bias, axis=-1, epsilon=1e-5)

    def attend() -> tuple[str, str]:
        """The first half's result, and the attention's probabilities."""
        shared, step = narrow("input", "x"), np.float32(0.04)
        parts = []
        for name, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            given = shared
            if plant == "apart" and name != "query":
                step = np.nextafter(step, np.float32(np.inf), dtype=np.float32)
                given = narrow(f"{name}/input", "x", float(step))
            parts.append(heads(product(given, name, WIDTH, WIDTH), name, order))
        query, key, value = parts
        scores = draft.node("MatMul", "scores/MatMul", query, key)
        scores = draft.node("Div", "scores/Div", scores, draft.constant("scores/root", 8.0))
        probabilities = draft.node("Softmax", "Softmax", scores, axis=-1)
        context = draft.node(
            "Transpose",
            "context/Transpose",
            draft.node("MatMul", "context/MatMul", probabilities, value),
            perm=[0, 2, 1, 3],
        )
        context = draft.node(
            "Reshape",
            "context/Reshape",
            context,
            draft.constant("context/shape", [0, TOKENS, WIDTH], np.int64),
        )
        attended = product(narrow("context/input", context), "attention", WIDTH, WIDTH)
        return norm("norm1", draft.node("Add", "residual1", attended, "x")), probabilities

    if only == "mlp":
        first = "x"
    else:
        first, probabilities = attend()
        if only == "attention":
            outputs = [first, probabilities] if plant == "probabilities" else [first]
            return draft.model(("N", TOKENS, WIDTH), outputs)
    wide = product(narrow("fc1/input", first), "fc1", WIDTH, 4 * WIDTH)
    root = draft.constant("gelu/root", 1.5 if plant == "gelu" else 2**0.5)
    erf = draft.node("Erf", "gelu/Erf", draft.node("Div", "gelu/Div", wide, root))
    erf = draft.node("Add", "gelu/Add", erf, draft.constant("gelu/one", 1.0))
    gelu = draft.node("Mul", "gelu/Mul", wide, erf)
    gelu = draft.node("Mul", "gelu/Mul_1", gelu, draft.constant("gelu/half", 0.5))
    second = product(narrow("fc2/input", gelu), "fc2", 4 * WIDTH, WIDTH)
    result = norm("norm2", draft.node("Add", "residual2", second, first))
    return draft.model(("N", TOKENS, WIDTH), [result])


def cnn(
    int8: bool = False, half: bool = False, plant: str = "", seed: int = 0, front: bool = False
) -> onnx.ModelProto:
    """Convolutions, one in float, and a gate of squeeze-and-excitation (FP16: a cube); or the `front`."""
    draft = Draft(half, seed)
    in_gate = int8 and plant != "gate"

    def conv(value: str, name: str, out: int, given: int, size: int, quantized: bool = int8) -> str:
        weight = draft.weight(name, out, given, size, size)
        own, is_wide = f"{name}/weight", plant == "island" and name == "conv2"
        kind = np.float32 if is_wide else None
        kernel = draft.quantized(own, weight, 0) if quantized else draft.constant(own, weight, kind)
        bias = draft.constant(f"{name}/bias", draft.random.normal(0, 0.1, out), kind)
        if is_wide:
            value = draft.node("Cast", f"{name}/Cast", value, to=TensorProto.FLOAT)
        made = draft.node(
            "Conv", f"{name}/Conv", value, kernel, bias, kernel_shape=[size, size], pads=[size // 2] * 4
        )
        return draft.node("Cast", f"{name}/Cast_1", made, to=TensorProto.FLOAT16) if is_wide else made

    def narrow(name: str, value: str, wanted: bool = int8) -> str:
        return draft.pair(name, value) if wanted else value

    def relu(name: str, value: str) -> str:
        return draft.node("Relu", f"{name}/Relu", value)

    value = relu("conv1", conv(narrow("conv1/input", "x"), "conv1", CHANNELS, CHANNELS, 3))
    is_narrow = int8 and plant != "float"
    value = narrow("conv2/input", value, is_narrow)
    value = relu("conv2", conv(value, "conv2", CHANNELS, CHANNELS, 3, is_narrow))
    value = narrow("plain/input", value, plant == "pair")
    value = relu("plain", conv(value, "plain", CHANNELS, CHANNELS, 1, quantized=False))
    if front:
        return draft.model(("N", CHANNELS, SIDE, SIDE), [value])
    value = conv(narrow("conv3/input", value), "conv3", CHANNELS, CHANNELS, 3)
    if half:
        own = draft.node("Sigmoid", "cube/Sigmoid", value)
        if plant == "pow":
            own = draft.node("Pow", "cube/Mul_1", own, draft.constant("cube/three", 3.0))
        else:
            own = draft.node("Mul", "cube/Mul_1", draft.node("Mul", "cube/Mul", own, own), own)
        value = draft.node("Mul", "cube/Mul_2", own, value)
    else:
        value = relu("conv3", value)
        inner = narrow("gate/input", value, in_gate)
        gate = draft.node("GlobalAveragePool", "gate/GlobalAveragePool", inner)
        gate = conv(narrow("gate/reduce/input", gate, in_gate), "gate/reduce", GATE, CHANNELS, 1, in_gate)
        gate = narrow("gate/expand/input", relu("gate/reduce", gate), in_gate)
        gate = draft.node("Sigmoid", "gate/Sigmoid", conv(gate, "gate/expand", CHANNELS, GATE, 1, in_gate))
        value = draft.node("Mul", "gate/Mul", narrow("gate/Mul/input", gate, in_gate), inner)
    value = relu("conv4", conv(narrow("conv4/input", value), "conv4", CHANNELS, CHANNELS, 3))
    return draft.model(("N", CHANNELS, SIDE, SIDE), [value])


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """With other names of every second node."""
    for number, node in enumerate(model.graph.node):
        if number % 2:
            node.name = f"Renamed_{number}"
    return model


# ── engines and pairs ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Engine:
    """A graph, and options of its build."""

    name: str
    make: Callable[[], onnx.ModelProto]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def batch(self) -> int:
        """Of its family."""
        return BATCH["encoder" if self.name[0] in "aem" else "cnn"]


attention, mlp, front = (
    partial(encoder, half=True, only="attention"),
    partial(encoder, only="mlp"),
    partial(cnn, front=True),
)
ENGINES = (
    # planted and not measured yet
    Engine("a16", attention),
    Engine("a16-probabilities", lambda: attention(plant="probabilities")),
    Engine("m16", lambda: mlp(half=True)),
    Engine("m16-island", lambda: mlp(half=True, plant="island")),
    Engine("m8", lambda: mlp(int8=True)),
    Engine("m8-transposed", lambda: mlp(int8=True, plant="transposed")),
    Engine("f8", lambda: front(int8=True)),
    Engine("f8-float", lambda: front(int8=True, plant="float")),
    Engine("f16", lambda: front(half=True)),
    Engine("f16-island", lambda: front(half=True, plant="island")),
    # alike
    Engine("a16-again", attention),
    Engine("f8-renamed", lambda: renamed(front(int8=True))),
    Engine("f16-fresh", lambda: front(half=True), (("timing_cache", "none"),)),
    Engine("m8-seed", lambda: mlp(int8=True, seed=1)),
    Engine("f8-seed", lambda: front(int8=True, seed=1)),
    # planted, in results/: measured again only if --only names them
    Engine("e8", lambda: encoder(int8=True)),
    Engine("e8-apart", lambda: encoder(int8=True, plant="apart")),
    Engine("e8-gelu", lambda: encoder(int8=True, plant="gelu")),
    Engine("s8", lambda: cnn(int8=True)),
    Engine("s8-gate", lambda: cnn(int8=True, plant="gate")),
    Engine("s8-pair", lambda: cnn(int8=True, plant="pair")),
    Engine("c16", lambda: cnn(half=True)),
    Engine("c16-hwc8", lambda: cnn(half=True), (("io", {"x": "fp16:hwc8"}),)),
    Engine("c16-pow", lambda: cnn(half=True, plant="pow")),
)

PLANTED = {
    "unmerged projections": ("e8", "e8-apart", "only A merges"),
    "copies of weights by merging": ("e8-apart", "e8", "copies of weights"),
    "broken GELU": ("e8", "e8-gelu", "fusions that B lost"),
    "gate in float": ("s8", "s8-gate", "squeeze-and-excitation"),
    "Q/DQ pair that cannot fuse": ("s8", "s8-pair", "reformats, Q and DQ"),
    "reformat by I/O format": ("c16-hwc8", "c16", "reformats, Q and DQ"),
    "Pow instead of Mul": ("c16", "c16-pow", "pointwise|fusions that B lost"),
    "attention with its probabilities as an output": ("a16", "a16-probabilities", "attention that only A"),
    "FP32 island": ("m16", "m16-island", "→ float32"),
    "transposed weight": ("m8", "m8-transposed", "reformats|int8 → float"),
    "convolution left in float": ("f8", "f8-float", "int8 → float"),
    "convolution in FP32": ("f16", "f16-island", "→ float32"),
}
"""A, B, and what the cause's name has, written down before anything was measured."""
CLEAN = {
    "built twice": ("a16", "a16-again"),
    "built twice, the second time without a timing cache": ("f16", "f16-fresh"),
    "every second node renamed": ("f8", "f8-renamed"),
    "other weights, CNN": ("f8", "f8-seed"),
    "other weights, encoder": ("m8", "m8-seed"),
}
TRIES: dict[str, Callable[[], onnx.ModelProto]] = {"cnn": cnn, "encoder": encoder}
"""FP32 models that trtopt builds in FP16 and INT8 by itself, to try what its explanation says."""


# ── on a GPU ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Run:
    """Where, with what, and until when."""

    work: Path
    out: Path
    end: float
    backend: str = "tensorrt"

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return self.end - time.monotonic()

    @property
    def settings(self) -> dict[str, Any]:
        """Of every build."""
        own = {"tactic_sources": SOURCES, "avg_timing": 1} if self.backend == "tensorrt" else {}
        return {"backend": self.backend, "build_timeout": max(1.0, min(150.0, self.left_s)), **own}

    def do(self, name: str, file: Path, work: Callable[[], str], least_s: float = LEAST_S) -> None:
        """One step, unless it is done or there is no time; what fails is written down."""
        if file.is_file():
            return
        if self.left_s < least_s:
            print(f"{name}: no time left", flush=True)
            return
        began = time.monotonic()
        try:
            said = work()
        except Exception:  # noqa: BLE001   whatever it is, the others go on
            said = traceback.format_exc()
            (self.out / f"{name}.failed.txt").write_text(said)
        took = time.monotonic() - began
        print(
            f"{name}: {said.strip().splitlines()[-1][:300]} ({took:.1f} s, {self.left_s:.0f} s left)",
            flush=True,
        )

    def engine(self, one: Engine) -> str:
        """Build one and keep its profile."""
        model, folder = self.work / f"{one.name}.onnx", self.work / one.name
        onnx.save(one.make(), model)
        began = time.monotonic()
        options = dict(one.options) if self.backend == "tensorrt" else {}
        batch = one.batch if self.backend == "tensorrt" else 1
        trtopt.build(model, folder, batch=batch, rewrite="none", force=True, **self.settings, **options)
        built_s = time.monotonic() - began
        limit_s = max(1.0, min(150.0, self.left_s))
        try:
            report = trtopt.profile(folder, duration=0.3, kernels=self.backend == "tensorrt", timeout=limit_s)
        except trtopt.TrtoptError as error:  # layers are worth having alone
            (self.out / f"{one.name}.failed.txt").write_text(str(error))
            report = trtopt.profile(folder, duration=0.3, timeout=limit_s)
        keep(self.out / f"{one.name}.profile.json", report)
        (timed,) = report.engines
        return f"{timed.latency_ms:.4f} ms, built in {built_s:.1f} s"

    def attempt(self, name: str, make: Callable[[], onnx.ModelProto]) -> str:
        """FP16 against INT8 as trtopt makes them, with the remedies of all causes tried."""
        model, samples = self.work / f"try-{name}.onnx", self.work / f"try-{name}.npz"
        batch = BATCH[name] if self.backend == "tensorrt" else 1
        onnx.save(made := make(), model)
        shape = [axis.dim_value for axis in made.graph.input[0].type.tensor_type.shape.dim[1:]]
        np.savez(samples, x=np.random.default_rng(2).normal(0, 1, (batch, *shape)).astype(np.float32))
        a, b = self.work / f"try-{name}-a", self.work / f"try-{name}-b"
        own = {"precision": "fp16"} if self.backend == "tensorrt" else {}
        trtopt.build(model, a, batch=batch, force=True, **self.settings, **own)
        trtopt.build(
            model, b, batch=batch, precision="int8", data=samples, verdict=False, force=True, **self.settings
        )
        budget = max(5.0, self.left_s - 30)
        found = trtopt.explain(a, b, duration=0.3, data=samples, remedies=("all",), budget=budget)
        told = found.to_dict() | {"argv": [], "a": a.name, "b": b.name}
        (self.out / f"try-{name}.json").write_text(json.dumps(told, indent=1) + "\n")
        tried = [f"{one.option} {one.predicted_ms:+.4f} {one.gain_ms}" for one in found.engines[0].trials]
        return "; ".join(tried) or "nothing to try"


def keep(file: Path, report: ProfileReport) -> None:
    """Whole or not at all; without the machine's paths."""
    told = report.to_dict() | {"argv": []}
    for engine in told["engines"]:
        engine["engine"]["path"] = Path(engine["engine"]["path"]).name
    part = file.with_suffix(".part")
    part.write_bytes(json.dumps(told).encode())
    part.replace(file)


def run(args: argparse.Namespace) -> None:
    """Engines and their profiles, then remedies, as far as the budget goes."""
    for folder in (args.work, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TRTOPT_CACHE_DIR", str(args.work.absolute() / "store"))
    own = Run(args.work, args.out, time.monotonic() + args.budget, args.backend)
    published = Path(__file__).parent / "results"
    for one in chosen(ENGINES, args.only):
        if not args.only and (published / f"{one.name}.profile.json").is_file():
            continue
        own.do(one.name, own.out / f"{one.name}.profile.json", lambda one=one: own.engine(one))
    for name, make in TRIES.items():
        if args.only and not any(word in f"try-{name}" for word in args.only):
            continue
        own.do(
            f"try-{name}",
            own.out / f"try-{name}.json",
            lambda name=name, make=make: own.attempt(name, make),
            TRY_S,
        )


# ── without one ─────────────────────────────────────────────────────────────────────────────────────────


def judge(args: argparse.Namespace) -> None:
    """Every pair whose profiles are there."""
    planted: dict[str, Any] = {}
    clean: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        for file in args.out.glob("*.profile.json"):
            folder = place / file.name.removesuffix(".profile.json")
            folder.mkdir()
            (folder / "profile.json").write_bytes(file.read_bytes())
        for name, (a, b, wanted) in PLANTED.items():
            planted[name] = explained(place / a, place / b)
            causes = [cause for cause in planted[name].get("causes", ()) if re.search(wanted, cause["cause"])]
            costly = [cause for cause in causes if cause["cost_ms"] > COSTLY * planted[name]["a_ms"]]
            planted[name]["named"] = [cause["cause"] for cause in costly]
        for name, (a, b) in CLEAN.items():
            clean[name] = explained(place / a, place / b)
            costly = [
                cause["cause"]
                for cause in clean[name].get("causes", ())
                if cause["cost_ms"] > COSTLY * clean[name]["a_ms"] and not cause["is_rest"]
            ]
            clean[name]["alleged"] = [one for one in costly if ALLEGING.search(one)]
            clean[name]["slower"] = [one for one in costly if not ALLEGING.search(one)]
    tries = {
        file.stem: attempts(json.loads(file.read_text())) for file in sorted(args.out.glob("try-*.json"))
    }
    counted = [one for one in planted.values() if "causes" in one]
    seen = [one for one in clean.values() if "causes" in one]
    told = {
        "named": f"{sum(bool(one['named']) for one in counted)} of {len(counted)}",
        "alleged": f"{sum(bool(one['alleged']) for one in seen)} of {len(seen)}",
        "planted": planted,
        "clean": clean,
        "tried": tries,
    }
    (args.out / "planted.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    for name, one in {**planted, **clean}.items():
        said = one.get("why") or f"{one['a_ms']:.4f} → {one['b_ms']:.4f} ms: "
        print(f"{name}: {said}{one.get('named', one.get('alleged'))}")
    print(f"named {told['named']}, alleged {told['alleged']}")


def explained(a: Path, b: Path) -> dict[str, Any]:
    """The causes, and by how much kernels and gaps of the traced runs exceed the latency of the others."""
    if missing := [one.name for one in (a, b) if not one.is_dir()]:
        return {"why": f"not measured: {', '.join(missing)}"}
    try:
        (one,) = trtopt.explain(a, b).engines
    except trtopt.TrtoptError as error:
        return {"why": error.problem}
    traced = (json.loads((side / "profile.json").read_text())["engines"][0]["kernels"] for side in (a, b))
    return {
        "a_ms": round(one.a_ms, 4), "b_ms": round(one.b_ms, 4), "parts": one.parts,
        "traced_longer": [one and round(-one["remainder_ms"] / one["latency_ms"], 4) for one in traced],
        "causes": [
            {
                "cause": cause.cause, "a_ms": round(cause.a_ms, 4), "b_ms": round(cause.b_ms, 4),
                "cost_ms": round(cause.cost_ms, 4), "parts": [cause.a_parts, cause.b_parts],
                "nodes": list(cause.nodes), "is_rest": cause.cause.startswith("gaps"),
            }
            for cause in one.causes
        ],
    }  # fmt: skip


def attempts(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Predicted beside measured."""
    return [
        {key: trial.get(key) for key in ("option", "causes", "predicted_ms", "b_ms", "ms", "a_ms", "reason")}
        for one in found["engines"]
        for trial in one.get("trials", ())
    ]


def main() -> None:
    """Run or judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    runs = steps.add_parser("run")
    runs.add_argument("--work", type=Path, required=True)
    runs.add_argument("--budget", type=float, default=240.0)
    runs.add_argument("--backend", default="tensorrt", help="onnxruntime: a dry run")
    runs.add_argument("--only", nargs="+", metavar="WORD", help="what has one in its name")
    judges = steps.add_parser("judge")
    for one in (runs, judges):
        one.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    run(args) if args.step == "run" else judge(args)


if __name__ == "__main__":
    main()
