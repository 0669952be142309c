"""Graphs without their large weights, so that they travel light; refilled where they are measured.

    python benchmarks/shared/weights.py empty MODEL.onnx LIGHT.onnx.gz
    python benchmarks/shared/weights.py fill LIGHT.onnx.gz MODEL.onnx

A weight of more than 4 KiB of floats is replaced by its mean and standard deviation, kept in the graph's
metadata, and drawn again from a normal distribution of these. That changes what a model computes and neither
its graph nor its speed. Weights of integers, those that hold few different values, and the scales of Q and DQ
stay as they are.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_KEY = "refill"
_MIN_BYTES = 4096
_MIN_VALUES = 256
_WITH_SCALES = ("QuantizeLinear", "DequantizeLinear")


def empty(source: Path, target: Path) -> None:
    """Write `source` without its large weights, compressed."""
    model = onnx.load(source)
    spec = {}
    scales = {node.input[1] for node in model.graph.node if node.op_type in _WITH_SCALES}
    for key, tensor in _weights(model):
        array = numpy_helper.to_array(tensor)
        is_small = array.nbytes < _MIN_BYTES or array.dtype.kind != "f" or _has_few_values(array)
        if is_small or tensor.name in scales:
            continue
        values = array.astype(np.float64)
        spec[key] = [float(values.mean()), float(values.std())]
        tensor.ClearField("raw_data")
    model.metadata_props.add(key=_KEY, value=json.dumps(spec))
    target.write_bytes(gzip.compress(model.SerializeToString(), mtime=0))


def fill(source: Path, target: Path, seed: int = 0) -> None:
    """Write `source` with weights drawn again."""
    model = onnx.load_from_string(gzip.decompress(source.read_bytes()))
    entry = next(prop for prop in model.metadata_props if prop.key == _KEY)
    spec, generator = json.loads(entry.value), np.random.default_rng(seed)
    model.metadata_props.remove(entry)
    for key, tensor in _weights(model):
        if key in spec:
            mean, deviation = spec[key]
            values = generator.standard_normal(tuple(tensor.dims), dtype=np.float32) * deviation + mean
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.raw_data = values.astype(dtype).tobytes()
    onnx.save(model, target)


def _has_few_values(array: np.ndarray) -> bool:
    """Whether there are less than `_MIN_VALUES` different ones; most weights show it in their beginning."""
    return all(len(np.unique(part)) < _MIN_VALUES for part in (array.ravel()[:10_000], array))


def _weights(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                yield f"constant {node.output[0]}", attribute.t


if __name__ == "__main__":
    {"empty": empty, "fill": fill}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
