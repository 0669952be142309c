"""Small models to be cast, written as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.rewrite_graphs import model

CHAIN = "# w: float[8,8]\ng (float[N,8] x) => (float[N,8] y) {a = MatMul(x, w) b = Relu(a) y = MatMul(b, w)}"


def saved(text: str, folder: Path, opset: int = 17, **weights: Any) -> Path:
    """The model in a file of the folder, with these weights in place of its own."""
    proto = model(text)
    for name, value in weights.items():
        kept = [item for item in proto.graph.initializer if item.name != name]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend([*kept, numpy_helper.from_array(np.asarray(value), name)])
    proto.opset_import[0].version = opset
    proto.ir_version = 10
    onnx.save(proto, folder / "in.onnx")
    return folder / "in.onnx"
