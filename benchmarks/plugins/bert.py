"""BERT-base from the fused kernels of TensorRT 8.6's plugin library, as one engine.

    python bert.py ranges PEERS RANGES.json                      # ONNX Runtime, no GPU
    python bert.py build PEERS RANGES.json OUT.engine BATCH MODE [GELU]

PEERS holds `bert` in the format of ../int8-vs-modelopt. MODE:

    interleaved   INT8 in CHW32: 1x1 convolutions, and version 3 of CustomQKVToContextPluginDynamic and of
                  CustomSkipLayerNormPluginDynamic
    half          FP16: version 2 of both

GELU is `erf` (the model's own) or `tanh`. Ranges are the largest magnitudes over eight samples; every
sequence has 128 tokens. Inputs and outputs are those of the exported graph, so that one loop measures both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from peer_graphs import largest_values, refilled, samples_of

LAYERS, HIDDEN, HEADS, INNER, TOKENS = 12, 768, 12, 3072, 128
EMBEDDED = "/m/embeddings/LayerNorm/LayerNormalization_output_0"


def names(layer: int) -> dict[str, str]:
    """The tensors of a layer that need a range."""
    here = f"/m/encoder/layer.{layer}"
    return {
        **{part: f"{here}/attention/self/{part}/Add_output_0" for part in ("query", "key", "value")},
        "probabilities": f"{here}/attention/self/Softmax_output_0",
        "context": f"{here}/attention/self/Reshape_3_output_0",
        "projected": f"{here}/attention/output/dense/Add_output_0",
        "first_norm": f"{here}/attention/output/LayerNorm/LayerNormalization_output_0",
        "inner": f"{here}/intermediate/dense/Add_output_0",
        "gelu": f"{here}/intermediate/intermediate_act_fn/Mul_1_output_0",
        "outer": f"{here}/output/dense/Add_output_0",
        "second_norm": "h" if layer == LAYERS - 1 else f"{here}/output/LayerNorm/LayerNormalization_output_0",
    }


def find_ranges(model: onnx.ModelProto) -> dict[str, float]:
    """The largest magnitude of each tensor."""
    produced = {name for node in model.graph.node for name in node.output}
    wanted = [EMBEDDED, *(name for layer in range(LAYERS) for name in names(layer).values())]
    assert not (missing := [name for name in wanted if name not in produced]), missing
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    del inner.graph.output[:]  # all that is wanted becomes an output
    samples = {key: value[:8] for key, value in samples_of(model).items()}
    return {key: float(value) for key, value in largest_values(inner, wanted, samples).items()}


class Weights:
    """The graph's weights by role."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.values = {t.name: numpy_helper.to_array(t).astype(np.float32) for t in model.graph.initializer}
        self.nodes = {node.name: node for node in model.graph.node}
        self.same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}

    def value(self, name: str) -> np.ndarray:
        """An initializer, also by the name of a copy."""
        while name in self.same:
            name = self.same[name]
        return self.values[name]

    def dense(self, place: str) -> tuple[np.ndarray, np.ndarray]:
        """Kernel as (out, in), and bias."""
        kernel = self.value(self.nodes[f"{place}/MatMul"].input[1]).T
        add = self.nodes[f"{place}/Add"]
        (bias,) = [name for name in add.input if not name.endswith("MatMul_output_0")]
        return np.ascontiguousarray(kernel), np.ascontiguousarray(self.value(bias))

    def norm(self, place: str) -> tuple[np.ndarray, np.ndarray]:
        """Scale and bias."""
        node = self.nodes[f"{place}/LayerNormalization"]
        return self.value(node.input[1]).ravel(), self.value(node.input[2]).ravel()


