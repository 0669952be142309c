"""What `trtopt build --fused-plugins` makes of an encoder, on one GPU with TensorRT 8.6.

    python product.py OUT [--layers 4] [--batch 8]
    python product.py OUT --peers FOLDER [--batch 8]

First each plugin alone, in a graph that is written as the product writes it, against NumPy; then the
product's graph alone, against ONNX Runtime; then the whole command, which measures plain FP16, the form of
Q/DQ that is expected to gain most, and the plugins in one process in random order. With `--peers`, a folder
as for ../int8-vs-modelopt, the whole command alone, on its BERT-base with a mask of ones. What fails is
printed in full, and the rest goes on. OUT gets result.json and logs; all weights are seeded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plain"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
import replay
from peer_graphs import refilled, samples_of

from tests.support.encoders import HIDDEN, Encoder

ROOT = Path(__file__).resolve().parents[2]
TOKENS, HEADS, HEAD = 128, 12, 64
PLUGINS = "trt.plugins"
STORE = Path(tempfile.gettempdir()) / "fused-plugins-store"
"""Timing caches: a run that was cut off goes faster the second time."""


def sqnr_db(got: np.ndarray, wanted: np.ndarray) -> float:
    """Signal to noise in decibels."""
    noise = np.square(got.astype(np.float64) - wanted).sum()
    return round(float(10 * np.log10(np.square(wanted.astype(np.float64)).sum() / max(noise, 1e-30))), 2)


# ── one plugin each ─────────────────────────────────────────────────────────────────────────────────────────


def one_plugin(op: str, inputs: dict[str, np.ndarray], out: np.ndarray, **fields: object) -> onnx.ModelProto:
    """Float inputs, an Identity to INT8 before the plugin and one to float behind it, and the ranges."""
    nodes, weights, read, ranges = [], [], [], {"made": float(np.abs(out).max())}
    for name, array in inputs.items():
        if array.dtype == np.int32:
            weights.append(numpy_helper.from_array(array, name))
            read.append(name)
        else:
            nodes.append(helper.make_node("Identity", [name], [f"{name}_int8"], f"to_{name}"))
            read.append(f"{name}_int8")
            ranges[name] = ranges[read[-1]] = float(np.abs(array).max())
    fields |= {"domain": PLUGINS, "plugin_version": "3", "plugin_namespace": ""}
    nodes += [
        helper.make_node(op, read, ["made"], "plugin", **fields),
        helper.make_node("Identity", ["made"], ["y"], "from_int8"),
    ]
    floats = {key: array for key, array in inputs.items() if array.dtype != np.int32}
    graph = helper.make_graph(
        nodes,
        op,
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, array.shape) for key, array in floats.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out.shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(PLUGINS, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model.metadata_props.add(key="trtopt.weak_types", value="float16 int8")
    told = {"ranges": ranges, "types": {"made": "INT8", "y": "FLOAT"}}
    model.metadata_props.add(key="trtopt.ranges", value=json.dumps(told))
    return model


def attention(batch: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """Queries, keys and values as (1, 3E, B·S, 1), and the context."""
    random = np.random.default_rng(0)
    qkv = random.standard_normal((1, 3 * HIDDEN, batch * TOKENS, 1), np.float32)
    parts = qkv.reshape(3, HEADS, HEAD, batch, TOKENS).transpose(0, 3, 1, 4, 2)
    scores = parts[0] @ parts[1].swapaxes(-1, -2) / 8
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    context = (shares @ parts[2]).transpose(1, 3, 0, 2).reshape(1, HIDDEN, batch * TOKENS, 1)
    starts = np.arange(batch + 1, dtype=np.int32) * TOKENS
    inputs = {"qkv": qkv, "starts": starts, "longest": np.zeros(TOKENS, np.int32)}
    fields = {"hidden_size": HIDDEN, "num_heads": HEADS, "use_int8_scale_max": 1}
    probs = float(shares.max()) / 127
    model = one_plugin("CustomQKVToContextPluginDynamic", inputs, context, dq_probs=probs, **fields)
    return model, {"qkv": qkv}, context


def skip_norm(batch: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """Two tensors of (1, E, B·S, 1), and the normalised sum."""
    random = np.random.default_rng(1)
    feed = {key: random.standard_normal((1, HIDDEN, batch * TOKENS, 1), np.float32) for key in ("x", "skip")}
    gamma, beta = 1 + random.standard_normal(HIDDEN) / 8, random.standard_normal(HIDDEN) / 8
    total = feed["x"] + feed["skip"]
    centred = total - total.mean(1, keepdims=True)
    normed = centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + 1e-5)
    out = (normed * gamma[None, :, None, None] + beta[None, :, None, None]).astype(np.float32)
    lists = {"beta": beta.tolist(), "gamma": gamma.tolist()}
    return one_plugin("CustomSkipLayerNormPluginDynamic", feed, out, **lists), feed, out


# ── BERT-base ───────────────────────────────────────────────────────────────────────────────────────────────


def bert_base(peers: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The exported graph with a mask of ones in place of its input, and samples."""
    model = refilled(peers, "bert")
    feed = {"ids": samples_of(model)["ids"]}
    (mask,) = (value for value in model.graph.input if value.name == "mask")
    model.graph.input.remove(mask)
    one = numpy_helper.from_array(np.ones(1, np.int64))
    model.graph.node.insert(
        0, helper.make_node("ConstantOfShape", ["shape_of_ids"], ["mask"], "ones", value=one)
    )
    model.graph.node.insert(0, helper.make_node("Shape", ["ids"], ["shape_of_ids"], "shape_of_ids"))
    return model, feed


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────


