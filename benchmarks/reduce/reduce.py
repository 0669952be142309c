"""Twenty planted faults, reduced by `trtopt reduce` and by `polygraphy debug reduce`.

    python benchmarks/reduce/reduce.py run WORK OUT.json [--only NAME,…] [--tools trtopt,polygraphy]
    python benchmarks/reduce/reduce.py table OUT.json
    python benchmarks/reduce/reduce.py check NAME MODEL [DATA]

A fault is a few nodes put behind a tensor in the middle of a host: towers of 60 and 149 nodes with skips, the
latter with an open batch, and the repository's digits CNN (22 nodes). `check` exits with 1 if the fault's
failure is there and says in its last line which, with 2 for any other failure. It judges for Polygraphy, and
both results at the end: Polygraphy's on random inputs, trtopt's on the inputs that it wrote. OUT.json is
written after each fault, and continued from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S, HANG_S = 900, 8
Weights = Mapping[str, Any]
Planted = tuple[list[onnx.NodeProto], Weights, str]
_node = helper.make_node
f32 = np.float32


# ── faults: nodes behind a tensor of some channels and of width 8 ───────────────────────────────────────


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded values."""
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(f32)


def scaled(tensor: str, factor: float, *nodes: onnx.NodeProto, **weights: Any) -> Planted:
    """The tensor times a factor (as `m`), then nodes, the last of which makes `y`."""
    return [_node("Mul", [tensor, "factor"], ["m"], "scale"), *nodes], {"factor": f32(factor), **weights}, "y"


def summed(tensor: str, *nodes: onnx.NodeProto, **weights: Any) -> Planted:
    """Nodes, the last of which makes `out`, whose sum is added to the tensor."""
    adding = [
        _node("ReduceSum", ["out"], ["total"], "total", keepdims=0),
        _node("Add", [tensor, "total"], ["y"], "join"),
    ]
    return [*nodes, *adding], weights, "y"


def batch_norm(source: str, target: str) -> onnx.NodeProto:
    """With the weights of `norm_weights`."""
    return _node("BatchNormalization", [source, "s", "z", "z", "v"], [target], "bn", epsilon=0.0)


def norm_weights(channels: int, scale: float, variance: float) -> dict[str, Any]:
    """A batch normalisation that multiplies by scale over the root of the variance."""
    ones = np.ones(channels, f32)
    return {"s": ones * f32(scale), "z": ones * 0, "v": ones * f32(variance)}


def conv(source: str, target: str) -> onnx.NodeProto:
    """With the weight `w`."""
    return _node("Conv", [source, "w"], [target], "conv_planted")


