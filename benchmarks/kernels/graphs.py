"""The study's graphs, made of the model collection, with seeded weights that are emptied for the journey.

    python benchmarks/kernels/graphs.py FOLDER [NAME …]

Writes FOLDER/NAME.onnx.gz for each of `GRAPHS`, or for those named; what is there already is kept. Needs
trtopt with the extra `export`, and no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from cells import ROOT, run_python
from weights import empty

MODELS = ROOT / "models"
LIMIT_S = 3600.0
SIDE = 320
"""Of the detector's images: at its own 800 pixels its engine took more than four minutes to build."""
INCLUDED = ("--forms", "attention=on")
"""Q and DQ in front of attention's products, too."""
ATTENTION = ("--forms", "residual=both,attention=on,smoothing=off")
"""Q and DQ where Model Optimizer puts them."""


def exported(name: str, folder: Path) -> Path:
    """A model of the collection, rewritten for TensorRT 8.6."""
    subject: object = name
    if name == "retinanet":
        text = (MODELS / "retinanet.toml").read_text()
        text = text.replace("retinanet.py:build", str(MODELS / "retinanet.py:build"))
        subject = folder / "retinanet.toml"
        subject.write_text(text.replace("side = 800", f"side = {SIDE}"))
    trtopt("export", subject, "-o", folder / "model.onnx")
    trtopt("rewrite", folder / "model.onnx", "-o", folder / "rewritten.onnx", "--target", "8.6")
    return folder / "rewritten.onnx"


def half(name: str) -> Callable[[Path], Path]:
    """In FP16."""

    def make(folder: Path) -> Path:
        trtopt("cast", exported(name, folder), "-o", folder / "half.onnx", "--target", "8.6")
        return folder / "half.onnx"

    return make


def bert_int8(*options: str) -> Callable[[Path], Path]:
    """BERT-base in INT8, calibrated on seeded tokens."""

    def make(folder: Path) -> Path:
        tokens = np.random.default_rng(0).integers(1000, 30000, (32, 128))
        inputs = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        np.savez(folder / "samples.npz", **inputs, token_type_ids=np.zeros_like(tokens))
        trtopt(
            "quantize", exported("bert-base", folder), "-o", folder / "int8.onnx", "--precision", "int8",
            "--target", "8.6", "--data", folder / "samples.npz", *options,
        )  # fmt: skip
        return folder / "int8.onnx"

    return make


GRAPHS: dict[str, Callable[[Path], Path]] = {
    "bert_fp16": half("bert-base"),
    "bert_int8": bert_int8(*ATTENTION),
    "retinanet_fp16": half("retinanet"),
    "bert_int8_default": bert_int8(),
    "r50_fp16": half("resnet50"),
    "vit_fp16": half("vit-b16"),
}


def trtopt(*words: object) -> None:
    """A command of trtopt's."""
    run_python(f"trtopt {words[0]}", ["-m", "trtopt", *words], LIMIT_S)


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*GRAPHS])
    request = parser.parse_args()
    request.folder.mkdir(parents=True, exist_ok=True)
    for name in request.names:
        target = request.folder / f"{name}.onnx.gz"
        if not target.is_file():
            with tempfile.TemporaryDirectory() as folder:
                scratch = target.with_suffix(".part")
                empty(GRAPHS[name](Path(folder)), scratch)
                scratch.replace(target)
            print(target, flush=True)


if __name__ == "__main__":
    main()
