"""The digits CNN with one activation that INT8 cannot hold: what one node then does to the whole model."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import numpy_helper

_BLOCK = "block2"
SENSITIVE = f"/{_BLOCK}/conv2/conv/Conv"
"""The node that reads that activation."""
_FACTOR = 2000.0


def save_with_outlier(digits: Path, out: Path) -> None:
    """Write the model with one channel between two convolutions enlarged, which the second makes up for.

    In floating point it computes what it did; one scale for all channels of the activation loses the others.
    """
    model = onnx.load(digits)
    weights = {item.name: item for item in model.graph.initializer}

    def scale(name: str, factor: float, *place: int | slice) -> None:
        array = numpy_helper.to_array(weights[name]).copy()
        array[place] *= factor
        weights[name].CopyFrom(numpy_helper.from_array(array, name))

    scale(f"{_BLOCK}.conv1.conv.weight", _FACTOR, 0)
    scale(f"{_BLOCK}.conv1.conv.bias", _FACTOR, 0)
    scale(f"{_BLOCK}.conv2.conv.weight", 1 / _FACTOR, slice(None), 0)
    onnx.save(model, out)
