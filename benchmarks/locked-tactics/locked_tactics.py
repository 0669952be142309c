"""Whether builds differ in tactics and outputs, and whether builds with `--locked` do not.

    python benchmarks/locked-tactics/locked_tactics.py results.json [--seconds 130] [--backend tensorrt]

Each model is built in FP16 ten times without a lock and ten times with the lock of one more build, in turns,
each from empty timing caches. Its engines run on the same inputs. The models are built at the same time, so
that they disturb one another's timings. Ends early, with fewer builds, when the time is over; a file for each
model is written after each round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import trtopt
from trtopt.device.backends import open_target
from trtopt.errors import TrtoptError
from trtopt.inspect.inspector import read_inspector
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.records import Manifest, TacticLock, read_versioned

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
BATCH = 8
ROUNDS = 10
MOST_NAMED = 12


def digits(folder: Path) -> Path:
    """The repository's convolutional model."""
    return ROOT / "models" / "digits" / "digits.onnx"


def transformer(folder: Path) -> Path:
    """The repository's transformer."""
    return ROOT / "models" / "digits_transformer" / "digits_transformer.onnx"


def residual(folder: Path) -> Path:
    """Three stages of residual blocks on 32 x 32 pixels, with seeded weights."""
    random = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "images", 16

    def convolve(reads: str, width: int, stride: int, name: str) -> str:
        scale = np.float32((2 / (9 * channels)) ** 0.5)
        values = random.standard_normal((width, channels, 3, 3), dtype=np.float32) * scale
        weights.append(numpy_helper.from_array(values, f"{name}.weight"))
        attributes: dict[str, Any] = {"pads": [1] * 4, "strides": [stride] * 2, "kernel_shape": [3, 3]}
        nodes.append(helper.make_node("Conv", [reads, f"{name}.weight"], [name], name, **attributes))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.relu"], f"{name}/relu"))
        return f"{name}.relu"

    for stage, width in enumerate((32, 64, 128)):
        last = convolve(last, width, 1 if stage == 0 else 2, f"stage{stage}")
        channels = width
        for block in range(2):
            name = f"stage{stage}.block{block}"
            inner = convolve(convolve(last, width, 1, f"{name}.a"), width, 1, f"{name}.b")
            nodes.append(helper.make_node("Add", [last, inner], [f"{name}.sum"], f"{name}/add"))
            last = f"{name}.sum"
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 16, 32, 32])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", 128, 8, 8])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "residual.onnx")
    return folder / "residual.onnx"


MODELS: dict[str, Callable[[Path], Path]] = {
    "digits": digits, "transformer": transformer, "residual": residual
}  # fmt: skip


def main() -> None:
    """Study the models at the same time, each in a process, or the one that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--seconds", type=float, default=130)
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--model", choices=MODELS)
    request = parser.parse_args()
    if request.model is not None:
        study(request.model, request.results, request.seconds, request.backend)
        return
    parts = {name: request.results.with_suffix(f".{name}.json") for name in MODELS}
    options = ["--seconds", str(request.seconds), "--backend", request.backend]
    running = [
        subprocess.Popen([sys.executable, __file__, str(part), "--model", name, *options])
        for name, part in parts.items()
    ]
    for process in running:
        process.wait()
    told = {name: json.loads(part.read_text()) for name, part in parts.items() if part.is_file()}
    request.results.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def study(name: str, results: Path, seconds: float, backend: str) -> None:
    """Build one model until the time is over."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        one = Study(name, Path(scratch), backend)
        for number in range(ROUNDS + 1):
            if time.monotonic() + 2 * one.longest_s > end:
                break
            try:
                one.build(number)
            except Exception as error:  # noqa: BLE001  (what is known by now is kept)
                traceback.print_exc()
                one.failures.append(f"{type(error).__name__}: {str(error)[:600]}")
            results.write_text(json.dumps(one.summary(), indent=1) + "\n")
            print(f"{name} {number}: {time.monotonic() - end + seconds:.0f} s", flush=True)


