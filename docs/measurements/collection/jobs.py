"""The jobs of the collection's measurement, for `on_every_gpu.py`: one a model.

    python docs/measurements/collection/jobs.py LIGHT_FOLDER WORK_FOLDER OUT_FOLDER > JOBS.json

LIGHT_FOLDER holds `NAME.onnx.gz`, made by `weights.py` from `trtopt export NAME --dtype fp16`, and
`fp32/NAME.onnx.gz` of those in FP32, which are only built.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
CACHE = ("past_keys", "past_values")
LONGEST_FIRST = (
    *("maskrcnn", "unet3d", "retinanet", "diffusion-unet", "efficientnet-b0", "resnet50", "bert-large"),
    *(
        "convnext-t",
        "minigo",
        "bert-base",
        "whisper-encoder",
        "vit-b16",
        "gpt-prefill",
        "gpt-decode",
        "minilm",
    ),
    *("rnnt-encoder", "rnnt-prediction", "rnnt-joint", "dlrm", "dlrm-dcnv2", "digits", "digits-transformer"),
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


def main() -> None:
    """Print the list."""
    light, work, out = (Path(argument).absolute() for argument in sys.argv[1:4])
    jobs = [{"name": name, "run": full(name, light, work, out)} for name in LONGEST_FIRST]
    jobs += [
        {"name": f"{name}-fp32", "run": in_fp32(name, light, work)}
        for name in LONGEST_FIRST
        if (light / "fp32" / f"{name}.onnx.gz").is_file()
    ]
    json.dump(jobs, sys.stdout, indent=1)


def full(name: str, light: Path, work: Path, out: Path) -> str:
    """Refill the weights, build and measure."""
    model = work / f"{name}.onnx"
    lines = [f"mkdir -p {work}", f"python {HERE.parent / 'weights.py'} fill {light}/{name}.onnx.gz {model}"]
    for suffix, shapes in SHAPES.get(name, {"": {}}).items():
        lines.append(
            f"{HERE}/measure.sh {model} {work} {out} {f'{name}-{suffix}'.strip('-')} {_flags(shapes)}"
        )
    return "\n".join(lines)


def in_fp32(name: str, light: Path, work: Path) -> str:
    """Whether TensorRT takes it at all: batch 1, little effort."""
    model, (_, shapes) = work / f"{name}-fp32.onnx", next(iter(SHAPES.get(name, {"": {}}).items()))
    return "\n".join(
        (
            f"mkdir -p {work}",
            f"python {HERE.parent / 'weights.py'} fill {light}/fp32/{name}.onnx.gz {model}",
            f"timeout 200 python -m trtopt build {model} -o {work}/{name}-fp32 --opt-level 1 --no-rewrite "
            f"--tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS {_flags(shapes)}",
        )
    )


def _flags(shapes: dict[str, str]) -> str:
    return " ".join(f"--shape {key}:{shape}" for key, shape in shapes.items())


if __name__ == "__main__":
    main()