PLANTS: dict[str, Callable[[str, int], Planted]] = {
    # TensorRT-RTX refuses
    "det": lambda t, c: summed(t, _node("Det", [t], ["out"], "det")),
    "dft": lambda t, c: summed(
        t,
        _node("Unsqueeze", [t, "last"], ["u"], "u"),
        _node("DFT", ["u"], ["out"], "dft", axis=3),
        last=np.array([4]),
    ),
    "lp-pool": lambda t, c: summed(t, _node("LpPool", [t], ["out"], "lp", kernel_shape=[2, 2], p=3)),
    "pool-indices": lambda t, c: summed(
        t,
        _node("MaxPool", [t], ["p", "i"], "pool", kernel_shape=[2, 2]),
        _node("Cast", ["i"], ["ic"], "ic", to=TensorProto.FLOAT),
        _node("Add", ["p", "ic"], ["out"], "pi"),
    ),
    "bit-shift": lambda t, c: summed(
        t,
        _node("Cast", [t], ["u"], "u", to=TensorProto.UINT8),
        _node("BitShift", ["u", "two"], ["b"], "shift", direction="LEFT"),
        _node("Cast", ["b"], ["out"], "back", to=TensorProto.FLOAT),
        two=np.uint8(2),
    ),
    "scatter-mul": lambda t, c: summed(
        t,
        _node("Flatten", [t], ["flat"], "flat"),
        _node("Slice", ["flat", "at0", "at1", "at1"], ["column"], "column"),
        _node("Cast", ["column"], ["big"], "big", to=TensorProto.INT64),
        _node("Mul", ["big", "none"], ["index"], "index"),
        _node("ScatterElements", ["flat", "index", "column"], ["out"], "scatter", axis=1, reduction="mul"),
        at0=np.array([0]),
        at1=np.array([1]),
        none=np.int64(0),
    ),
    "sequence": lambda t, c: summed(
        t,
        _node("SplitToSequence", [t], ["s"], "split", axis=1),
        _node("ConcatFromSequence", ["s"], ["out"], "join_again", axis=1),
    ),
    "compress": lambda t, c: summed(
        t, _node("Compress", [t, "mask"], ["out"], "compress", axis=3), mask=np.arange(8) % 3 > 0
    ),
    # ONNX Runtime's optimiser makes the results wrong
    "conv-bn-overflow": lambda t, c: scaled(
        t,
        1e-30,
        conv("m", "c"),
        batch_norm("c", "y"),
        w=normal(c, c, 1, 1, scale=1e20),
        **norm_weights(c, 1e10, 1e-20),
    ),
    "conv-bn-underflow": lambda t, c: scaled(
        t,
        1e30,
        conv("m", "c"),
        batch_norm("c", "small"),
        _node("Mul", ["small", "up"], ["y"], "up"),
        w=normal(c, c, 1, 1, scale=1e-25),
        up=f32(1e17),
        **norm_weights(c, 1e-22, 1.0),
    ),
    "conv-mul-overflow": lambda t, c: scaled(
        t,
        1e-30,
        conv("m", "c"),
        _node("Mul", ["c", "k"], ["y"], "mul"),
        w=normal(c, c, 1, 1, scale=1e20),
        k=np.full((c, 1, 1), 1e20, f32),
    ),
    "conv-mul-underflow": lambda t, c: scaled(
        t,
        1e30,
        conv("m", "c"),
        _node("Mul", ["c", "k"], ["small"], "mul"),
        _node("Mul", ["small", "up"], ["y"], "up"),
        w=normal(c, c, 1, 1, scale=1e-25),
        k=np.full((c, 1, 1), 1e-22, f32),
        up=f32(1e17),
    ),
    "matmul-scales": lambda t, c: scaled(
        t,
        1e25,
        _node("MatMul", ["m", "w"], ["c"], "product"),
        _node("Mul", ["c", "k"], ["y"], "mul"),
        w=normal(8, 8, scale=1e-25),
        k=f32(1e20),
    ),
    "matmul-bn": lambda t, c: summed(
        t,
        _node("Transpose", [t], ["last"], "last", perm=[0, 2, 3, 1]),
        _node("Reshape", ["last", "rows"], ["r"], "rows"),
        _node("Mul", ["r", "factor"], ["m"], "scale"),
        _node("MatMul", ["m", "w"], ["c"], "product"),
        batch_norm("c", "out"),
        rows=np.array([-1, c]),
        factor=f32(1e-30),
        w=normal(c, c, scale=1e20),
        **norm_weights(c, 1e20, 1.0),
    ),
    # a Conv whose activation cannot join it, and a product that takes most of the time
    "unfused": lambda t, c: (
        [
            _node("Conv", [t, "w"], ["c"], "conv_planted"),
            _node("Relu", ["c"], ["r"], "relu_planted"),
            _node("Add", ["c", "r"], ["y"], "both"),
        ],
        {"w": normal(c, c, 1, 1, scale=0.1)},
        "y",
    ),
    "slow": lambda t, c: summed(
        t,
        _node("Flatten", [t], ["flat"], "flat"),
        _node("Slice", ["flat", "at0", "at64", "at1"], ["row"], "row"),
        _node("Tile", ["row", "many"], ["rows"], "rows"),
        _node("MatMul", ["rows", "w"], ["wide"], "wide"),
        _node("Relu", ["wide"], ["out"], "last"),
        at0=np.array([0]),
        at64=np.array([64]),
        at1=np.array([1]),
        many=np.array([512, 1]),
        w=normal(64, 4096, scale=0.1),
    ),
    # a command's verdict: operators of which several must be there, in these places
    "two-far-apart": lambda t, c: (
        [_node("Softplus", [t], ["p1"], "p1"), _node("Elu", ["p1"], ["y"], "p2")],
        {},
        "y",
    ),
    "chain-of-three": lambda t, c: (
        [
            _node("Sin", [t], ["p1"], "p1"),
            _node("Cos", ["p1"], ["p2"], "p2"),
            _node("Erf", ["p2"], ["y"], "p3"),
        ],
        {},
        "y",
    ),
    "crash": lambda t, c: (
        [
            _node("Softsign", [t], ["p1"], "p1"),
            _node("Neg", ["p1"], ["p2"], "p2"),
            _node("Add", [t, "p2"], ["y"], "p3"),
        ],
        {},
        "y",
    ),
    "hang": lambda t, c: ([_node("Celu", [t], ["p1"], "p1"), _node("Selu", ["p1"], ["y"], "p2")], {}, "y"),
}
"""Each is planted behind a tensor of some channels."""