class Study:
    """The builds of one model."""

    def __init__(self, name: str, scratch: Path, backend: str) -> None:
        self.name, self.backend, self.folder = name, backend, scratch / name
        self.folder.mkdir()
        self.model = MODELS[name](self.folder)
        self.lock = self.folder / "lock.json"
        self.longest_s = 0.0
        self.failures: list[str] = []
        self.about: dict[str, Any] = {}
        self.seen: dict[str, list[tuple[dict[str, str], str]]] = {"free": [], "locked": []}

    def build(self, number: int) -> None:
        """First the lock; from then on one build without it and, if there is one, one with it."""
        if number == 0:
            began = time.monotonic()
            manifest = self._build("lock", lock=self.lock)
            self._describe(manifest)
            self.seen["locked"].append(self._look("lock", manifest))
            self.longest_s = time.monotonic() - began
            return
        kinds: dict[str, dict[str, Any]] = {"free": {}}
        if self.lock.exists():
            kinds["locked"] = {"locked": self.lock}
        for kind, given in kinds.items():
            began, name = time.monotonic(), f"{kind}{number}"
            try:
                self.seen[kind].append(self._look(name, self._build(name, **given)))
            except TrtoptError as error:
                print(f"{self.name} {name}: {error}", flush=True)
                self.failures.append(f"{name}: {str(error)[:600]}")
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _build(self, name: str, **given: Any) -> Manifest:
        sources = SOURCES if self.backend == "tensorrt" else None
        return trtopt.build(
            self.model, self.folder / name, batch=BATCH, backend=self.backend, precision="fp16",
            tactic_sources=sources, timing_cache="none", **given,
        )  # fmt: skip

    def _look(self, name: str, manifest: Manifest) -> tuple[dict[str, str], str]:
        """Each layer's tactic and formats, and a hash of the outputs."""
        (engine,) = manifest.engines
        folder, tactics = self.folder / name, {}
        if engine.layers is not None:
            text = (folder / engine.layers).read_text("utf-8", "replace")
            for layer in read_inspector(text).layers:
                formats = [one.format for one in (*layer.inputs, *layer.outputs)]
                tactics[layer.name] = " | ".join((layer.tactic, *formats))
        inputs = {}
        for spec in manifest.onnx.inputs:
            shape = engine.plan.shapes[spec.name].opt
            random = np.random.default_rng(1)
            drawn = random.integers(0, 16, shape) if "int" in spec.dtype else random.standard_normal(shape)
            inputs[spec.name] = drawn.astype(spec.dtype)
        digest = hashlib.sha256()
        with closing(open_target(self.backend)) as target:
            session = target.load((folder / engine.path).read_bytes())
            shapes = {key: value.shape for key, value in inputs.items()}
            stream = InferenceStream(target.device, session, shapes, inputs, contract_named("serving"))
            for slot in stream.slots[:1]:
                slot.start()
                slot.finish()
            for key, value in sorted(stream.outputs()[0].items()):
                digest.update(key.encode() + np.ascontiguousarray(value).tobytes())
            stream.close()
            session.close()
        return tactics, digest.hexdigest()

    def _describe(self, manifest: Manifest) -> None:
        """What the API gave: printed whole, and counted."""
        (engine,) = manifest.engines
        (own,) = read_versioned(self.lock.read_bytes(), TacticLock).engines
        layers = self.folder / "lock" / str(engine.layers)
        listed = []
        if engine.layers is not None:
            listed = [one.name for one in read_inspector(layers.read_text("utf-8", "replace")).layers]
        asked = [one.layer for one in own.layers]
        said = [f"{self.name}: device {engine.device}, {engine.plan.backend}, notes {engine.notes}"]
        for one in own.layers:
            said.append(f"  {one.layer} | {one.implementation} {one.tactic} | {'; '.join(one.formats)}")
        said.append(f"  asked, not listed by the inspector: {sorted(set(asked) - set(listed))}")
        said.append(f"  listed, never asked: {sorted(set(listed) - set(asked))}")
        print("\n".join(said), flush=True)
        self.about = {
            "gpu": engine.device.name, "driver": engine.device.driver, "backend": str(engine.plan.backend),
            "layers": len(listed), "reported": len(asked), "reported_by_name": len(set(asked)),
            "listed_never_asked": sorted(set(listed) - set(asked))[:MOST_NAMED],
            "asked_not_listed": sorted(set(asked) - set(listed))[:MOST_NAMED],
            "alarms": manifest.alarms,
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Of each kind how many builds, how many differ from the first, and in which layers."""
        told: dict[str, Any] = {**self.about, "longest_s": round(self.longest_s, 1)}
        for kind, seen in self.seen.items():
            if not seen:
                continue
            (first, output), rest = seen[0], seen[1:]
            names = dict.fromkeys(name for tactics, _ in seen for name in tactics)
            kinds = {name: sorted({str(tactics.get(name)) for tactics, _ in seen}) for name in names}
            loose = {name: found for name, found in kinds.items() if len(found) > 1}
            told[kind] = {
                "builds": len(seen),
                "differ_in_tactics": sum(tactics != first for tactics, _ in rest),
                "differ_in_output": sum(other != output for _, other in rest),
                "layers_that_differ": len(loose),
                "which": dict(list(loose.items())[:MOST_NAMED]),
            }
        return told | {"failures": self.failures}


if __name__ == "__main__":
    main()
