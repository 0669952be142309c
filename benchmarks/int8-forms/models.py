"""Float graphs with seeded weights, and Model Optimizer's INT8 graph of each, small enough to travel.

    python models.py make FOLDER NAME …      # with torch, timm, transformers, nvidia-modelopt[onnx]
    python models.py fill FOLDER NAME WORK   # numpy and onnx alone: WORK/NAME.onnx, NAME.mo.onnx, NAME.npz

A weight is drawn from its name and scaled per output channel, batch normalisation is calibrated on the same
samples that Model Optimizer gets, and every bias has values. So activations have the spread of a trained
network's (not its outliers), and what must be kept is the graph and the scales of the channels.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

SAMPLES = 32
TOKENS = 128
OPSET = 17
LEAST = 2048
"""Values of a weight that is drawn again rather than kept."""
TIMM = {
    "regnety-040": "regnety_040",
    "efficientnet-b0": "efficientnet_b0",
    "mobilenetv3-l": "mobilenetv3_large_100",
    "vit-b16": "vit_base_patch16_224",
    "convnextv2-t": "convnextv2_tiny",
    "resnet50": "resnet50",
    "levit-256": "levit_256",
}
_TORCHVISION = (
    ".transforms", ".transforms.functional", ".transforms.v2", ".ops", ".ops.misc", ".datasets",
    ".datasets.folder", ".models", ".models.feature_extraction", ".io", ".utils",
)  # fmt: skip


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal values that follow from the name."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.standard_normal(shape, dtype=np.float32)


def images(count: int = SAMPLES, seed: int = 0) -> np.ndarray:
    """Seeded pictures with the smooth large-scale structure of photographs, of deviation 1."""
    generator = np.random.default_rng(seed)
    coarse = generator.standard_normal((count, 3, 14, 14), dtype=np.float32)
    fine = generator.standard_normal((count, 3, 224, 224), dtype=np.float32)
    return (0.9 * coarse.repeat(16, 2).repeat(16, 3) + 0.44 * fine).astype(np.float32)


def samples(name: str, count: int = SAMPLES, seed: int = 0) -> dict[str, np.ndarray]:
    """Seed 0 is what is calibrated on, other seeds are what outputs are compared on."""
    if name == "r50":
        return {"x": np.random.default_rng(seed).standard_normal((count, 3, 224, 224), dtype=np.float32)}
    if name in TIMM or name == "clip-vit-b32":
        return {"pixels": images(count, seed)}
    ids = np.random.default_rng(seed).integers(5, 30_000, (count, TOKENS))
    return {"ids": ids, "mask": np.ones_like(ids)}


# ── making ──────────────────────────────────────────────────────────────────────────────────────────────


def network(name: str) -> Any:
    """The module, its weights drawn by name."""
    import torch

    if name in TIMM:
        from unittest.mock import MagicMock

        for part in ("", *_TORCHVISION):  # which timm imports for its data pipelines alone
            sys.modules[f"torchvision{part}"] = MagicMock()
        import timm

        module = timm.create_model(TIMM[name], pretrained=False, exportable=True)
    else:
        from transformers import CLIPVisionConfig, CLIPVisionModel, DistilBertConfig, DistilBertModel

        module = (
            CLIPVisionModel(CLIPVisionConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
                            num_attention_heads=12, patch_size=32, attn_implementation="eager"))
            if name == "clip-vit-b32"
            else DistilBertModel(DistilBertConfig(attn_implementation="eager"))
        )  # fmt: skip
    with torch.no_grad():
        for key, value in module.named_parameters():
            if value.ndim >= 2:
                fan = value[0].numel()
                is_conv = value.ndim == 4 and name in TIMM
                deviation = (2 / fan) ** 0.5 if is_conv else max(float(value.std()), 0.01)
                value.copy_(torch.from_numpy(drawn(key, tuple(value.shape)) * np.float32(deviation)))
            elif key.endswith("bias"):
                value.copy_(
                    torch.from_numpy(
                        drawn(key, tuple(value.shape)) * np.float32(0.1 if name in TIMM else 0.02)
                    )
                )
            elif value.ndim == 1:
                value.copy_(torch.from_numpy(1 + np.float32(0.1) * drawn(key, tuple(value.shape))))
        norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        if norms:
            for part in norms:
                part.momentum = None
                part.reset_running_stats()
                part.train()
            module.eval()
            for part in norms:
                part.train()
            module(torch.from_numpy(images()[:16]))
    return module.eval()


def export(name: str, target: Path) -> dict[str, np.ndarray]:
    """Write the graph; the module's parameters by name."""
    import torch

    module = network(name)
    feed = {key: torch.from_numpy(value[:2]) for key, value in samples(name).items()}

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> Any:
            if name in TIMM:
                return self.inner(*given)
            if name == "clip-vit-b32":
                return self.inner(pixel_values=given[0]).last_hidden_state
            return self.inner(input_ids=given[0], attention_mask=given[1]).last_hidden_state

    axes = {key: {0: "N"} for key in [*feed, "output"]}
    torch.onnx.export(
        Wrapped().eval(), tuple(feed.values()), str(target), input_names=list(feed), output_names=["output"],
        dynamic_axes=axes, opset_version=OPSET, dynamo=False,
    )  # fmt: skip
    return {key: value.detach().numpy() for key, value in module.named_parameters()}


