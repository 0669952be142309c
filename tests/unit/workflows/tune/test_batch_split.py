"""Batch splits: proposed where a layer's tensors exceed the cache at the whole batch and fit at a part."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.inspected import profiled
from tests.support.tuning import CPU, evidence, gain, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.records import DeviceInfo, ProfiledLayer, TensorSpec
from trtopt.workflows.tune.engine_kinds import SPLIT
from trtopt.workflows.tune.situation import Situation

BATCH = 8
SHAPE = (BATCH, 32, 16, 16)
TENSOR_BYTES = 4 * BATCH * 32 * 16 * 16


def device(cache_bytes: int | None) -> DeviceInfo:
    return msgspec.structs.replace(CPU, cache_bytes=cache_bytes)


def given(folder: Path, cache_bytes: int | None, batch: int | str = "N", **fields: object) -> Situation:
    """Two convolutions of 1 ms each, then a mean of 0.5 ms."""
    weight = numpy_helper.from_array(np.zeros((32, 32, 1, 1), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "w"], ["b"], name="second"),
        helper.make_node("GlobalAveragePool", ["b"], ["y"], name="mean"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *SHAPE[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 32, 1, 1])],
        [weight],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = evidence(*layers(), of=read_graph(onnx.load(path), {"x": SHAPE}))
    found = found.__class__(path, found.model_sha256, found.graph, found.layers)
    spec = TensorSpec(name="x", dtype="float32", shape=SHAPE)
    whole = {"device": device(cache_bytes), "inputs": (spec,), "evidence": found}
    return situation("onnxruntime", "1", **whole | fields)


def layers() -> list[ProfiledLayer]:
    return [profiled(name, name, ms) for name, ms in (("first", 1.0), ("second", 1.0), ("mean", 0.5))]


def test_the_parts_that_fit_into_the_cache_are_tried_the_longest_front_first(tmp_path: Path) -> None:
    room = TENSOR_BYTES  # a layer reads and writes two of them: on four parts it fits, on two it does not
    found = proposed(SPLIT, given(tmp_path, room))
    assert [*found] == ["split=b:4", "split=b:8"]
    assert found["split=b:4"].recipe == {"split": ("b:4",)}
    assert not found["split=b:4"].makes_graph
    saved = 2 * (0.5 * 1.0 * (1 - 1 / 1.5) - 3 * 0.002)
    assert gain(found["split=b:4"]) == pytest.approx(saved / 2.5)


@pytest.mark.parametrize("cache_bytes", [None, TENSOR_BYTES * 16, TENSOR_BYTES // 64])
def test_nothing_is_tried_without_a_cache_that_only_a_part_fits_into(
    tmp_path: Path, cache_bytes: int | None
) -> None:
    assert proposed(SPLIT, given(tmp_path, cache_bytes)) == {}


def test_nor_where_it_could_not_be_built(tmp_path: Path) -> None:
    room = TENSOR_BYTES
    assert proposed(SPLIT, given(tmp_path, room, batch=BATCH)) == {}
    assert proposed(SPLIT, given(tmp_path, room, recipe=Recipe(split=("a:2",)))) == {}
