"""Where Q/DQ pay: small networks with pairs in different places, built and measured in turns.

    python benchmarks/placement/placements.py jobs build WORK OUT > BUILDS.json
    python benchmarks/placement/placements.py jobs measure WORK OUT > MEASUREMENTS.json
    python benchmarks/shared/on_every_gpu.py BUILDS.json DONE 600
    python benchmarks/shared/on_every_gpu.py MEASUREMENTS.json DONE 600
    python benchmarks/placement/placements.py table OUT

Each network is what trained ones repeat: residuals behind SiLU, parts of a Split joined again, encoder layers
of BERT-base. Weights are seeded noise and scales made up: only times are report. All engines have one recipe
(static batch, FP16 and INT8 allowed, no cuDNN and cuBLAS), a CUDA graph, no copies. `build NETWORK WORK OUT
--backend tensorrt-rtx` tries the first half on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
import turns

from trtopt.errors import TrtoptError
from trtopt.inspect.inspector import read_inspector
from trtopt.onnxio.graph_walk import WEAK_TYPES

SCALE = 0.05


class Net:
    """A graph in the making. `pair` puts Q/DQ on a tensor where the placement has its kind.

    Tensors are FP32 and may run in FP16; with `written` they are FP16, but for what Q and DQ read and write.
    """

    def __init__(self, placement: Sequence[str]) -> None:
        self._placement = placement
        self._float = np.float16 if "written" in placement else np.float32
        self._random = np.random.default_rng(4)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._pairs: dict[str, str] = {}

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Its first output; further ones are called NAME.1 and so on."""
        name = f"{op}.{len(self._nodes)}"
        made = [name, *(f"{name}.{index}" for index in range(1, outputs))]
        self._nodes.append(helper.make_node(op, list(inputs), made, name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A weight as it is given."""
        name = f"constant.{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype or self._float), name))
        return name

    def cast(self, tensor: str, to: Any) -> str:
        """It in FP16 or FP32, if all others are written in FP16."""
        if self._float == np.float32:
            return tensor
        return self.node("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))

    def noise(self, *shape: int, dtype: Any = None) -> str:
        """A weight or bias of seeded noise."""
        return self.constant(self._random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])), dtype)

    def pair(self, tensor: str, kind: str) -> str:
        """The tensor, through Q/DQ if the placement has the kind; one pair serves all readers."""
        if kind not in self._placement:
            return tensor
        if tensor not in self._pairs:
            scale, zero = self.constant(SCALE, np.float32), self.constant(0, np.int8)
            self._pairs[tensor] = self._through(self.cast(tensor, np.float32), scale, zero)
        return self._pairs[tensor]

    def product(self, a: str, b: str, kind: str) -> str:
        """MatMul of two activations, through pairs if the placement has the kind."""
        product = self.node("MatMul", self.pair(a, kind), self.pair(b, kind))
        return self.cast(product, np.float16) if kind in self._placement else product

    def weight(self, *shape: int, axis: int) -> str:
        """A weight with a scale a channel, if products and convolutions are quantised at all."""
        if "weights" not in self._placement:
            return self.noise(*shape)
        name = self.noise(*shape, dtype=np.float32)
        scales = self.constant(np.full(shape[axis], 0.01), np.float32)
        return self._through(name, scales, self.constant(np.zeros(shape[axis]), np.int8), axis=axis)

    def _through(self, tensor: str, scale: str, zero: str, **axis: int) -> str:
        quantised = self.node("QuantizeLinear", tensor, scale, zero, **axis)
        return self.node("DequantizeLinear", quantised, scale, zero, **axis)

    def conv(self, x: str, inputs: int, outputs: int, kernel: int) -> str:
        """A convolution that keeps the size of maps."""
        weight = self.weight(outputs, inputs, kernel, kernel, axis=0)
        # TensorRT 8.6 finds no kernel size where the kernel comes out of a DQ
        sizes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", self.pair(x, "weights"), weight, self.noise(outputs), **sizes)

    def linear(self, x: str, k: int, n: int) -> str:
        """A product with a bias."""
        product = self.node("MatMul", self.pair(x, "weights"), self.weight(k, n, axis=1))
        if "weights" in self._placement:
            product = self.cast(product, np.float16)
        return self.node("Add", product, self.noise(n))

    def silu(self, x: str) -> str:
        """x·Sigmoid(x)."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def norm(self, x: str, width: int) -> str:
        """A LayerNormalization over the last axis."""
        return self.node("LayerNormalization", x, self.noise(width), self.noise(width))

    def save(self, path: Path, shape: Sequence[int], y: str) -> None:
        """Write the graph; its input `x` and its output have one shape."""
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", y)]
        graph = helper.make_graph(self._nodes, "net", ends[:1], ends[1:], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model.metadata_props.add(key=WEAK_TYPES, value="float16")
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def silu_residual(net: Net) -> tuple[tuple[int, ...], str]:
    """Six bottlenecks as YOLO has them: x + SiLU(conv 3×3 of SiLU(conv 3×3 of x))."""
    x = "x"
    for _ in range(6):
        inner = net.silu(net.conv(net.silu(net.conv(x, 64, 64, 3)), 64, 64, 3))
        x = net.node("Add", net.pair(x, "skip"), net.pair(inner, "main"))
    return (16, 64, 80, 80), x


def split_concat(net: Net) -> tuple[tuple[int, ...], str]:
    """Three of YOLOv8's C2f: halves of a convolution's maps and what bottlenecks make of one, joined."""
    x = "x"
    for _ in range(3):
        first = net.silu(net.conv(x, 64, 64, 1))
        half = net.node("Split", net.pair(first, "split"), outputs=2, axis=1)
        parts = [half, f"{half}.1"]
        for _ in range(2):
            parts.append(net.silu(net.conv(net.silu(net.conv(parts[-1], 32, 32, 3)), 32, 32, 3)))
        joined = net.node("Concat", *(net.pair(part, "parts") for part in parts), axis=1)
        x = net.silu(net.conv(joined, 128, 64, 1))
    return (16, 64, 80, 80), x


def encoder(net: Net) -> tuple[tuple[int, ...], str]:
    """Four layers of BERT-base, 128 tokens."""
    batch, tokens, width, heads = 32, 128, 768, 12
    apart, together = (net.constant(list(one), np.int64) for one in (
        (batch, tokens, heads, width // heads), (batch, tokens, width)))  # fmt: skip
    x = net.norm(net.cast("x", np.float16), width)
    for _ in range(4):
        q, k, v = (net.node("Reshape", net.linear(x, width, width), apart) for _ in range(3))
        q, v = (net.node("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        k = net.node("Transpose", k, perm=[0, 2, 3, 1])
        scores = net.product(q, k, "attention")
        shares = net.node("Softmax", net.node("Mul", scores, net.constant(0.125)), axis=-1)
        mixed = net.product(shares, v, "attention")
        mixed = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), together)
        x = net.norm(_sum(net, net.linear(mixed, width, width), x), width)
        wide = net.linear(x, width, 4 * width)
        erf = net.node("Erf", net.node("Div", wide, net.constant(np.sqrt(2))))
        twice = net.node("Mul", wide, net.node("Add", erf, net.constant(1.0)))
        x = net.norm(_sum(net, net.linear(_smoothed(net, twice), 4 * width, width), x), width)
    return (batch, tokens, width), net.cast(x, np.float32)


def _sum(net: Net, main: str, skip: str) -> str:
    main, skip = (net.cast(net.pair(one, kind), np.float16) if kind in net._placement else one
                  for one, kind in ((main, "main"), (skip, "skip")))  # fmt: skip
    return net.node("Add", main, skip)


def _smoothed(net: Net, twice: str) -> str:
    """GELU's last factor: ½, or one a channel where activations were smoothed."""
    return net.node("Mul", twice, net.constant(np.full(3072, 0.5) if "smoothed" in net._placement else 0.5))


NETWORKS: dict[str, tuple[Callable[[Net], tuple[tuple[int, ...], str]], dict[str, tuple[str, ...]]]] = {
    "encoder": (
        encoder,
        {
            "fp16": (),
            "weights": ("weights",),
            "weights, smoothed": ("weights", "smoothed"),
            "weights, skip": ("weights", "skip"),
            "weights, skip and main": ("weights", "skip", "main"),
            "weights, attention": ("weights", "attention"),
            "weights, skip, attention": ("weights", "skip", "attention"),
            "all": ("weights", "skip", "main", "attention"),
            "fp16 written": ("written",),
            "weights, fp16 written": ("weights", "written"),
            "weights, attention, fp16 written": ("weights", "attention", "written"),
            "all, fp16 written": ("weights", "skip", "main", "attention", "written"),
        },
    ),
    "silu-residual": (
        silu_residual,
        {
            "fp16": (),
            "weights": ("weights",),
            "weights, skip": ("weights", "skip"),
            "weights, skip and main": ("weights", "skip", "main"),
        },
    ),
    "split-concat": (
        split_concat,
        {
            "fp16": (),
            "weights": ("weights",),
            "weights, parts": ("weights", "parts"),
            "weights, split": ("weights", "split"),
            "weights, split and parts": ("weights", "split", "parts"),
        },
    ),
}


def main() -> None:
    """Print the jobs, run one, or show what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["jobs", "build", "measure", "table"])
    parser.add_argument("what", help="of `jobs`: build or measure; a network; of `table`: OUT")
    parser.add_argument("work", nargs="?", type=Path)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--backend", default="tensorrt")
    request = parser.parse_args()
    if request.step == "jobs":
        json.dump(jobs(request.what, request.work.absolute(), request.out.absolute()), sys.stdout, indent=1)
    elif request.step == "table":
        print(table([json.loads(file.read_text()) for file in sorted(Path(request.what).glob("*.json"))]))
    elif request.step == "build":
        build(request.what, request.work, request.out, request.backend)
    else:
        measure(request.what, request.work, request.out)


def jobs(step: str, work: Path, out: Path) -> list[dict[str, str]]:
    """For `on_every_gpu.py`."""
    command = [sys.executable, str(Path(__file__).absolute()), step]
    prefix = "build-" if step == "build" else ""
    return [
        {"name": f"{prefix}placement-{name}", "run": shlex.join([*command, name, str(work), str(out)])}
        for name in NETWORKS
    ]


def build(network: str, work: Path, out: Path, backend: str) -> None:
    """An engine of each placement; the file is rewritten after each, also where there is none."""
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    make, placements = NETWORKS[network]
    result: dict[str, Any] = {"network": network, "sides": {}}
    for number, (side, placement) in enumerate(placements.items()):
        net, file = Net(placement), work / f"{network}-{number}.onnx"
        shape, y = make(net)
        net.save(file, shape, y)
        result["batch"] = shape[0]
        try:
            made = build_side(file, shape[0], backend)
            print(network, side, f"built in {made['build_s']} s", flush=True)
        except TrtoptError as error:
            made = {"failed": error.problem}
            print(network, side, f"not built: {error}", flush=True)
        result["sides"][side] = {**made, "p50_ms": []}
        (out / f"{network}.json").write_text(json.dumps(result, indent=1))


def build_side(file: Path, batch: int, backend: str) -> dict[str, Any]:
    """Its folder next to the graph, how long it took, and what it is made of."""
    import trtopt

    start, folder = time.monotonic(), file.with_suffix("")
    manifest = trtopt.build(
        file, folder, batch=(batch,), backend=backend, rewrite="none",
        tactic_sources=turns.SOURCES if backend == "tensorrt" else None,
    )  # fmt: skip
    layers = manifest.engines[0].layers
    return {
        "folder": folder.name,
        "build_s": round(time.monotonic() - start, 1),
        "layers": [f"{one.kind}: {one.name}" for one in read_inspector((folder / layers).read_text())]
        if layers
        else None,
    }


def measure(network: str, work: Path, out: Path) -> None:
    """Measure in turns what was built; the file is rewritten after each."""
    place = out / f"{network}.json"
    result = json.loads(place.read_text())

    def note(side: str, ms: float) -> None:
        result["sides"][side]["p50_ms"].append(ms)
        place.write_text(json.dumps(result, indent=1))

    built = {side: report for side, report in result["sides"].items() if "failed" not in report}
    turns.measure({side: work / report["folder"] for side, report in built.items()}, result["batch"], note)


def table(results: list[dict[str, Any]]) -> str:
    """Medians over the turns, and each placement's time against FP16's; why there are none."""
    lines = ["| network | batch | Q/DQ | layers | ms | against FP16 |", "|---|--:|---|--:|--:|--:|"]
    for result in results:
        medians = turns.medians(result["sides"])
        for side, report in result["sides"].items():
            place = f"{result['network']} | {result['batch']} | {side}"
            if "failed" in report:
                lines.append(f"| {place} | – | – | not built: {report['failed']} |")
            elif side in medians:
                layers = len(report["layers"]) if report["layers"] else "–"
                against = f"{medians[side] / medians['fp16'] - 1:+.1%}" if "fp16" in medians else "–"
                lines.append(f"| {place} | {layers} | {medians[side]:.4f} | {against} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