RTX = ("det", "dft", "lp-pool", "pool-indices", "bit-shift", "scatter-mul", "sequence", "compress")
ORT = tuple(name for name in PLANTS if "conv-" in name or "matmul-" in name)
OWN = ("two-far-apart", "chain-of-three", "crash", "hang")
SLOW_MS = 5.0


# ── hosts ───────────────────────────────────────────────────────────────────────────────────────────────


def tower(blocks: int, *, is_open: bool) -> onnx.ModelProto:
    """Convolutions and activations; every third block adds what came two blocks before."""
    batch: int | str = "batch" if is_open else 1
    rng = np.random.default_rng(1)
    nodes, weights, ends = [], [], ["x"]
    for index in range(blocks):
        kernel = (rng.standard_normal((4, 4, 3, 3)) * 0.2).astype(f32)
        weights.append(numpy_helper.from_array(kernel, f"k{index}"))
        nodes.append(_node("Conv", [ends[-1], f"k{index}"], [f"c{index}"], f"conv{index}", pads=[1] * 4))
        ends.append(f"c{index}")
        if index % 3 == 2:
            nodes.append(_node("Add", [ends[-1], ends[-3]], [f"a{index}"], f"add{index}"))
            ends.append(f"a{index}")
        nodes.append(_node("LeakyRelu", [ends[-1]], [f"r{index}"], f"relu{index}"))
        ends.append(f"r{index}")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, 4, 8, 8]) for n in ("x", ends[-1])]
    graph = helper.make_graph(nodes, "tower", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def host_of(place: int) -> tuple[onnx.ModelProto, str, int]:
    """One of the three, a tensor in its middle, and its channels."""
    if place % 3 == 2:
        digits = onnx.load(ROOT / "models" / "digits" / "digits.onnx")
        return digits, digits.graph.node[1].output[0], 16
    blocks, is_open = ((26, False), (64, True))[place % 3]
    return tower(blocks, is_open=is_open), f"r{blocks // 2}", 4


def planted(name: str) -> onnx.ModelProto:
    """A host with the fault."""
    model, tensor, channels = host_of([*PLANTS].index(name))
    if name == "scatter-mul" and model.opset_import[0].version < 18:
        model = onnx.version_converter.convert_version(model, 18)
    if name == "dft":  # whose axis became an input in opset 20
        model.opset_import[0].version = 18
    nodes, weights, out = PLANTS[name](tensor, channels)
    names = {one for node in nodes for one in node.output} | weights.keys()
    for node in nodes:
        for field in (node.input, node.output):
            field[:] = [f"planted_{one}" if one in names else one for one in field]
        node.name = f"planted_{node.name}"
    at = next(i for i, node in enumerate(model.graph.node) if tensor in node.output)
    for node in model.graph.node[at + 1 :]:
        node.input[:] = [f"planted_{out}" if one == tensor else one for one in node.input]
    whole = [*model.graph.node[: at + 1], *nodes, *model.graph.node[at + 1 :]]
    if name == "two-far-apart":  # the other one stands at the end
        last = model.graph.output[0].name
        whole[-1].output[:] = ["before_last"]
        whole.append(_node("HardSwish", ["before_last"], [last], "far"))
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(whole)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), f"planted_{key}") for key, array in weights.items()
    )
    onnx.checker.check_model(model)
    return model


# ── judging ─────────────────────────────────────────────────────────────────────────────────────────────


def follows(model: onnx.ModelProto, *operators: str) -> bool:
    """Whether a node of the last operator reads one of the one before, and so on."""
    reached: set[str] | None = None
    for operator in operators:
        found = [
            node
            for node in model.graph.node
            if node.op_type == operator and (reached is None or reached & set(node.input))
        ]
        reached = {name for node in found for name in node.output}
    return bool(reached)


