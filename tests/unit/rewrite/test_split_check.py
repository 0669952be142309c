"""A cut graph is run against the whole: what mixes samples without changing a shape is found so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trtopt.errors import ModelError
from trtopt.onnxio.model_file import ModelFile
from trtopt.records import BatchSplit
from trtopt.rewrite.equivalence import check_split

SPLIT = [BatchSplit(tensors=("a",), parts=4)]
SHAPES = {"x": (8, 6)}


def model_of(first: onnx.NodeProto, **weights: np.ndarray) -> ModelFile:
    graph = helper.make_graph(
        [first, helper.make_node("Relu", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ModelFile(proto, Path(), external=False)


def test_samples_on_their_own_are_verified() -> None:
    assert check_split(model_of(helper.make_node("Exp", ["x"], ["a"])), ["float32"], SPLIT, SHAPES) < 1e-6


def test_a_slice_that_turns_the_batch_around_is_found() -> None:
    ends = {"start": [-1], "end": [-(2**31)], "axes": [0], "step": [-1]}
    turned = model_of(
        helper.make_node("Slice", ["x", *ends], ["a"]),
        **{name: np.array(value) for name, value in ends.items()},
    )
    with pytest.raises(ModelError, match="mixes the samples of a batch"):
        check_split(turned, ["float32"], SPLIT, SHAPES)
