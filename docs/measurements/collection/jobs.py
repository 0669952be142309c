"""The jobs of the collection's measurement, for `on_every_gpu.py`: one a model, shape and batch size.

    python docs/measurements/collection/jobs.py LIGHT_FOLDER WORK_FOLDER OUT_FOLDER [option …] > JOBS.json

The options go to `trtopt build`. LIGHT_FOLDER holds `NAME.onnx.gz`, made by `weights.py` from `trtopt export
NAME --dtype fp16`, and `fp32/NAME.onnx.gz` of those in FP32, built once at batch 1 with little effort: does
TensorRT take them?
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
CACHE = ("past_keys", "past_values")
SHORTEST_FIRST = (
    "resnet50",
    "rnnt-joint",
    "rnnt-prediction",
    "dlrm",
    "dlrm-dcnv2",
    "digits-transformer",
    "digits",
    "bert-base",
    "minilm",
    "vit-b16",
    "gpt-prefill",
    "gpt-decode",
    "whisper-encoder",
    "minigo",
    "rnnt-encoder",
    "convnext-t",
    "bert-large",
    "efficientnet-b0",
    "retinanet",
    "maskrcnn",
    "diffusion-unet",
    "unet3d",
)
SHAPES = {
    "bert-base": {f"s{length}": dict.fromkeys(TOKENS, f"Nx{length}") for length in (128, 384)},
    "bert-large": {f"s{length}": dict.fromkeys(TOKENS, f"Nx{length}") for length in (128, 384)},
    "gpt-decode": {"p512": dict.fromkeys(CACHE, "Nx12x12x512x64")},
    "gpt-prefill": {"s128": {"input_ids": "Nx128"}},
    "minilm": {"s128": dict.fromkeys(TOKENS, "Nx128")},
    "rnnt-encoder": {"t500": {"frames": "Nx500x240"}},
}
"""Shapes of models with axes that vary besides the batch, by a suffix for the label."""
BATCHES = (1, 8, 32)


def main() -> None:
    """Print the list."""
    light, work, out = (Path(argument).absolute() for argument in sys.argv[1:4])
    options = sys.argv[4:]
    jobs = []
    for name in SHORTEST_FIRST:
        for suffix, shapes in SHAPES.get(name, {"": {}}).items():
            label = f"{name}-{suffix}".strip("-")
            flags = [*_flags(shapes), *options]
            jobs += [_job(light / f"{name}.onnx.gz", work, out, label, batch, flags) for batch in BATCHES]
    for name in SHORTEST_FIRST:
        file = light / "fp32" / f"{name}.onnx.gz"
        if file.is_file():
            shapes = next(iter(SHAPES.get(name, {"": {}}).values()))
            flags = [*_flags(shapes), "--opt-level", "0"]
            jobs.append(_job(file, work / "fp32", out, f"{name}-fp32", 1, flags))
    json.dump(jobs, sys.stdout, indent=1)


def _job(light: Path, work: Path, out: Path, label: str, batch: int, flags: list[str]) -> dict[str, str]:
    command = [str(HERE / "measure.sh"), str(light), str(work), str(out), label, str(batch), *flags]
    return {"name": f"{label}-{batch}", "run": f"timeout 240 {shlex.join(command)}"}


def _flags(shapes: dict[str, str]) -> list[str]:
    return [word for key, shape in shapes.items() for word in ("--shape", f"{key}:{shape}")]


if __name__ == "__main__":
    main()