def check_own(name: str, model: onnx.ModelProto) -> None:
    """The faults of commands, which fail in other ways too, for parts of their pattern alone."""
    operators = {node.op_type for node in model.graph.node}
    if name == "two-far-apart":
        if {"Softplus", "HardSwish"} <= operators:
            raise SystemExit("both are there")
        if "Softplus" in operators:
            raise SystemExit("one of them is there")
    elif name == "chain-of-three":
        if follows(model, "Sin", "Cos", "Erf"):
            raise SystemExit("the chain is there")
        if "Erf" in operators:
            sys.exit(4)
    elif name == "crash" and follows(model, "Softsign", "Neg", "Add"):
        os.kill(os.getpid(), signal.SIGSEGV)
    elif name == "hang" and follows(model, "Celu", "Selu"):
        time.sleep(3600)


def check_engine(name: str, path: Path, data: Path | None) -> None:
    """The faults that a build, or its engine, shows."""
    import trtopt

    backend = "tensorrt-rtx" if name in RTX else "onnxruntime"
    with tempfile.TemporaryDirectory() as folder:
        engines = Path(folder, "engines")
        try:
            trtopt.build(path, engines, backend=backend, rewrite="none")
            if name in ORT:
                check = trtopt.check(
                    engines, path, data=data, backend=backend, min_cosine=0.99, min_sqnr=20.0
                )
                if not check.passed:
                    measures = {one.measure for one in check.subjects[0].violations}
                    is_nan = measures & {"NaN or infinite values", "finite values"}
                    raise SystemExit(f"wrong: {'NaN' if is_nan else 'values'}")
            elif name not in RTX:
                found = trtopt.profile(engines, data=data, duration=0.5).engines[0]
                if name == "slow" and (found.latency_ms or 0) > SLOW_MS:
                    raise SystemExit("slow")
                if name == "unfused" and any(one.reason == "second-consumer" for one in found.unfused):
                    raise SystemExit("unfused: second-consumer")
        except trtopt.TrtoptError as error:
            if name not in RTX:
                raise
            operator = re.search(r"\((\w*)\): ([^\n|]*)", error.problem.replace(str(path), ""))
            raise SystemExit(f"{type(error).__name__} {operator[0] if operator else ''}") from None


