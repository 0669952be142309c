"""The collection's graphs in FP16 without their weights: exported, cast, then emptied by `weights.py`.

    python benchmarks/collection/graphs.py LIGHT [NAME …] [--dtype fp16]

Writes LIGHT/NAME.onnx.gz for each model of the collection, or for those named; what is there already is kept.
An FP16 graph cannot be quantised: `--dtype fp32` writes the graphs that `sweep.py` and `verdict.py` take.
Needs trtopt with the extra `export`, and no GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from jobs import MODELS
from weights import empty

MODELS_FOLDER = Path(__file__).resolve().parents[2] / "models"
INSTANCE_NORMS = ("diffusion-unet", "unet3d")
"""TensorRT 8.6 finds no implementation for their InstanceNormalization: it is written out."""


def main() -> None:
    """Export what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("light", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*MODELS])
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "fp32"])
    request = parser.parse_args()
    request.light.mkdir(parents=True, exist_ok=True)
    for name in request.names:
        target = request.light / f"{name}.onnx.gz"
        if not target.is_file():
            with tempfile.TemporaryDirectory() as folder:
                empty(exported(name, request.dtype, Path(folder)), target)
            print(target, flush=True)


def exported(name: str, dtype: str, folder: Path) -> Path:
    """The model with its weights, in `folder`."""
    model = folder / f"{name}.onnx"
    stored = next(MODELS_FOLDER.glob(f"*/{name.replace('-', '_')}.onnx"), None)
    wide = stored or folder / f"{name}.fp32.onnx"
    if stored is None:
        run("export", name, "-o", wide)
    if dtype == "fp32":
        model = wide
    else:
        run("cast", wide, "-o", model, "--precision", "fp16")
    if name not in INSTANCE_NORMS:
        return model
    plain = folder / f"{name}.plain.onnx"
    run("rewrite", model, "-o", plain, "--rules", "plain-instance-norm", "--target", "8.6", "--no-check")
    return plain


def run(*words: str | Path) -> None:
    """A command of trtopt's."""
    subprocess.run([sys.executable, "-m", "trtopt", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
