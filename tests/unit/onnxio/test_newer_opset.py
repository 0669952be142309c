"""Raising a model's opset: each operator on ONNX Runtime before and after, and the graph around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.graphs import value
from tests.support.old_opsets import CASES, IMAGE, Old
from trtopt.errors import UnsupportedOpError
from trtopt.onnxio.model_file import is_external, load, save
from trtopt.onnxio.newer_opset import CHANGES, NEWEST, OLDEST, raise_opset
from trtopt.precision.compare import open_model
from trtopt.rewrite.rewrite import rewrite_model

TO = (13, 17, 19, NEWEST)
ROUNDING = {"AveragePool", "LpPool"}
"""Operators that ONNX Runtime computes in another order from some opset on."""


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed))


def raised(model: onnx.ModelProto, to: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    raise_opset(copy, to)
    onnx.checker.check_model(copy, full_check=True)
    return copy


def one_graph(
    nodes: Sequence[onnx.NodeProto], opset: int, *weights: onnx.TensorProto, **more: Any
) -> onnx.ModelProto:
    """From x [2, 4, 6, 5] to y of four axes."""
    graph = helper.make_graph(nodes, "g", [value("x", IMAGE.shape)], [value("y", [None] * 4)], weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **more)


# ── operators ───────────────────────────────────────────────────────────────────────────────────────────


READ = {8: 5, 9: 11, 10: 6, 11: 43, 12: 12, 13: 79, 14: 12, 15: 3, 16: 12, 18: 17, 19: 16, 20: 7, 21: 20}
"""How many operators got a new version in each opset: so many were read for `CHANGES`."""


def test_every_version_of_every_operator_was_read() -> None:
    history: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, set()).add(schema.since_version)
    steps = {(op, step) for op, versions in history.items() for step in versions - {min(versions)}}
    steps = {step for step in steps if OLDEST < step[1] <= NEWEST}
    assert Counter(step for _, step in steps) == READ
    assert CHANGES.keys() <= steps


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_computes_the_same_at_every_newer_opset(case: Old) -> None:
    for opset in case.opsets:
        model = case.model(opset)
        before = run(model, case.inputs)
        for to in (to for to in TO if to > opset):
            after = raised(model, to)
            for expected, found in zip(before, run(after, case.inputs), strict=True):
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (opset, to)
                slack = 3e-7 if case.op in ROUNDING else 0
                np.testing.assert_allclose(
                    found, expected, rtol=slack, atol=slack, err_msg=f"{opset} to {to}"
                )
            assert [node.name for node in after.graph.node].count("old") == 1


def test_every_change_is_tried() -> None:
    tried = {
        (case.op, step)
        for case in CASES
        for op, step in CHANGES
        if op == case.op and any(opset < step for opset in case.opsets)
    }
    assert CHANGES.keys() - tried == {("GroupNormalization", 21), ("Scan", 9)}


def _node(op: str, outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    names = {"Resize": ["x", "s"], "BatchNormalization": ["x", "v", "v", "v", "v"]}.get(op, ["x"])
    return helper.make_node(op, names, outputs, name="it", **attributes)


@pytest.mark.parametrize(
    ("node", "opset", "reason"),
    [
        (_node("Resize", mode="nearest"), 10, "computes its scales at run time"),
        (_node("BatchNormalization", spatial=0), 8, "normalises each activation"),
        (_node("BatchNormalization", ("y", "a", "b", "c", "d")), 9, "is in training mode"),
        (_node("Resize", coordinate_transformation_mode="tf_half_pixel_for_nn"), 11, "tf_half_pixel_for_nn"),
        (
            _node("Scan", body=helper.make_graph([], "b", [], []), num_scan_inputs=1),
            8,
            "each sample of a batch",
        ),
        (_node("LayerNormalization"), 16, "is not of opset 16; at 17 ONNX has another of that name"),
        (_node("Add"), 6, "changed at opset 7 in a way that trtopt does not know"),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_what_has_no_newer_form_is_refused_by_name(node: onnx.NodeProto, opset: int, reason: str) -> None:
    known = [value("v", [4])] if node.op_type == "BatchNormalization" else [value("s", [4])]
    graph = helper.make_graph([node], "g", [value("x", IMAGE.shape), *known], [value("y", [None] * 4)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    with pytest.raises(UnsupportedOpError, match=f"node 'it' .{node.op_type}. .*{reason}") as caught:
        raise_opset(model, 19)
    assert caught.value.remedy == "export the model again at opset 19"


def test_nearest_pixels_of_axes_that_grow_and_shrink_are_refused() -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 2, 0.5], np.float32), "s")
    with pytest.raises(UnsupportedOpError, match="shrinks one axis and enlarges another"):
        raise_opset(one_graph([_node("Resize", mode="nearest")], 10, scales), 19)


def test_a_mask_of_dropout_is_refused_where_it_is_read_only() -> None:
    drop = _node("Dropout", ("y", "mask"))
    assert list(raised(one_graph([drop], 10), 19).graph.node[0].output) == ["y"]
    reads = helper.make_node("Cast", ["mask"], ["z"], to=TensorProto.FLOAT)
    with pytest.raises(UnsupportedOpError, match="has a mask that is read"):
        raise_opset(one_graph([drop, reads], 10), 19)


# ── the graph around them ───────────────────────────────────────────────────────────────────────────────


def test_all_but_the_changed_nodes_stays_as_it_was() -> None:
    soft = helper.make_node("Softmax", ["r"], ["s"], axis=1, doc_string="told")
    soft.metadata_props.add(key="from", value="here")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="same"),
        soft,
        helper.make_node("Plugin", ["s"], ["p"], name="of ours"),
        helper.make_node("Clip", ["p"], ["y"], name="clip", min=0.25),
    ]
    model = one_graph(nodes, 11)
    model.graph.doc_string = "the graph"
    model.metadata_props.add(key="made", value="long ago")
    raise_opset(model, 19)
    assert [node.op_type for node in model.graph.node] == [
        "Relu", "Shape", "Flatten", "Softmax", "Reshape", "Plugin", "Clip"]  # fmt: skip
    kept = model.graph.node[3]
    assert (kept.doc_string, kept.metadata_props[0].value) == ("told", "here")
    assert (model.graph.doc_string, model.metadata_props[0].value) == ("the graph", "long ago")
    names = [node.name for node in model.graph.node if node.name]
    assert len(set(names)) == len(names)


def test_new_names_differ_from_those_in_use() -> None:
    nodes = [
        helper.make_node("Clip", ["x"], ["clip:min"], name="clip", min=-0.5),
        helper.make_node("Softmax", ["clip:min"], ["clip/Shape:0"], name="soft"),
        helper.make_node("Clip", ["clip/Shape:0"], ["y"], name="soft/Shape", max=0.01),
    ]
    model = one_graph(nodes, 10)
    after = raised(model, 19)
    np.testing.assert_array_equal(run(model, {"x": IMAGE})[0], run(after, {"x": IMAGE})[0])


def test_graphs_inside_nodes_are_raised_too() -> None:
    """With a constant of the graph around it, and types known from there."""
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")
    branches = {}
    for name, kind in (("then_branch", "nearest"), ("else_branch", "linear")):
        inner = [
            helper.make_node("Clip", ["x"], [f"{name}/c"], min=-0.5, max=0.5),
            helper.make_node("Resize", [f"{name}/c", "s"], [name], mode=kind),
        ]
        branches[name] = helper.make_graph(inner, name, [], [value(name, [None] * 4)])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
    ]
    model = one_graph(nodes, 10, scales, numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    after = raised(model, 19)
    for sign in (1, -1):
        feed = {"x": sign * np.abs(IMAGE)}
        np.testing.assert_array_equal(run(model, feed)[0], run(after, feed)[0])


def test_weights_in_files_next_to_the_model_stay_there(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).standard_normal((4, 4, 32, 32)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[16] * 4),
        helper.make_node("Softmax", ["c"], ["y"], axis=2),
    ]
    model = one_graph(nodes, 10, numpy_helper.from_array(numbers, "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    file = load(tmp_path / "m.onnx")
    raise_opset(file.proto, 19)
    assert [is_external(item) for item in file.proto.graph.initializer if item.name == "w"] == [True]
    save(file, tmp_path / "raised.onnx")
    before, after = (
        open_model(load(tmp_path / name)).run({"x": IMAGE}) for name in ("m.onnx", "raised.onnx")
    )
    np.testing.assert_array_equal(before["y"], after["y"])


def test_a_model_with_functions_is_refused_until_they_are_inlined(tmp_path: Path) -> None:
    squeeze = helper.make_node("Squeeze", ["a"], ["u"], axes=[0])
    back = helper.make_node("Unsqueeze", ["u"], ["b"], axes=[0])
    function = helper.make_function("own", "F", ["a"], ["b"], [squeeze, back], [helper.make_opsetid("", 11)])
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], name="call", domain="own")],
        "g",
        [value("x", [1, 4])],
        [value("y", [1, 4])],
    )
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[function])
    with pytest.raises(UnsupportedOpError, match="has functions"):
        raise_opset(model, 19)
    onnx.save(model, tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    x = np.ones((1, 4), np.float32)
    assert run(raised(onnx.load(tmp_path / "out.onnx"), 19), {"x": x})[0].tolist() == x.tolist()