def build(
    model: onnx.ModelProto, ranges: dict[str, float], target: Path, batch: int, mode: str, gelu: str
) -> None:
    """Write the engine, and what it took beside it."""
    import ctypes

    import tensorrt as trt

    logger = trt.Logger(trt.Logger.WARNING)
    trt.init_libnvinfer_plugins(logger, "")
    registry = trt.get_plugin_registry()
    weights, is_int8 = Weights(model), mode == "interleaved"
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.FP16)
    if is_int8:
        config.set_flag(trt.BuilderFlag.INT8)
    config.avg_timing_iterations = 8
    config.set_tactic_sources(
        1 << int(trt.TacticSource.EDGE_MASK_CONVOLUTIONS) | 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    )
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    kept: list[Any] = [ctypes]
    total = batch * TOKENS

    def constant(value: np.ndarray) -> Any:
        kept.append(value)
        return network.add_constant(value.shape, trt.Weights(value)).get_output(0)

    def plugin(name: str, version: str, inputs: list[Any], **fields: np.ndarray) -> Any:
        kinds = {"float32": trt.PluginFieldType.FLOAT32, "int32": trt.PluginFieldType.INT32}
        listed = [trt.PluginField(key, value, kinds[value.dtype.name]) for key, value in fields.items()]
        kept.extend(fields.values())
        creator = registry.get_plugin_creator(name, version, "")
        made = creator.create_plugin(name, trt.PluginFieldCollection(listed))
        assert made is not None, f"{name} {version} was not created"
        return network.add_plugin_v2(inputs, made)

    def limit(tensor: Any, name: str) -> None:
        if is_int8:
            tensor.set_dynamic_range(-ranges[name], ranges[name])

    def number(value: float, kind: type = np.int32) -> np.ndarray:
        return np.array([value], kind)

    def dense(tensor: Any, kernel: np.ndarray, bias: np.ndarray) -> Any:
        kept.extend((kernel, bias))
        layer = network.add_convolution_nd(
            tensor, len(kernel), (1, 1), trt.Weights(kernel), trt.Weights(bias)
        )
        return layer.get_output(0)

    def normed(tensor: Any, skip: Any, place: str) -> Any:
        gamma, beta = weights.norm(place)
        fields = {"beta": beta, "gamma": gamma}
        if not is_int8:
            fields = {"ld": number(HIDDEN), **fields, "type_id": number(int(trt.float16))}
        version = "3" if is_int8 else "2"
        layer = plugin("CustomSkipLayerNormPluginDynamic", version, [tensor, skip], **fields)
        if is_int8:  # the last one has no INT8 reader that would ask for it
            layer.set_output_type(0, trt.int8)
        return layer.get_output(0)

    def activated(tensor: Any) -> Any:
        one = lambda value: constant(np.full((1,) * 4, value, np.float32))  # noqa: E731
        kind, act = trt.ElementWiseOperation, trt.ActivationType
        join = lambda a, b, how: network.add_elementwise(a, b, how).get_output(0)  # noqa: E731
        if gelu == "tanh":
            cube = join(tensor, one(3.0), kind.POW)
            inside = join(
                join(tensor, join(cube, one(0.044715), kind.PROD), kind.SUM), one(0.7978845608), kind.PROD
            )
            phase = network.add_activation(inside, act.TANH).get_output(0)
        else:
            phase = network.add_unary(
                join(tensor, one(0.7071067812), kind.PROD), trt.UnaryOperation.ERF
            ).get_output(0)
        return join(join(join(phase, one(1.0), kind.SUM), one(0.5), kind.PROD), tensor, kind.PROD)

    ids = network.add_input("ids", trt.int32, (batch, TOKENS))
    flat = network.add_shuffle(ids)
    flat.reshape_dims = (total,)
    lengths = constant(np.arange(batch + 1, dtype=np.int32) * TOKENS)
    longest = constant(np.zeros(TOKENS, np.int32))
    gamma, beta = weights.norm("/m/embeddings/LayerNorm")
    embedded = plugin(
        "CustomEmbLayerNormPluginDynamic", "2",
        [flat.get_output(0), constant(np.zeros(total, np.int32)), lengths, longest],
        bert_embeddings_layernorm_beta=beta, bert_embeddings_layernorm_gamma=gamma,
        bert_embeddings_word_embeddings=weights.value("m.embeddings.word_embeddings.weight"),
        bert_embeddings_token_type_embeddings=weights.value("m.embeddings.token_type_embeddings.weight"),
        bert_embeddings_position_embeddings=weights.value("m.embeddings.position_embeddings.weight"),
        output_fp16=number(1),
    )  # fmt: skip
    state, mask = embedded.get_output(0), embedded.get_output(1)
    limit(state, EMBEDDED)
    if is_int8:
        shuffle = network.add_shuffle(state)
        shuffle.second_transpose = (2, 1, 0, 3)
        state = shuffle.get_output(0)
        limit(state, EMBEDDED)
    for layer in range(LAYERS):
        here, name = f"/m/encoder/layer.{layer}", names(layer)
        parts = [weights.dense(f"{here}/attention/self/{part}") for part in ("query", "key", "value")]
        kernel = np.stack([part[0] for part in parts]).reshape(3, HEADS, HIDDEN // HEADS, HIDDEN)
        bias = np.stack([part[1] for part in parts]).reshape(3, HEADS, HIDDEN // HEADS)
        if not is_int8:
            kernel, bias = kernel.transpose(1, 0, 2, 3), bias.transpose(1, 0, 2)
        merged = dense(
            state, np.ascontiguousarray(kernel.reshape(-1, HIDDEN)), np.ascontiguousarray(bias.ravel())
        )
        sizes = {"hidden_size": number(HIDDEN), "num_heads": number(HEADS)}
        if is_int8:
            widest = max(ranges[name[part]] for part in ("query", "key", "value"))
            merged.set_dynamic_range(-widest, widest)
            fields = {**sizes, "dq_probs": number(ranges[name["probabilities"]] / 127, np.float32)}
            context = plugin("CustomQKVToContextPluginDynamic", "3", [merged, lengths, longest], **fields)
        else:
            fields = {
                **sizes,
                "has_mask": number(1),
                "type_id": number(int(trt.float16)),
                "var_seqlen": number(1),
            }
            context = plugin(
                "CustomQKVToContextPluginDynamic", "2", [merged, mask, lengths, longest], **fields
            )
        limit(context.get_output(0), name["context"])
        projected = dense(context.get_output(0), *weights.dense(f"{here}/attention/output/dense"))
        limit(projected, name["projected"])
        middle = normed(projected, state, f"{here}/attention/output/LayerNorm")
        limit(middle, name["first_norm"])
        inner = activated(dense(middle, *weights.dense(f"{here}/intermediate/dense")))
        limit(inner, name["gelu"])
        outer = dense(inner, *weights.dense(f"{here}/output/dense"))
        limit(outer, name["outer"])
        state = normed(outer, middle, f"{here}/output/LayerNorm")
        limit(state, name["second_norm"])
    if is_int8:
        plain = network.add_identity(state)
        plain.set_output_type(0, trt.float32)
        state = plain.get_output(0)
    last = network.add_shuffle(state)
    last.first_transpose = (0, 2, 1, 3) if is_int8 else (0, 1, 2, 3)
    last.reshape_dims = (batch, TOKENS, HIDDEN)
    last.get_output(0).name = "h"
    network.mark_output(last.get_output(0))
    last.get_output(0).dtype = trt.float32
    began = time.monotonic()
    engine = builder.build_serialized_network(network, config)
    seconds = round(time.monotonic() - began, 1)
    assert engine is not None, "no engine"
    target.write_bytes(engine)
    target.with_suffix(".json").write_text(json.dumps({"mode": mode, "gelu": gelu, "seconds": seconds}))
    print(target, seconds, "s")


if __name__ == "__main__":
    step, peers, stored = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    graph = refilled(peers, "bert")
    if step == "ranges":
        stored.write_text(json.dumps(find_ranges(graph)))
    else:
        gelu = sys.argv[7] if len(sys.argv) > 7 else "erf"
        build(graph, json.loads(stored.read_text()), Path(sys.argv[4]), int(sys.argv[5]), sys.argv[6], gelu)
