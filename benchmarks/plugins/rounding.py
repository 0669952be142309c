"""What rounding to INT8 where the plugins round costs in SQNR, on ONNX Runtime without a GPU.

    python rounding.py > results/rounding.json

The graphs, weights and inputs are those of `product.py`: each plugin alone in NumPy, and four layers as
`trtopt build --fused-plugins` writes them, the plugins as functions and a Q/DQ pair on each tensor that has a
range, on attention's probabilities, and on weights by channel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import product
from onnx import helper, numpy_helper

from tests.support.encoders import HIDDEN, Encoder, with_functions
from trtopt.onnxio.graph_walk import RANGES
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.fused_plugins import EncoderLayer, find_layers, write_plugins

BATCH = 4
ENCODER = Encoder(layers=4, batch=BATCH, tokens=product.TOKENS, inner=4 * HIDDEN)


def rounded(values: np.ndarray, amax: float | None = None) -> np.ndarray:
    """To the nearest of 255 steps."""
    step = (np.abs(values).max() if amax is None else amax) / 127
    return np.clip(np.round(values / step), -127, 127) * step


def attention_alone(*, probabilities: bool) -> float:
    """Queries, keys and values, the context and, if wished, probabilities are rounded."""
    _, feed, wanted = product.attention(8)
    sizes = (3, product.HEADS, product.HEAD, 8, product.TOKENS)

    def shares(parts: np.ndarray) -> np.ndarray:
        scores = parts[0] @ parts[1].swapaxes(-1, -2) / 8
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))

    exact, parts = (
        qkv.reshape(sizes).transpose(0, 3, 1, 4, 2) for qkv in (feed["qkv"], rounded(feed["qkv"]))
    )
    found = shares(parts)
    if probabilities:
        found = rounded(found, shares(exact).max())
    context = (found @ parts[2]).transpose(1, 3, 0, 2).reshape(wanted.shape)
    return product.sqnr_db(rounded(context, np.abs(wanted).max()), wanted)


def skip_norm_alone() -> float:
    """Both operands and the result are rounded."""
    model, feed, wanted = product.skip_norm(8)
    (node,) = (node for node in model.graph.node if node.op_type.startswith("Custom"))
    lists = {one.name: np.array(one.floats)[None, :, None, None] for one in node.attribute if one.floats}
    total = rounded(feed["x"]) + rounded(feed["skip"])
    centred = total - total.mean(1, keepdims=True)
    made = centred / np.sqrt(np.square(centred).mean(1, keepdims=True)) * lists["gamma"] + lists["beta"]
    return product.sqnr_db(rounded(made, np.abs(wanted).max()), wanted)


class Layers:
    """The encoder's graph with plugins, the ranges of tensors, and what the model itself computes."""

    def __init__(self) -> None:
        file = ModelFile(ENCODER.model(), Path(), external=False)
        layers, _ = find_layers(file)
        self.sample = np.random.default_rng(2).standard_normal((16, product.TOKENS, HIDDEN), np.float32)
        probed = onnx.ModelProto()
        probed.CopyFrom(file.proto)
        names = {name for layer in layers for name in layer.tensors}
        probed.graph.output.extend(map(helper.make_empty_tensor_value_info, sorted(names)))
        runs = [outputs_of(probed, self.sample[at : at + BATCH]) for at in range(0, 16, BATCH)]
        self.amax = {name: max(float(np.abs(run[name]).max()) for run in runs) for name in names}
        self.wanted = runs[0][file.proto.graph.output[0].name]
        self.layers: list[EncoderLayer] = layers
        self.made = write_plugins(file, layers, self.amax).proto

    def sqnr(
        self, keeps: Callable[[str], bool] = lambda name: False, probabilities: float | None = 1.0
    ) -> float:
        """With tensors that are not rounded; probabilities have this part of their range, None: float."""
        model = with_functions(self.made, BATCH, ENCODER)
        told = json.loads(next(one.value for one in self.made.metadata_props if one.key == RANGES))["ranges"]
        shares = iter([self.amax[layer.probabilities] for layer in self.layers])
        graph, nodes, names = model.graph, list[onnx.NodeProto](), dict[str, str]()
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "zero"))
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            nodes.append(node)
            name = node.output[0]
            amax = None if keeps(name) else told.get(name)
            if node.op_type == "Softmax":
                amax = None if probabilities is None else next(shares) * probabilities
            if amax is not None:
                step = numpy_helper.from_array(np.array(amax / 127, np.float32), f"{name}/step")
                graph.initializer.append(step)
                names[name] = f"{name}/dq"
                for op, source, out in (
                    ("Quantize", name, f"{name}/q"),
                    ("Dequantize", f"{name}/q", f"{name}/dq"),
                ):
                    nodes.append(helper.make_node(f"{op}Linear", [source, step.name, "zero"], [out]))
        kernels = {node.input[1] for node in nodes if node.op_type == "Conv"}
        for tensor in graph.initializer:
            if tensor.name in kernels:
                values = numpy_helper.to_array(tensor)
                peaks = np.abs(values).max((1, 2, 3), keepdims=True)
                tensor.CopyFrom(
                    numpy_helper.from_array(rounded(values, peaks).astype(np.float32), tensor.name)
                )
        del graph.node[:]
        graph.node.extend(nodes)
        (got,) = outputs_of(model, self.sample[:BATCH]).values()
        return product.sqnr_db(got, self.wanted)


def outputs_of(model: onnx.ModelProto, sample: np.ndarray) -> dict[str, Any]:
    """As the nodes stand."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(
        zip((one.name for one in session.get_outputs()), session.run(None, {"x": sample}), strict=True)
    )


if __name__ == "__main__":
    whole = Layers()
    last = whole.layers[-1].last.result
    print(
        json.dumps(
            {
                "attention alone": attention_alone(probabilities=True),
                "attention alone, probabilities in float": attention_alone(probabilities=False),
                "skip-norm alone": skip_norm_alone(),
                "four layers": whole.sqnr(),
                "four layers, last norm in float": whole.sqnr(lambda name: name.startswith(f"{last}/Custom")),
                "four layers, all norms in float": whole.sqnr(lambda name: "CustomSkipLayerNorm" in name),
                "four layers, probabilities in float": whole.sqnr(probabilities=None),
                "four layers, 0.7 of the probabilities' range": whole.sqnr(probabilities=0.7),
            },
            indent=1,
        )
    )
