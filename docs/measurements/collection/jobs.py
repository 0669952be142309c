"""The jobs of the collection's measurement, for `on_every_gpu.py`: one engine each.

    python docs/measurements/collection/jobs.py LIGHT_FOLDER WORK_FOLDER OUT_FOLDER [option …] > JOBS.json

Models that build quickly get an engine a batch size. Of the others one engine comes first that runs every
batch size and is tuned at 8, so that each has a figure; their engines a batch size come last. The options go
to `trtopt build`. LIGHT_FOLDER holds `NAME.onnx.gz`, made by `weights.py` of a model exported in FP16.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
CACHE = ("past_keys", "past_values")
QUICK = ("resnet50", "rnnt-joint", "rnnt-prediction", "dlrm", "dlrm-dcnv2", "digits-transformer", "digits")
SLOW = (
    *("diffusion-unet", "maskrcnn", "retinanet", "efficientnet-b0", "bert-large", "unet3d", "convnext-t"),
    *("whisper-encoder", "bert-base", "gpt-decode", "vit-b16", "gpt-prefill", "minilm", "minigo"),
    "rnnt-encoder",
)
"""The slowest first: nothing slow is left at the end."""
SHAPES = {
    "bert-base": {f"s{length}": dict.fromkeys(TOKENS, f"Nx{length}") for length in (128, 384)},
    "bert-large": {f"s{length}": dict.fromkeys(TOKENS, f"Nx{length}") for length in (128, 384)},
    "gpt-decode": {"p512": dict.fromkeys(CACHE, "Nx12x12x512x64")},
    "gpt-prefill": {"s128": {"input_ids": "Nx128"}},
    "minilm": {"s128": dict.fromkeys(TOKENS, "Nx128")},
    "rnnt-encoder": {"t500": {"frames": "Nx500x240"}},
}
"""Shapes of models with axes that vary besides the batch, by a suffix for the label."""
BATCHES = ("1", "8", "32")


def main() -> None:
    """Print the list."""
    light, work, out = (Path(argument).absolute() for argument in sys.argv[1:4])
    jobs = []
    for name, suffix, batch in (
        *_engines(QUICK, BATCHES),
        *_engines(SLOW, ["any"]),
        *_engines(SLOW, BATCHES),
    ):
        label = f"{name}-{suffix}".strip("-")
        flags = [*_flags(SHAPES[name][suffix] if suffix else {}), *sys.argv[4:]]
        files = [str(light / f"{name}.onnx.gz"), str(work), str(out)]
        command = shlex.join([str(HERE / "measure.sh"), *files, label, batch, *flags])
        jobs.append({"name": f"{label}-{batch}", "run": f"timeout 500 {command}"})
    json.dump(jobs, sys.stdout, indent=1)


def _engines(names: tuple[str, ...], batches: tuple[str, ...] | list[str]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        for suffix in SHAPES.get(name, {"": {}}):
            for batch in batches:
                yield name, suffix, batch


def _flags(shapes: dict[str, str]) -> list[str]:
    return [word for key, shape in shapes.items() for word in ("--shape", f"{key}:{shape}")]


if __name__ == "__main__":
    main()
