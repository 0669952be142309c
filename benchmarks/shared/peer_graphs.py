"""Graphs whose weights were left out: filled with seeded ones, and a peer's scales found anew for these."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

SAMPLES = 32
_TOKENS = 128
_NEWEST_OPSET = 17
"""That TensorRT 8.6 reads; the operators of Model Optimizer's 19 mean the same there."""
_LARGEST = 127
_LEAST_SCALE = 1e-8
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_COPY = re.compile(r"_\d+$")
"""What the peer appends to a weight that it has copied."""
_BIAS = 0.02
"""The deviation of biases."""


def refilled(folder: Path, name: str) -> onnx.ModelProto:
    """The graph with seeded weights: the same by name in the float graph and in the peer's."""
    model = onnx.load_from_string(gzip.decompress((folder / f"{name}.pb.gz").read_bytes()))
    wanted = json.loads((folder / f"{name}.json").read_text())
    for tensor in model.graph.initializer:
        if tensor.name in wanted:
            shape, dtype, deviation = wanted[tensor.name]
            tensor.raw_data = seeded(tensor.name, shape, max(deviation, 1e-3)).astype(dtype).tobytes()
    fill_biases(model)
    return model


def fill_biases(model: onnx.ModelProto) -> None:
    """Give biases that are zero values, the same by name in the float graph and in the peer's.

    An untrained BERT's are zero. Quantising with trtopt removes sums with zeros, which no trained model has.
    """
    for tensor in model.graph.initializer:
        is_bias = tensor.name.rpartition(".")[2].startswith("bias")
        if is_bias and not numpy_helper.to_array(tensor).any():
            tensor.raw_data = seeded(_COPY.sub("", tensor.name), tensor.dims, _BIAS).tobytes()


def seeded(name: str, shape: Sequence[int], deviation: float) -> np.ndarray:
    """Values in FP32 that follow from the weight's name."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values: np.ndarray = random.standard_normal(tuple(shape), dtype=np.float32) * np.float32(deviation)
    return values


def samples_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Seeded inputs, to calibrate on and to compare outputs with."""
    random, found = np.random.default_rng(0), {}
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        shape = [axis.dim_value or (SAMPLES if place == 0 else _TOKENS) for place, axis in enumerate(axes)]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            found[value.name] = random.standard_normal(shape, dtype=np.float32)
        elif value.name == "ids":
            found[value.name] = random.integers(0, 30_000, shape)
        else:
            found[value.name] = np.ones(shape, np.int64)
    return found


def recalibrated(model: onnx.ModelProto, samples: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The INT8 graph with the scales of its Q/DQ pairs by the largest value of what each reads.

    That is what Model Optimizer's `max` finds; the stored scales are of the weights that were left out.
    Where pairs are, and so the speed, stays as it was.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    values = {tensor.name: tensor for tensor in result.graph.initializer}
    pairs = [node for node in result.graph.node if node.op_type == "QuantizeLinear"]
    largest = largest_values(model, [node.input[0] for node in pairs if node.input[0] not in values], samples)
    for node in pairs:
        read, scale = node.input[0], values[node.input[1]]
        if read in values:
            weight = np.abs(numpy_helper.to_array(values[read]))
            (axis,) = (item.i for item in node.attribute if item.name == "axis")
            found = weight.max(axis=tuple(other for other in range(weight.ndim) if other != axis))
        else:
            found = largest[read]
        new = np.maximum(found / _LARGEST, _LEAST_SCALE).astype(np.float32)
        scale.CopyFrom(numpy_helper.from_array(new.reshape(tuple(scale.dims)), scale.name))
    return result


def largest_values(
    model: onnx.ModelProto, tensors: list[str], samples: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The largest magnitude of each tensor over all samples, in the graph without its Q/DQ pairs."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    quantised = {
        node.output[0]: node.input[0] for node in plain.graph.node if node.op_type == "QuantizeLinear"
    }
    float_of = {
        node.output[0]: quantised[node.input[0]]
        for node in plain.graph.node
        if node.op_type == "DequantizeLinear"
    }
    kept = [node for node in plain.graph.node if node.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    for node in kept:
        for place, name in enumerate(node.input):
            node.input[place] = float_of.get(name, name)
    del plain.graph.node[:]
    plain.graph.node.extend(kept)
    inputs = {value.name for value in plain.graph.input}
    asked = sorted(set(tensors) - inputs)
    plain.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in asked
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # without: a warning for every scale that is left
    session = onnxruntime.InferenceSession(plain.SerializeToString(), options)
    found = {name: np.abs(samples[name]).max() for name in set(tensors) & inputs}
    for number in range(len(next(iter(samples.values())))):
        feed = {name: array[number : number + 1] for name, array in samples.items()}
        for name, array in zip(asked, session.run(asked, feed), strict=True):
            found[name] = np.maximum(found.get(name, np.float32(0)), np.abs(array).max())
    return found
