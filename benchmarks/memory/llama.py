"""Writes a LLaMA-like model of so many layers, its weights of random numbers beside it, and inputs for it.

python benchmarks/memory/llama.py OUT.onnx LAYERS [--width 2048] [--hidden 5504] [--vocabulary 16000]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

HEADS = 16
SAMPLES, TOKENS = 8, 16


class Graph:
    """Nodes and initializers as they are added; every node's output has the node's name."""

    def __init__(self, data: Path) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.data = data
        self._file = data.open("wb")
        self._rng = np.random.default_rng(0)

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """One more node; the name of its output."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A weight in the data file, scaled so that activations keep their size."""
        offset = self._file.tell()
        values = self._rng.standard_normal(shape, np.float32)
        values /= np.float32(shape[0] ** 0.5)
        self._file.write(values.data)
        tensor = TensorProto(name=name, data_type=1, dims=shape, data_location=1)
        for key, value in {"location": self.data.name, "offset": offset, "length": values.nbytes}.items():
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name

    def constant(self, name: str, values: Any) -> str:
        """A small initializer in the model itself."""
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def close(self) -> None:
        """End the data file."""
        self._file.close()


def rms_norm(graph: Graph, x: str, name: str, width: int) -> str:
    """RMSNorm as exporters spell it out."""
    scale = graph.constant(f"{name}.weight", np.ones(width, np.float32))
    square = graph.node("Pow", [x, "two"], f"{name}.square")
    mean = graph.node("ReduceMean", [square], f"{name}.mean", axes=[-1], keepdims=1)
    root = graph.node("Sqrt", [graph.node("Add", [mean, "epsilon"], f"{name}.sum")], f"{name}.root")
    return graph.node("Mul", [graph.node("Div", [x, root], f"{name}.unit"), scale], f"{name}.scaled")


def attention(graph: Graph, x: str, name: str, width: int) -> str:
    """Attention without mask or positions, which have no weights."""
    parts = {}
    for part in "qkv":
        product = graph.node(
            "MatMul", [x, graph.weight(f"{name}.{part}.weight", width, width)], f"{name}.{part}"
        )
        split = graph.node("Reshape", [product, "heads"], f"{name}.{part}.split")
        perm = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        parts[part] = graph.node("Transpose", [split], f"{name}.{part}.turned", perm=perm)
    scores = graph.node("MatMul", [parts["q"], parts["k"]], f"{name}.scores")
    scaled = graph.node("Mul", [scores, "attention_scale"], f"{name}.scaled")
    soft = graph.node("Softmax", [scaled], f"{name}.soft", axis=-1)
    mixed = graph.node("MatMul", [soft, parts["v"]], f"{name}.mixed")
    turned = graph.node("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", [turned, "joined"], f"{name}.joined")
    return graph.node("MatMul", [joined, graph.weight(f"{name}.o.weight", width, width)], f"{name}.o")


def gated(graph: Graph, x: str, name: str, width: int, hidden: int) -> str:
    """The gated MLP with SiLU."""
    gate = graph.node("MatMul", [x, graph.weight(f"{name}.gate.weight", width, hidden)], f"{name}.gate")
    up = graph.node("MatMul", [x, graph.weight(f"{name}.up.weight", width, hidden)], f"{name}.up")
    silu = graph.node("Mul", [gate, graph.node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.silu")
    both = graph.node("Mul", [silu, up], f"{name}.both")
    return graph.node("MatMul", [both, graph.weight(f"{name}.down.weight", hidden, width)], f"{name}.down")


def write_model(
    out: Path, layers: int, width: int = 2048, hidden: int = 5504, vocabulary: int = 16000
) -> int:
    """Write the model to `out`, its weights to `OUT.data`, and inputs to `OUT.npz`; bytes of weights."""
    graph = Graph(out.with_suffix(".onnx.data"))
    graph.constant("two", np.float32(2))
    graph.constant("epsilon", np.float32(1e-5))
    graph.constant("attention_scale", np.float32((width // HEADS) ** -0.5))
    graph.constant("heads", np.array([0, 0, HEADS, width // HEADS]))
    graph.constant("joined", np.array([0, 0, width]))
    x = graph.node("Gather", [graph.weight("embedding", vocabulary, width), "tokens"], "embedded")
    for layer in range(layers):
        name = f"layers.{layer}"
        mixed = attention(graph, rms_norm(graph, x, f"{name}.norm1", width), f"{name}.attention", width)
        x = graph.node("Add", [x, mixed], f"{name}.mid")
        wide = gated(graph, rms_norm(graph, x, f"{name}.norm2", width), f"{name}.mlp", width, hidden)
        x = graph.node("Add", [x, wide], f"{name}.out")
    last = rms_norm(graph, x, "norm", width)
    graph.node("MatMul", [last, graph.weight("head", width, vocabulary)], "logits")
    graph.close()
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", vocabulary])
    proto = helper.make_graph(graph.nodes, "llama", [tokens], [logits], graph.weights)
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    out.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(1)
    np.savez(out.with_suffix(".npz"), tokens=rng.integers(0, vocabulary, (SAMPLES, TOKENS)))
    return graph.data.stat().st_size


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=5504)
    parser.add_argument("--vocabulary", type=int, default=16000)
    given = parser.parse_args()
    print(write_model(given.out, given.layers, given.width, given.hidden, given.vocabulary))
