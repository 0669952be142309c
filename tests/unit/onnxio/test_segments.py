"""Cutting a graph: any cut put together again is the whole, and what cannot be cut says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper, numpy_helper

from trtopt.errors import UsageError
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.segments import CutGraph, segments_of
from trtopt.records import BatchSplit
from trtopt.rewrite import equivalence
from trtopt.rewrite.equivalence import run_segments

CHANNELS, BATCH = 4, 8
SHAPES = {"x": (BATCH, CHANNELS, 6, 6)}


def model_of(nodes: list[onnx.NodeProto], outputs: list[str], weights: dict[str, np.ndarray]) -> ModelFile:
    """A model of images [N, 4, 6, 6]; shapes of outputs are left to inference."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", CHANNELS, 6, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ModelFile(onnx.shape_inference.infer_shapes(proto), Path(), external=False)


@st.composite
def models(draw: st.DrawFn) -> ModelFile:
    """Convolutions, activations, sums of any two earlier tensors, constants of their own; 1 or 2 outputs."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    nodes, weights, made = [], {}, ["x"]
    for number in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(("conv", "relu", "add", "shift")))
        source, name = made[-1 - draw(st.integers(0, min(2, len(made) - 1)))], f"t{number}"
        if kind == "conv":
            weights[f"w{number}"] = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 6
            nodes.append(helper.make_node("Conv", [source, f"w{number}"], [name], pads=[1] * 4))
        elif kind == "relu":
            nodes.append(helper.make_node("Relu", [source], [name]))
        elif kind == "add":
            nodes.append(helper.make_node("Add", [source, draw(st.sampled_from(made))], [name]))
        else:  # a constant that a node makes, read wherever it is needed
            weights[f"c{number}"] = rng.standard_normal((1, CHANNELS, 1, 1)).astype(np.float32)
            nodes.append(helper.make_node("Neg", [f"c{number}"], [f"n{number}"]))
            nodes.append(helper.make_node("Add", [source, f"n{number}"], [name]))
        made.append(name)
    outputs = {made[-1], draw(st.sampled_from(made[1:]))}
    return model_of(nodes, sorted(outputs), weights)


def images(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(SHAPES["x"]).astype(np.float32)}


@given(models(), st.data())
def test_any_cut_that_is_found_put_together_again_is_the_whole(model: ModelFile, data: st.DataObject) -> None:
    cuts = list(CutGraph(model.proto, SHAPES).cuts(most_tensors=3))
    if not cuts:
        return
    places = sorted(data.draw(st.sets(st.integers(0, len(cuts) - 1), min_size=1, max_size=2)))
    splits, named = [], set[str]()
    for place in places:
        tensors = tuple(name for name in cuts[place].tensors if name not in named)
        named |= set(tensors)
        if tensors:
            splits.append(BatchSplit(tensors=tensors, parts=data.draw(st.sampled_from((1, 2, 4, 8)))))
    inputs = images()
    (wanted,) = equivalence.run(model, [equivalence.Feed("whole", inputs)])
    found = run_segments(segments_of(model, splits, SHAPES), inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


def two_branches() -> ModelFile:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="left"),
        helper.make_node("Abs", ["a"], ["c"], name="right"),
        helper.make_node("Add", ["b", "c"], ["d"], name="both"),
        helper.make_node("Exp", ["d"], ["y"], name="last"),
    ]
    return model_of(nodes, ["y"], {})


def split(*tensors: str, parts: int = 2) -> BatchSplit:
    return BatchSplit(tensors=tensors, parts=parts)


def test_cuts_are_where_one_tensor_carries_all() -> None:
    assert [cut.tensors for cut in CutGraph(two_branches().proto, SHAPES).cuts()] == [("a",), ("d",)]
    cut = next(CutGraph(two_branches().proto, SHAPES).cuts())
    assert cut.bytes_per_sample == CHANNELS * 6 * 6 * 4


def test_a_segment_runs_at_its_part_of_the_batch() -> None:
    first, second = segments_of(two_branches(), [split("d", parts=4)], SHAPES)
    assert [spec.shape for spec in first.inputs] == [(2, CHANNELS, 6, 6)]
    assert [spec.shape for spec in second.inputs] == [(8, CHANNELS, 6, 6)]
    assert [node.name for node in second.model.proto.graph.node] == ["last"]


@pytest.mark.parametrize(
    ("splits", "problem"),
    [
        ([split("b")], "'a' also crosses the cut"),
        ([split("nothing")], "no such tensor"),
        ([split("x")], "is an input or a constant"),
        ([split("d"), split("a")], "nothing is left to run before this cut"),
        ([split("y")], "nothing is left to run behind this cut"),
    ],
)
def test_a_place_that_is_none_is_refused(splits: list[BatchSplit], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        segments_of(two_branches(), splits, SHAPES)


@pytest.mark.parametrize(
    ("mixing", "problem"),
    [
        ([helper.make_node("Softmax", ["a"], ["m"], axis=0)], "works along the batch"),
        ([helper.make_node("ReduceMean", ["a"], ["m"], axes=[0])], "first axis is not the batch"),
        ([helper.make_node("Transpose", ["a"], ["m"], perm=[1, 0, 2, 3])], "first axis is not the batch"),
    ],
)
def test_a_node_that_mixes_samples_is_not_run_on_parts_of_the_batch(
    mixing: list[onnx.NodeProto], problem: str
) -> None:
    ends = [helper.make_node("Add", ["m", "a"], ["b"]), helper.make_node("Relu", ["b"], ["y"])]
    if mixing[0].op_type == "Transpose":
        ends[0] = helper.make_node("Transpose", ["m"], ["b"], perm=[1, 0, 2, 3])
    model = model_of([helper.make_node("Relu", ["x"], ["a"]), *mixing, *ends], ["y"], {})
    with pytest.raises(UsageError, match=problem):
        segments_of(model, [split("b")], SHAPES)
    assert [cut.tensors for cut in CutGraph(model.proto, SHAPES).cuts()] == [("a",)]
    assert len(segments_of(model, [split("a")], SHAPES)) == 2


def test_slices_that_cuda_engines_cannot_read_are_refused() -> None:
    assert segments_of(two_branches(), [split("d", parts=8)], SHAPES)
    with pytest.raises(UsageError, match="takes 576 bytes in one part, no multiple of 256"):
        segments_of(two_branches(), [split("d", parts=8)], SHAPES, aligned=True)


def test_a_fixed_batch_is_refused_with_the_way_out() -> None:
    model = two_branches()
    model.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = BATCH
    with pytest.raises(UsageError, match="no open batch axis") as raised:
        segments_of(model, [split("d")], SHAPES)
    assert "--dynamic-batch" in raised.value.remedy
