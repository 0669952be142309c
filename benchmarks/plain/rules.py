"""One rewrite rule alone: a graph where it fires as exported and rewritten, both built by plain TensorRT.

    python benchmarks/plain/rules.py WORK OUT [--dry-run]

OUT/rules.json has nodes before and after, medians, the ratio with the middle half of twenty turns, and the
SQNR between the two engines' outputs. The dry run rewrites alone, without a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import replay
from onnx import TensorProto, helper, numpy_helper

WIDTH, LENGTH, HEADS = 768, 128, 12
LAYERS = {"softmax": 4, "layer-norm": 6, "share-equal": 4}
BATCHES = (1, 32)
TURNS, TURN_S = 20, 0.2


class Graph:
    """Nodes and constants, named as they come."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._random = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Its output."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """Its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, mean: float = 0.0, deviation: float = 0.03) -> str:
        """A seeded one."""
        return self.constant(mean + deviation * self._random.standard_normal(shape))


def attention(graph: Graph, x: str) -> str:
    """Self-attention whose softmax is Exp over ReduceSum."""

    def heads(value: str, axes: list[int]) -> str:
        shape = graph.constant([0, LENGTH, HEADS, WIDTH // HEADS], np.int64)
        return graph.node("Transpose", graph.node("Reshape", value, shape), perm=axes)

    q, k, v = (graph.node("MatMul", x, graph.weight(WIDTH, WIDTH)) for _ in range(3))
    scores = graph.node("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
    scores = graph.node("Mul", scores, graph.constant((WIDTH // HEADS) ** -0.5))
    power = graph.node("Exp", graph.node("Sub", scores, graph.node("ReduceMax", scores, axes=[-1])))
    total = graph.node("ReduceSum", power, graph.constant([-1], np.int64))
    mixed = graph.node("MatMul", graph.node("Div", power, total), heads(v, [0, 2, 1, 3]))
    shape = graph.constant([0, LENGTH, WIDTH], np.int64)
    joined = graph.node("Reshape", graph.node("Transpose", mixed, perm=[0, 2, 1, 3]), shape)
    return graph.node("Add", x, graph.node("MatMul", joined, graph.weight(WIDTH, WIDTH)))


def normalised(graph: Graph, x: str) -> str:
    """A residual block whose layer normalisation is nine nodes."""
    centred = graph.node("Sub", x, graph.node("ReduceMean", x, axes=[-1]))
    variance = graph.node("ReduceMean", graph.node("Pow", centred, graph.constant(2.0)), axes=[-1])
    root = graph.node("Sqrt", graph.node("Add", variance, graph.constant(1e-5)))
    scale, bias = graph.weight(WIDTH, mean=1.0, deviation=0.1), graph.weight(WIDTH, deviation=0.1)
    norm = graph.node("Add", graph.node("Mul", graph.node("Div", centred, root), scale), bias)
    return graph.node("Add", x, graph.node("Relu", graph.node("MatMul", norm, graph.weight(WIDTH, WIDTH))))


def doubled(graph: Graph, x: str) -> str:
    """Two branches that begin with the same product."""
    shared = graph.weight(WIDTH, WIDTH)
    ends = (graph.node("Relu", graph.node("MatMul", x, shared)) for _ in range(2))
    first, second = (graph.node("MatMul", end, graph.weight(WIDTH, WIDTH)) for end in ends)
    return graph.node("Add", first, second)


BLOCKS: dict[str, Callable[[Graph, str], str]] = {
    "softmax": attention, "layer-norm": normalised, "share-equal": doubled
}  # fmt: skip


def write(rule: str, file: Path) -> None:
    """So many blocks as the rule has layers."""
    graph, x = Graph(), "x"
    for _ in range(LAYERS[rule]):
        x = BLOCKS[rule](graph, x)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", LENGTH, WIDTH]) for name in ("x", x)]
    body = helper.make_graph(graph.nodes, rule, ends[:1], ends[1:], graph.constants)
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def measure(files: list[Path], batch: int, work: Path) -> dict[str, Any]:
    """Both engines in turns; which begins changes from turn to turn."""
    feed = {"x": np.random.default_rng(1).standard_normal((batch, LENGTH, WIDTH), dtype=np.float32)}
    shapes, sides = {"x": list(feed["x"].shape)}, []
    for file in files:
        plan = work / f"{file.stem}-{batch}.plan"
        replay.build(file, plan, shapes, None)
        sides.append(replay.Plan(plan, shapes, feed))
        sides[-1].query()
    turns = np.empty((TURNS + 1, 2))
    for number in range(TURNS + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            turns[number, side] = replay.turn(sides[side], TURN_S)["device_ms"]
    ratios = turns[1:, 1] / turns[1:, 0]
    before, after = (side.outputs()[0].astype(np.float64).ravel() for side in sides)
    return {
        "ms": np.median(turns[1:], axis=0).round(4).tolist(),
        "ratio": round(float(np.median(ratios)), 4),
        "iqr": np.quantile(ratios, [0.25, 0.75]).round(4).tolist(),
        "sqnr_between_db": round(
            float(10 * np.log10(before @ before / max((before - after) @ (before - after), 1e-300))), 1
        ),
    }


def main() -> None:
    """Read the command line."""
    work, out, dry_run = Path(sys.argv[1]), Path(sys.argv[2]), "--dry-run" in sys.argv
    found: dict[str, Any] = {}
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    for rule in LAYERS:
        before, after = work / f"{rule}.onnx", work / f"{rule}.rewritten.onnx"
        write(rule, before)
        words = ["rewrite", before, "-o", after, "--target", "8.6", "--rules", rule, "-q"]
        subprocess.run([sys.executable, "-m", "trtopt", *map(str, words)], check=True)
        nodes = [len(onnx.load(file).graph.node) for file in (before, after)]
        cells = {} if dry_run else {str(b): measure([before, after], b, work) for b in BATCHES}
        found[rule] = {"nodes": nodes, **cells}
        (out / "rules.json").write_text(json.dumps(found, indent=1) + "\n")
        print(rule, found[rule], flush=True)


if __name__ == "__main__":
    main()