def lighten(model: onnx.ModelProto, parameters: dict[str, np.ndarray]) -> dict[str, Any]:
    """Empty every large weight that is a drawn one times a factor per channel; what is needed to draw it."""
    spec: dict[str, Any] = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size < LEAST or array.dtype != np.float32:
            continue
        for key, value in parameters.items():
            for flip in (False, True):
                base = value.T if flip and value.ndim == 2 else value
                if base.ndim < 2 or base.shape != array.shape:
                    continue
                factor = array / np.where(base == 0, 1, base)
                channel = np.median(factor, axis=tuple(range(1, factor.ndim)), keepdims=True)
                if np.allclose(base * channel, array, rtol=1e-3, atol=1e-6):
                    unit = drawn(key, value.shape)
                    whole = float((value / np.where(unit == 0, 1, unit)).flat[0])
                    spec[tensor.name] = [
                        key,
                        list(value.shape),
                        flip and value.ndim == 2,
                        [float(f"{x:.7g}") for x in (channel * whole).ravel()],
                    ]
                    break
            if tensor.name in spec:
                break
        else:
            print("kept:", tensor.name, array.shape)
        if tensor.name in spec:
            tensor.ClearField("raw_data")
    return spec


def make(folder: Path, name: str) -> None:
    """Write FOLDER/NAME.onnx.gz, NAME.mo.onnx.gz and NAME.json.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source, peer, data = Path(scratch) / "m.onnx", Path(scratch) / "mo.onnx", Path(scratch) / "d.npz"
        parameters = export(name, source)
        model = onnx.load(source)
        heavy = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        spec = lighten(model, parameters)
        for tensor in model.graph.initializer:  # the peer gets exactly what will be drawn again
            if tensor.name in spec:
                tensor.raw_data = weight(spec[tensor.name]).tobytes()
                assert np.allclose(weight(spec[tensor.name]), heavy[tensor.name], rtol=1e-3, atol=1e-5)
        onnx.save(model, source)
        np.savez(data, **samples(name))
        done = subprocess.run(
            [
                sys.executable, "-m", "modelopt.onnx.quantization", "--onnx_path", str(source),
                "--quantize_mode", "int8", "--calibration_method", "max",
                "--calibration_data_path", str(data), "--calibration_eps", "cpu",
                "--high_precision_dtype", "fp32", "--output_path", str(peer),
            ],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode == 0:
            quantised = onnx.load(peer)
            lower_opset(quantised)
            drawn_again = {key: weight(value) for key, value in spec.items()}
            again = {}
            for tensor in quantised.graph.initializer:
                if numpy_helper.to_array(tensor).size < LEAST:
                    continue
                for key, array in drawn_again.items():
                    if tuple(tensor.dims) == array.shape and np.array_equal(
                        numpy_helper.to_array(tensor), array
                    ):
                        again[tensor.name] = spec[key]
                        tensor.ClearField("raw_data")
                        break
                else:
                    print("peer keeps:", tensor.name, tuple(tensor.dims), tensor.data_type)
            write(folder / f"{name}.mo", quantised, again)
        else:
            print("Model Optimizer failed:", done.stderr[-1500:])
        for tensor in model.graph.initializer:
            if tensor.name in spec:
                tensor.ClearField("raw_data")
        write(folder / name, model, spec)


def lower_opset(model: onnx.ModelProto) -> None:
    """Make opset 17 of the peer's 19, which TensorRT 8.6 does not read: axes become attributes again."""
    if model.opset_import[0].version <= OPSET:
        return
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"
    }
    for node in model.graph.node:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and len(node.input) == 2:
            node.attribute.append(
                onnx.helper.make_attribute(
                    "axes", numpy_helper.to_array(constants[node.input.pop()]).tolist()
                )
            )
    model.opset_import[0].version = OPSET


def write(stem: Path, model: onnx.ModelProto, spec: dict[str, Any]) -> None:
    """The graph and the spec of its weights, compressed."""
    for ending, content in ((".onnx.gz", model.SerializeToString()), (".json.gz", json.dumps(spec).encode())):
        Path(f"{stem}{ending}").write_bytes(gzip.compress(content, mtime=0))
        print(f"{stem}{ending}", Path(f"{stem}{ending}").stat().st_size, flush=True)


# ── filling ─────────────────────────────────────────────────────────────────────────────────────────────


def weight(entry: list[Any]) -> np.ndarray:
    """The weight that an entry of the spec describes."""
    key, shape, flip, factors = entry
    value = drawn(key, tuple(shape))
    value = value.T if flip else value
    return np.ascontiguousarray(value * np.asarray(factors, np.float32).reshape(-1, *[1] * (value.ndim - 1)))


def fill(folder: Path, name: str, work: Path) -> None:
    """Write the graphs with their weights, and the samples."""
    work.mkdir(parents=True, exist_ok=True)
    for stem in (name, f"{name}.mo"):
        if (folder / f"{stem}.onnx.gz").is_file():
            model = onnx.load_from_string(gzip.decompress((folder / f"{stem}.onnx.gz").read_bytes()))
            spec = json.loads(gzip.decompress((folder / f"{stem}.json.gz").read_bytes()))
            for tensor in model.graph.initializer:
                if tensor.name in spec:
                    tensor.raw_data = weight(spec[tensor.name]).tobytes()
            onnx.save(model, work / f"{stem}.onnx")
    np.savez(work / f"{name}.npz", **samples(name))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        for each in sys.argv[3:]:
            make(Path(sys.argv[2]), each)
    else:
        fill(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
