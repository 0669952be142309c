"""The jobs of the collection's measurement, for `on_every_gpu.py`: one engine each, built or measured.

    python benchmarks/collection/jobs.py build LIGHT REWRITTEN WORK OUT [option …] > BUILDS.json
    python benchmarks/collection/jobs.py measure LIGHT REWRITTEN WORK OUT > MEASUREMENTS.json

A build computes on the host most of the time: several may share a card (`--gpus 0,0,0`). A measurement must
have one for itself, with nothing else on it.

Every model gets one engine that runs all batch sizes, tuned at 8; then so does each that `trtopt rewrite`
changes, in its rewritten form, measured in turns with the first; engines a batch size, of either form, come
last, quick models first. The options go to `trtopt build`. LIGHT holds `NAME.onnx.gz`, made by `weights.py`
of a model exported in FP16; REWRITTEN what `rewritten.py` made of it.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
CACHE = ("past_keys", "past_values")
MODELS = (
    *("diffusion-unet", "efficientnet-b0", "maskrcnn", "retinanet", "bert-large", "unet3d", "convnext-t"),
    *("whisper-encoder", "bert-base", "gpt-decode", "vit-b16", "gpt-prefill", "minilm", "resnet50", "minigo"),
    *("rnnt-encoder", "rnnt-joint", "rnnt-prediction", "digits", "dlrm", "dlrm-dcnv2", "digits-transformer"),
)
"""The slowest to build first: nothing slow is left at the end."""
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
ALL = (*BATCHES, 128)
FEWER = {"unet3d": (1, 8), **dict.fromkeys(("diffusion-unet", "maskrcnn", "retinanet"), BATCHES)}
"""What TensorRT's bound of 2³¹ - 1 elements a tensor allows: 3D U-Net's first maps have 2²⁶ a volume, Mask
R-CNN's masks 2²⁴ an image."""


def main() -> None:
    """Print the list."""
    step, options = sys.argv[1], sys.argv[6:]
    light, rewritten, work, out = (Path(argument).absolute() for argument in sys.argv[2:6])

    def job(
        folder: Path, name: str, suffix: str, kind: str, batches: tuple[int, ...], before: str = ""
    ) -> dict[str, str]:
        label = "-".join(filter(None, (name, suffix, kind)))
        engine = [str(work), str(out), label, ",".join(map(str, batches))]
        script = ["bash", str(HERE / "measure.sh"), step]
        if step == "build":
            shapes = SHAPES[name][suffix] if suffix else {}
            flags = [word for key, shape in shapes.items() for word in ("--shape", f"{key}:{shape}")]
            command = ["timeout", "1200", *script, str(folder / f"{name}.onnx.gz"), *engine, *flags, *options]
            return {"name": f"build-{label}", "run": shlex.join(command)}
        baseline = [f"BASELINE={'-'.join(filter(None, (name, suffix, before)))}"] if before else []
        return {"name": label, "run": shlex.join(["env", *baseline, "timeout", "300", *script, *engine])}

    each = [(name, suffix) for name in MODELS for suffix in SHAPES.get(name, {"": {}})]
    jobs = [job(light, *one, "any", FEWER.get(one[0], ALL)) for one in each]
    jobs += [
        job(rewritten, *one, "rewritten-any", FEWER.get(one[0], ALL), before="any")
        for one in each
        if (rewritten / f"{one[0]}.onnx.gz").is_file()
    ]
    jobs += [
        job(folder, *one, f"{form}{batch}", (batch,), before=str(batch) if form else "")
        for one in reversed(each)
        for batch in BATCHES
        for folder, form in ((light, ""), (rewritten, "rewritten-"))
        if batch in FEWER.get(one[0], BATCHES) and (folder / f"{one[0]}.onnx.gz").is_file()
    ]
    json.dump(jobs, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
