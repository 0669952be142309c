"""Encoder layers as plugins: the written graph computes what the model did, with the plugins as functions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.encoders import DOMAIN, HIDDEN, Encoder, with_functions
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import RANGES
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.fused_plugins import find_layers, write_plugins
from trtopt.precision.running import open_proto

BATCH = 2


def loaded(model: onnx.ModelProto) -> ModelFile:
    return ModelFile(model, Path(), external=False)


def written(encoder: Encoder) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    file = loaded(encoder.model())
    layers, _ = find_layers(file)
    assert len(layers) == encoder.layers
    made = write_plugins(file, layers, {name: 2.0 for layer in layers for name in layer.tensors})
    return file.proto, made.proto


@pytest.mark.parametrize(
    "encoder",
    [
        Encoder(),
        pytest.param(Encoder(scaled="both", mask="zero", gelu="Relu"), marks=pytest.mark.long),
        pytest.param(Encoder(keeps="LayerNormalization_33"), marks=pytest.mark.long),
    ],
    ids=["one scale", "two scales and a mask of zeros", "an inner tensor is an output"],
)
def test_the_graph_computes_what_it_did(encoder: Encoder) -> None:
    model, made = written(encoder)
    feed = {"x": np.random.default_rng(1).standard_normal((BATCH, encoder.tokens, HIDDEN), np.float32)}
    wanted = open_proto(loaded(model), model).run(feed)
    inlined = with_functions(made, BATCH, encoder)
    got = open_proto(loaded(inlined), inlined).run(feed)
    assert wanted.keys() == got.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], atol=1e-4)
    assert "Softmax" not in {node.op_type for node in made.graph.node}


def test_the_file_says_what_the_builder_sets() -> None:
    _, made = written(Encoder())
    told = json.loads(next(one.value for one in made.metadata_props if one.key == RANGES))
    plugins = [node for node in made.graph.node if node.domain == DOMAIN]
    assert {node.output[0] for node in plugins} <= told["ranges"].keys()
    (plain,) = (node.output[0] for node in made.graph.node if node.op_type == "Identity")
    assert told["types"][plain] == "FLOAT"
    starts = next(one for one in made.graph.initializer if one.name == plugins[0].input[1])
    assert numpy_helper.to_array(starts).tolist() == [0, 5, 10]


def test_a_layer_is_left_as_it_is_where_it_does_not_fit_or_a_node_is_excluded() -> None:
    model = Encoder().model()
    products = [node for node in model.graph.node if node.op_type == "MatMul"]
    excluded = products[-1].name
    classes = onnx.helper.make_node("Softmax", [model.graph.output[0].name], ["classes"], "classes")
    model.graph.node.append(classes)
    layers, declined = find_layers(loaded(model), [excluded])
    assert [layer.source for layer in layers] == ["LayerNormalization_0"]
    ((softmax, reason),) = declined.items()
    assert softmax == "node_Softmax_48"
    assert excluded in reason


def test_attention_of_three_axes_is_declined() -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 5, HIDDEN])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    nodes = [
        onnx.helper.make_node("Transpose", ["x"], ["q"], "turn", perm=[0, 2, 1]),
        onnx.helper.make_node("MatMul", ["q", "x"], ["s"], "scores"),
        onnx.helper.make_node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        onnx.helper.make_node("MatMul", ["p", "q"], ["y"], "context"),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y]))
    with pytest.raises(ModelError, match=r"softmax: .*heads"):
        find_layers(loaded(model))


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        (Encoder(mask="input"), "mask"),
        (Encoder(heads=24), "32 wide"),
        (Encoder(scale=0.25), "scaled by 0.25"),
        (Encoder(tokens=385), r"\(2, 385, 768\)"),
        (Encoder(post_norm=False), "LayerNormalization"),
        (Encoder(keeps="Softmax_15"), "alone"),
    ],
    ids=["a mask", "heads", "scale", "length", "normalised before", "probabilities are an output"],
)
def test_what_the_plugins_do_not_have_is_declined_with_the_reason(encoder: Encoder, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        find_layers(loaded(replace(encoder, layers=1).model()))
