"""Whether builds differ in tactics and outputs, and whether builds with `--locked` do not.

    python benchmarks/locked-tactics/locked_tactics.py results.json [--model small] [--seconds 140]

Builds one model in FP16: once with `--lock`, then ten times with `--locked` and three times without a lock.
All builds are made in this process, which loads TensorRT once, with one timing a tactic. The engines run on
the same inputs. Ends with fewer builds where the time is over; the results are written after each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtopt.builder.engine import build_engine
from trtopt.device.backends import open_builder, open_target
from trtopt.errors import TrtoptError
from trtopt.inspect.inspector import read_inspector
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.recipe import Recipe
from trtopt.records import Manifest, TacticLock, read_versioned
from trtopt.workflows.build.build import build_recipe

ROOT = Path(__file__).resolve().parents[2]
BATCH = 8
ORDER = ("lock", *("free", "locked", "locked", "locked") * 3, "locked")
RECIPE = Recipe(
    batch=(BATCH,),
    precision="fp16",
    backend="tensorrt",
    avg_timing=1,
    tactic_sources=("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
    timing_cache="none",
)


def digits(folder: Path) -> Path:
    """The repository's convolutional model."""
    return ROOT / "models" / "digits" / "digits.onnx"


def transformer(folder: Path) -> Path:
    """The repository's transformer."""
    return ROOT / "models" / "digits_transformer" / "digits_transformer.onnx"


def small(folder: Path) -> Path:
    """A convolution and one residual block on 16 x 16 pixels, with seeded weights."""
    random, width = np.random.default_rng(0), 32
    nodes, weights = [], []
    for name, reads in (("stem", "images"), ("a", "stem.relu"), ("b", "a.relu")):
        values = random.standard_normal((width, width, 3, 3), dtype=np.float32) / np.float32(width)
        weights.append(numpy_helper.from_array(values, f"{name}.weight"))
        shape: dict[str, Any] = {"pads": [1] * 4, "kernel_shape": [3, 3]}
        nodes.append(helper.make_node("Conv", [reads, f"{name}.weight"], [name], name, **shape))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.relu"], f"{name}/relu"))
    nodes.append(helper.make_node("Add", ["stem.relu", "b.relu"], ["sum"], "add"))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width, 16, 16])]
        for name in ("images", "sum")
    )
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "small.onnx")
    return folder / "small.onnx"


MODELS: dict[str, Callable[[Path], Path]] = {"small": small, "digits": digits, "transformer": transformer}


class Here:
    """An executor whose jobs run in this process."""

    def __init__(self) -> None:
        self._builder = open_builder("tensorrt")

    def run_all_jobs(self, jobs: Any, **_: Any) -> Iterator[tuple[int, Any]]:
        """See `executors.api.Executor`."""
        for index, job in enumerate(jobs):
            try:
                yield index, build_engine(self._builder, job, lambda phase, fraction: None)
            except TrtoptError as error:
                yield index, error


def main() -> None:
    """Build until all builds are made or the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--seconds", type=float, default=140)
    request = parser.parse_args()
    end = time.monotonic() + request.seconds
    told: dict[str, Any] = {"model": request.model, "seconds": {}, "failures": []}
    seen: dict[str, list[tuple[dict[str, str], str]]] = {}
    executor: Any = Here()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model, lock = MODELS[request.model](folder), folder / "lock.json"
        for number, kind in enumerate(ORDER):
            spent = told["seconds"].setdefault(kind, [])
            if time.monotonic() + 1.2 * max(spent, default=0) > end:
                break
            given = {} if kind == "free" else {kind: lock}
            began, out = time.monotonic(), folder / str(number)
            try:
                manifest = build_recipe(model, out, RECIPE, executor=executor, **given)
                spent.append(round(time.monotonic() - began, 1))
                seen.setdefault(kind, []).append(look(out, manifest))
                if kind == "lock":
                    told |= describe(manifest, lock, seen["lock"][0][0])
            except Exception as error:  # noqa: BLE001  (what is known by now is kept)
                traceback.print_exc()
                told["failures"].append(f"{kind}: {type(error).__name__}: {str(error)[:600]}")
            told |= {one: differences(found, seen["lock"]) for one, found in seen.items() if one != "lock"}
            request.results.write_text(json.dumps(told, indent=1) + "\n")
            print(f"{kind}: {time.monotonic() - began:.1f} s", flush=True)
            if "lock" not in seen:
                break
    print(json.dumps(told, indent=1))


def look(folder: Path, manifest: Manifest) -> tuple[dict[str, str], str]:
    """Each layer's kind, tactic and formats by the inspector, and a hash of the outputs."""
    (engine,) = manifest.engines
    tactics = {}
    for layer in read_inspector((folder / str(engine.layers)).read_text("utf-8", "replace")):
        formats = [one.format for one in (*layer.inputs, *layer.outputs)]
        tactics[layer.name] = " | ".join((layer.kind, layer.tactic, *formats))
    inputs = {}
    for spec in manifest.onnx.inputs:
        shape, random = engine.plan.shapes[spec.name].opt, np.random.default_rng(1)
        drawn = random.integers(0, 16, shape) if "int" in spec.dtype else random.standard_normal(shape)
        inputs[spec.name] = drawn.astype(spec.dtype)
    digest = hashlib.sha256()
    with closing(open_target("tensorrt")) as target:
        session = target.load((folder / engine.path).read_bytes())
        shapes = {key: value.shape for key, value in inputs.items()}
        stream = InferenceStream(session, shapes, inputs, contract_named("serving"))
        stream.slots[0].start()
        stream.slots[0].finish()
        for key, value in sorted(stream.outputs()[0].items()):
            digest.update(key.encode() + np.ascontiguousarray(value).tobytes())
        stream.close()
        session.close()
    return tactics, digest.hexdigest()


def describe(manifest: Manifest, lock: Path, listed: dict[str, str]) -> dict[str, Any]:
    """Where it was built, and what the lock has beside what the inspector lists."""
    (engine,) = manifest.engines
    (own,) = read_versioned(lock.read_bytes(), TacticLock).engines.values()
    asked = {one.layer for one in own}
    return {
        "gpu": engine.device.name,
        "driver": engine.device.driver,
        "backend": str(engine.plan.backend),
        "layers": len(listed),
        "recorded": len(asked),
        "never_asked": {name: told for name, told in listed.items() if name not in asked},
        "alarms": manifest.alarms,
    }


def differences(found: list[tuple[dict[str, str], str]], lock: list[tuple[dict[str, str], str]]) -> Any:
    """How many builds differ from the one with `--lock`, and in which layers."""
    ((first, output),) = lock
    names = {
        name for tactics, _ in found for name in {*tactics, *first} if tactics.get(name) != first.get(name)
    }
    return {
        "builds": len(found),
        "differ_in_tactics": sum(tactics != first for tactics, _ in found),
        "differ_in_output": sum(digest != output for _, digest in found),
        "layers_that_differ": sorted(names),
    }


if __name__ == "__main__":
    main()