def trtopt_build(model: Path, folder: Path, log: Path, *options: str) -> Path:
    """The build folder that the command line makes; what it said is in the log."""
    command = [
        sys.executable, "-m", "trtopt", "build", str(model), "-o", str(folder), "-v", "--cache-dir",
        str(STORE), "--tactic-sources", ",".join(replay.SOURCES), *options,
    ]  # fmt: skip
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{log.name}: exit code {done.returncode}\n{log.read_text()[-3000:]}")
    return folder


def outputs_of(engine: Path, feed: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """The engine's first output, and the median milliseconds of a replayed CUDA graph."""
    plan = replay.Plan(engine, {key: list(array.shape) for key, array in feed.items()}, feed)
    times = [plan.query()[0] for _ in range(200)]
    return plan.outputs()[0], round(float(np.median(times)), 4)


def alone(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], wanted: np.ndarray, place: Path
) -> dict[str, object]:
    """Build one graph, run it, and compare."""
    onnx.save(model, place.with_suffix(".onnx"))
    folder = trtopt_build(place.with_suffix(".onnx"), place, place.with_suffix(".log"), "--rewrite", "none")
    got, ms = outputs_of(next(folder.glob("*.engine")), feed)
    return {"sqnr_db": sqnr_db(got, wanted), "ms": ms}


def product_graph(model: Path, data: Path, batch: int, folder: Path) -> Path:
    """The graph as the selection writes it."""
    from trtopt.onnxio.model_info import read_onnx
    from trtopt.precision.bounds import Bounds
    from trtopt.records import Backend
    from trtopt.requests.models import QuantizeOptions
    from trtopt.requests.recipe import make_recipe
    from trtopt.workflows.build.candidates import Candidates
    from trtopt.workflows.workbench import make_plans

    backend, base = Backend(name="tensorrt", version="8.6.0"), read_onnx(model)
    (plan,) = make_plans(base, make_recipe(None, {"batch": [batch]}), backend)
    options = QuantizeOptions(precision="int8", data=str(data), target="8.6")
    folder.mkdir()
    return Path(Candidates(base, folder, options, Bounds()).make_plugins("plugins", plan, print).onnx.path)


def main() -> None:
    """Run all steps; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--peers", type=Path)
    given = parser.parse_args()
    out, batch, found = given.out.absolute(), given.batch, dict[str, object]()
    work = Path(tempfile.mkdtemp(prefix="fused-plugins-"))
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def step(name: str, run: Callable[[], object]) -> object:
        start = time.monotonic()
        try:
            found[name] = run()
        except BaseException:  # noqa: BLE001 - a step that fails is a result
            found[name] = {"failed": traceback.format_exc()[-6000:]}
            print(f"{name} FAILED\n{traceback.format_exc()[-6000:]}", flush=True)
        else:
            print(f"{name}: {json.dumps(found[name])}", flush=True)
        print(f"  {time.monotonic() - start:.1f} s, {time.monotonic() - began:.1f} s in all", flush=True)
        found["seconds"] = round(time.monotonic() - began, 1)
        (out / "result.json").write_text(json.dumps(found, indent=1) + "\n")
        for log in work.glob("*.log"):
            (out / log.name).write_bytes(log.read_bytes()[-2_000_000:])
        return found[name]

    model, data, random = work / "encoder.onnx", work / "x.npz", np.random.default_rng(2)
    if given.peers is not None:
        (proto, feed), axes = bert_base(given.peers), ["--axis", f"S={TOKENS}"]
    else:
        proto, axes = Encoder(layers=given.layers, batch="N", tokens=TOKENS, inner=4 * HIDDEN).model(), []
        feed = {"x": random.standard_normal((16, TOKENS, HIDDEN), np.float32)}
    onnx.save(proto, model)
    np.savez(data, **feed)

    def whole_graph() -> object:
        import onnxruntime

        graph = product_graph(model, data, batch, work / "graph")
        folder = work / "whole"
        trtopt_build(graph, folder, work / "whole.log", "--rewrite", "none")
        feed = {"x": random.standard_normal((batch, TOKENS, HIDDEN), np.float32)}
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        got, ms = outputs_of(next(folder.glob("*.engine")), feed)
        return {"sqnr_db": sqnr_db(got, session.run(None, feed)[0]), "ms": ms}

    if given.peers is None:
        step("attention alone", lambda: alone(*attention(batch), work / "attention"))
        step("skip-norm alone", lambda: alone(*skip_norm(batch), work / "skip_norm"))
        step("the product's graph", whole_graph)

    def command() -> object:
        folder = work / "selected"
        trtopt_build(
            model, folder, out / "selected.log", "--precision", "int8", "--fused-plugins", "--data",
            str(data), "--batch", str(batch), "--selection-budget", "1", *axes,
        )  # fmt: skip
        verdict = json.loads((folder / "manifest.json").read_text())["verdict"]
        said = [line for line in (out / "selected.log").read_text().splitlines() if "left out" in line]
        return {"batches": verdict["batches"], "candidates": verdict["candidates"], "left_out": said}

    step("trtopt build --fused-plugins", command)


if __name__ == "__main__":
    main()