def check(name: str, path: Path, data: Path | None) -> None:
    """See the head."""
    try:
        if name in OWN:
            check_own(name, onnx.load(path))
        else:
            check_engine(name, path, data)
    except Exception as error:  # noqa: BLE001  (whatever is wrong is another failure)
        print(f"{type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
        sys.exit(2)


def verdict(name: str, path: Path, data: Path | None = None) -> tuple[int, str]:
    """How `check` ends, and its last line."""
    command = [sys.executable, __file__, "check", name, str(path), *([str(data)] if data else [])]
    limit_s = HANG_S if name == "hang" else LIMIT_S
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return 124, "hangs"
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def condition_of(name: str) -> list[str]:
    """The options of trtopt reduce."""
    if name in RTX:
        return ["--while", "fails", "--backend", "tensorrt-rtx"]
    if name in OWN:
        command = shlex.join([sys.executable, __file__, "check", name])
        return ["--while", f"{command} {{model}}", *(["--timeout", str(HANG_S)] if name == "hang" else [])]
    by = "wrong" if name in ORT else "unfused" if name == "unfused" else f"slower:{SLOW_MS}"
    return ["--while", by, "--backend", "onnxruntime"]


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Outcome:
    """What a tool made of a fault; `same`: its model fails as the whole does."""

    nodes: int | None
    steps: int | None
    seconds: float
    same: bool


def timed(command: list[str], folder: Path) -> tuple[subprocess.CompletedProcess[str] | None, float]:
    """What a command printed, None after the limit, and its seconds."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        done = None
    return done, time.perf_counter() - began


def by_trtopt(name: str, model: Path, whole: tuple[int, str]) -> Outcome:
    """`trtopt reduce`."""
    out, report = model.with_name("trtopt.onnx"), model.with_name("trtopt.json")
    command = [sys.executable, "-m", "trtopt", "reduce", str(model), "-o", str(out), "--json", str(report)]
    done, seconds = timed([*command, *condition_of(name)], model.parent)
    if done is None or done.returncode or not out.exists():
        print(name, "trtopt:", done and done.stderr[-600:], file=sys.stderr)
        return Outcome(None, None, seconds, same=False)
    found = json.loads(report.read_text())
    data = None if name in OWN else out.with_suffix(".npz")
    return Outcome(len(found["nodes"]), found["steps"], seconds, same=verdict(name, out, data) == whole)


def by_polygraphy(name: str, model: Path, whole: tuple[int, str]) -> Outcome:
    """`polygraphy debug reduce`, by bisection, its default, with the model's axes fixed as it recommends."""
    out = model.with_name("polygraphy.onnx")
    judge = [sys.executable, __file__, "check", name, "polygraphy_debug.onnx"]
    if name == "hang":
        judge = ["timeout", str(HANG_S), *judge]
    given = onnx.load(model).graph.input[0]
    shape = [1, *(axis.dim_value for axis in given.type.tensor_type.shape.dim[1:])]
    shapes = f"{given.name}:{json.dumps(shape, separators=(',', ':'))}"
    tool = [shutil.which("polygraphy") or "polygraphy", "debug", "reduce", str(model), "-o", str(out)]
    done, seconds = timed([*tool, "--model-input-shapes", shapes, "--check", *judge], model.parent)
    if done is None or done.returncode or not out.exists():
        print(name, "polygraphy:", done and (done.stdout + done.stderr)[-600:], file=sys.stderr)
        return Outcome(None, None, seconds, same=False)
    steps = len(re.findall(r"Running check command|\[I\] Running", done.stdout)) or None
    nodes = len(onnx.load(out).graph.node)
    return Outcome(nodes, steps, seconds, same=verdict(name, out) == whole)


TOOLS = {"trtopt": by_trtopt, "polygraphy": by_polygraphy}


def run(work: Path, out: Path, only: list[str], tools: list[str]) -> None:
    """All faults, by these tools; what `out` has is kept."""
    found = json.loads(out.read_text()) if out.exists() else {}
    for tool in tools:
        for name in only or PLANTS:
            row = found.setdefault(name, {})
            if tool in row:
                continue
            folder = work / name
            folder.mkdir(parents=True, exist_ok=True)
            onnx.save(proto := planted(name), model := folder / "model.onnx")
            whole = tuple(row.get("failure") or verdict(name, model))
            own = sum(node.name.startswith("planted_") for node in proto.graph.node)
            row |= {"failure": list(whole), "nodes": len(proto.graph.node), "planted": own}
            row[tool] = vars(TOOLS[tool](name, model, whole))
            out.write_text(f"{json.dumps(found, indent=1)}\n")
            print(name, json.dumps(row), flush=True)


def table(out: Path) -> None:
    """Print the table of the README."""
    found = json.loads(out.read_text())
    print("| fault | nodes |", " | ".join(f"{tool}: nodes | steps | s | alike" for tool in TOOLS), "|")
    print("|---|--:|", "|".join("--:|--:|--:|---" for _ in TOOLS), "|", sep="")
    for name, row in found.items():
        cells: list[object] = []
        for one in map(row.get, TOOLS):
            alike = "yes" if one and one["same"] else "no" if one else ""
            cells += (
                [one["nodes"] or "–", one["steps"] or "–", round(one["seconds"]), alike] if one else [""] * 4
            )
        print(f"| {name} | {row['nodes']} |", " | ".join(map(str, cells)), "|")
    for tool in TOOLS:
        rows = [row[tool] for row in found.values() if tool in row]
        good = [one["nodes"] for one in rows if one["same"]]
        if good:
            slowest = max(one["seconds"] for one in rows)
            print(f"\n{tool}: {len(good)} of {len(rows)} fail alike; median of these {median(good):g} nodes;")
            print(f"at most {slowest:.0f} s")


def main() -> None:
    """See the head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("work", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--only", default="")
    one.add_argument("--tools", default=",".join(TOOLS))
    one = commands.add_parser("table")
    one.add_argument("out", type=Path)
    one = commands.add_parser("check")
    one.add_argument("name", choices=PLANTS)
    one.add_argument("model", type=Path)
    one.add_argument("data", type=Path, nargs="?")
    given = parser.parse_args()
    if given.command == "run":
        only = [name for name in given.only.split(",") if name]
        run(given.work.absolute(), given.out.absolute(), only, given.tools.split(","))
    elif given.command == "table":
        table(given.out)
    else:
        check(given.name, given.model, given.data)


if __name__ == "__main__":
    main()
