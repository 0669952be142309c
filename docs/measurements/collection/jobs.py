"""The jobs of the collection's measurement, for `on_every_gpu.py`: one a model.

    python docs/measurements/collection/jobs.py LIGHT_FOLDER WORK_FOLDER OUT_FOLDER > JOBS.json

LIGHT_FOLDER holds `NAME.onnx.gz`, made by `weights.py` from `trtopt export NAME --dtype fp16`, and
`tiny/NAME.onnx`, tiny variants in FP32 that are only built.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx

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
TINY_LENGTH = 16


def main() -> None:
    """Print the list."""
    light, work, out = (Path(argument).absolute() for argument in sys.argv[1:4])
    jobs = [{"name": name, "run": full(name, light, work, out)} for name in LONGEST_FIRST]
    jobs += [
        {"name": f"tiny-{model.stem}", "run": tiny(model, work)} for model in (light / "tiny").glob("*.onnx")
    ]
    json.dump(jobs, sys.stdout, indent=1)


def full(name: str, light: Path, work: Path, out: Path) -> str:
    """Refill the weights, build and measure."""
    model = work / f"{name}.onnx"
    lines = [f"mkdir -p {work}", f"python {HERE.parent / 'weights.py'} fill {light}/{name}.onnx.gz {model}"]
    for suffix, shapes in SHAPES.get(name, {"": {}}).items():
        flags = " ".join(f"--shape {key}:{shape}" for key, shape in shapes.items())
        lines.append(f"{HERE}/measure.sh {model} {work} {out} {f'{name}-{suffix}'.strip('-')} {flags}")
    return "\n".join(lines)


def tiny(model: Path, work: Path) -> str:
    """Build for one shape."""
    flags = ""
    for tensor in onnx.load(model, load_external_data=False).graph.input:
        axes = [axis.dim_value or TINY_LENGTH for axis in tensor.type.tensor_type.shape.dim]
        if any(axis.dim_param for axis in tensor.type.tensor_type.shape.dim[1:]):
            flags += f" --shape {tensor.name}:{'x'.join(['N', *map(str, axes[1:])])}"
    build = f"timeout 200 python -m trtopt build {model} -o {work}/tiny-{model.stem} --no-rewrite"
    return f"{build} --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS{flags}"


if __name__ == "__main__":
    main()
