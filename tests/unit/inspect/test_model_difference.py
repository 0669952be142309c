"""Two models: what is the same is found whatever it is called, and what differs is all that is listed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import trtopt
from tests.rewrite_graphs import model
from tests.unit.rewrite.test_properties import _models
from trtopt.onnxio.graph_walk import rename_uses
from trtopt.records import ModelDifference, from_json, to_json

_BLOCKS = "\n".join(
    f"m{i} = MatMul(r{i}, w{i}) a{i} = Add(m{i}, r{i}) r{i + 1} = Relu(a{i})" for i in range(6)
)
_MODEL = f"""g (float[N,4] x) => (float[N,4] y) {{r0 = Neg(x) {_BLOCKS} y = Tanh(r6)}}"""


def _made() -> onnx.ModelProto:
    made = model(_MODEL)
    rng = np.random.default_rng(0)
    for i in range(6):
        values = rng.standard_normal((4, 4)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, f"w{i}"))
    return made


def _renamed(made: onnx.ModelProto) -> onnx.ModelProto:
    """All inner tensors and nodes called otherwise, in numbers that others had before."""
    copy = deepcopy(made)
    kept = {item.name for item in (*copy.graph.input, *copy.graph.output)}
    names = [name for node in copy.graph.node for name in node.output if name and name not in kept]
    names += [item.name for item in copy.graph.initializer if item.name not in kept]
    rename_uses(copy.graph, dict(zip(names, [f"{name}x" for name in names], strict=True)), makers=True)
    del copy.graph.value_info[:]
    for number, node in enumerate(copy.graph.node):
        node.name = f"n{number}"
    return copy


def _insert(made: onnx.ModelProto, place: int) -> None:
    """An operator that no other is, behind the node's first output."""
    node = made.graph.node[place]
    name, node.output[0] = node.output[0], f"{node.output[0]}:in"
    made.graph.node.insert(place + 1, onnx.helper.make_node("Ceil", [node.output[0]], [name], "ceil"))


def _differ(a: onnx.ModelProto, b: onnx.ModelProto) -> ModelDifference:
    with tempfile.TemporaryDirectory() as folder:
        for name, made in (("a", a), ("b", b)):
            onnx.save(made, Path(folder) / f"{name}.onnx")
        found = trtopt.diff(Path(folder) / "a.onnx", Path(folder) / "b.onnx")
    assert from_json(to_json(found), ModelDifference) == found
    return found


def test_other_names_are_no_difference() -> None:
    found = _differ(_made(), _renamed(_made()))
    assert found.is_same
    assert found.renamed


@pytest.mark.parametrize("places", [[0, 5], [[0, 0], [1, 1]]], ids=["linear", "by axis"])
def test_a_sparse_weight_is_compared_as_what_it_stands_for(places: list[object]) -> None:
    whole = np.zeros((4, 4), np.float32)
    whole[0, 0] = whole[1, 1] = 2
    dense = model("g (float[N,4] x) => (float[N,4] y) {y = MatMul(x, w)}")
    sparse = deepcopy(dense)
    dense.graph.initializer.append(onnx.numpy_helper.from_array(whole, "w"))
    values = onnx.numpy_helper.from_array(np.full(2, 2, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array(places, np.int64))
    sparse.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4, 4]))
    assert _differ(dense, sparse).is_same
    sparse.graph.sparse_initializer[0].values.raw_data = np.full(2, 3, np.float32).tobytes()
    (change,) = _differ(dense, sparse).weights
    assert (change.weight, change.largest) == ("w", 1)


@pytest.mark.parametrize("places", [[1], [9], [2, 10], [1, 4, 8, 12]])
def test_inserted_nodes_are_added_ones_and_all_others_the_same(places: list[int]) -> None:
    other = _renamed(_made())
    for place in reversed(places):
        _insert(other, place)
    found = _differ(_made(), other)
    assert [node.op for node in found.added] == ["Ceil"] * len(places)
    assert found.removed == found.changed == found.weights == found.tensors == ()
    back = _differ(other, _made())
    assert [node.op for node in back.removed] == ["Ceil"] * len(places)
    assert back.added == back.changed == ()


def test_a_changed_attribute_and_one_that_says_the_default() -> None:
    first, second, third = _made(), _made(), _made()
    for made, axis in ((first, None), (second, 0), (third, -1)):
        made.graph.node[0].op_type = "Softmax"
        if axis is not None:
            made.graph.node[0].attribute.append(onnx.helper.make_attribute("axis", axis))
    (change,) = _differ(first, second).changed
    assert (change.op, change.what) == ("Softmax", "axis – → 0")
    assert _differ(first, third).is_same


def test_a_tensor_among_the_attributes_may_be_called_and_stored_otherwise() -> None:
    made = [model("g (int64[1] n) => (float[M] y) {y = ConstantOfShape(n)}") for _ in range(3)]
    values = np.full(1, 2, np.float32)
    tensors = [
        onnx.helper.make_tensor("a", onnx.TensorProto.FLOAT, [1], [2.0]),
        onnx.numpy_helper.from_array(values, "b"),
        onnx.numpy_helper.from_array(values + 1, "a"),
    ]
    for one, tensor in zip(made, tensors, strict=True):
        one.graph.node[0].attribute.append(onnx.helper.make_attribute("value", tensor))
    assert _differ(made[0], made[1]).is_same
    (change,) = _differ(made[0], made[2]).changed
    assert change.what == "value float32[1] [2.0] → float32[1] [3.0]"


def test_a_weight_s_difference_is_measured() -> None:
    other = _renamed(_made())
    weight = other.graph.initializer[3]
    values = onnx.numpy_helper.to_array(weight) * np.float32(1.5)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    found = _differ(_made(), other)
    assert (found.added, found.removed, found.changed) == ((), (), ())
    (change,) = found.weights
    assert (change.weight, change.other) == ("w3", "w3x")
    assert change.relative == pytest.approx(0.5)
    assert change.largest == pytest.approx(float(np.abs(values).max()) / 3, rel=1e-5)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4"])
def test_weights_of_types_that_numpy_lacks_are_compared(kind: str) -> None:
    made = _made(), _made()
    for step, one in enumerate(made):
        values = [float(step), *[1.0] * 15]
        weight = onnx.helper.make_tensor("w3", getattr(onnx.TensorProto, kind), [4, 4], values)
        one.graph.initializer[3].CopyFrom(weight)
    assert _differ(made[0], made[0]).weights == ()
    (change,) = _differ(*made).weights
    assert change.largest == 1.0


def test_strings_that_are_divided_elsewhere_differ() -> None:
    made = [
        model("g (float[N,4] x) => (float[N,4] y, string[2] s) {y = Neg(x) s = Identity(w)}") for _ in "ab"
    ]
    for one, texts in zip(made, ([b"ab", b"c"], [b"a", b"bc"]), strict=True):
        one.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.STRING, [2], texts))
    assert len(_differ(*made).weights) == 1


def test_infinity_in_both_does_not_hide_the_other_values() -> None:
    made = _made(), _made()
    for step, one in enumerate(made):
        weight = one.graph.initializer[3]
        values = onnx.numpy_helper.to_array(weight).copy()
        values[0, :2] = np.inf, step
        weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    (change,) = _differ(*made).weights
    assert (change.relative, change.largest) == (None, 1.0)


def test_another_connection_is_a_changed_node() -> None:
    other = _made()
    (node,) = (node for node in other.graph.node if node.output[0] == "a4")
    node.input[1] = "r2"
    (change,) = _differ(_made(), other).changed
    assert (change.node, change.what) == ("Add:a4", "reads 'r2' instead of 'r4'")


_BRANCHES = """g (float[N,4] x, bool f) => (float[N,4] y1, float[N,4] y2) <float[4] w = {1, 2, 3, 4}>
{
    y1 = Relu(x) z = Abs(x)
    y2 = If(f) <
        then_branch = g () => (t) <float[4] c = {1, 2, 3, 4}> { s = Add(x, c) t = Neg(s) },
        else_branch = g () => (e) { d = Sub(x, w) e = Max(y1, d) }
    >
}"""


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("w = {1", "w = {5", "weights"),
        ("c = {1", "c = {5", "weights"),
        ("Sub(x, w)", "Sub(w, x)", "changed"),
        ("Max(y1, d)", "Max(x, d)", "changed"),
        ("Neg(s)", "Neg(x)", "changed"),
        ("Neg(s)", "Abs(s)", "added"),
        ("y1 = Relu(x) z = Abs(x)", "z = Relu(x) y1 = Abs(x)", "facts"),
        ("float[N,4] y1, float[N,4] y2", "float[N,4] y2, float[N,4] y1", "facts"),
    ],
)
def test_what_differs_in_a_branch_or_at_an_output_is_listed(old: str, new: str, kind: str) -> None:
    other = model(_BRANCHES.replace(old, new))
    assert getattr(_differ(model(_BRANCHES), other), kind)
    assert _differ(other, other).is_same


def test_an_insertion_in_one_of_two_branches_alike_is_not_taken_for_a_change_of_both() -> None:
    made = model(
        """g (float[N,4] x) => (float[N,4] y) {
            t0 = Relu(x) t1 = Neg(t0) t2 = Relu(t1) t3 = Neg(t0) t4 = Relu(t1) t5 = Relu(t3) y = Relu(t3)
        }"""
    )
    other = _renamed(made)
    _insert(other, 1)
    found = _differ(made, other)
    assert [node.op for node in found.added] == ["Ceil"]
    assert found.removed == found.changed == ()


def _rename_input(made: onnx.ModelProto) -> None:
    made.graph.input[0].name = made.graph.node[0].input[0] = "images"


def _raise_opset(made: onnx.ModelProto) -> None:
    made.opset_import[0].version = 18


def _fix(made: onnx.ModelProto) -> None:
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


@pytest.mark.parametrize(
    ("change", "facts", "ends"),
    [(_rename_input, [], ["x", "images"]), (_raise_opset, ["opset ai.onnx"], []), (_fix, [], ["x"])],
)
def test_what_is_said_of_the_whole(
    change: Callable[[onnx.ModelProto], None], facts: list[str], ends: list[str]
) -> None:
    other = _made()
    change(other)
    found = _differ(_made(), other)
    assert [one.what for one in found.facts] == facts
    assert [one.name for one in found.tensors if one.role == "input"] == ends
    assert found.added == found.removed == found.changed == ()


def test_the_page_has_every_difference(tmp_path: Path) -> None:
    onnx.save(_made(), tmp_path / "a.onnx")
    other = _made()
    _insert(other, 4)
    onnx.save(other, tmp_path / "b.onnx")
    trtopt.diff(tmp_path / "a.onnx", tmp_path / "b.onnx", output=tmp_path / "d.html")
    assert "added in B" in (tmp_path / "d.html").read_text("utf-8")


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(made=_models(), draw=st.data())
def test_one_insertion_is_found_in_any_graph_of_other_names(
    made: onnx.ModelProto, draw: st.DataObject
) -> None:
    other = _renamed(made)
    assert _differ(made, other).is_same
    place = draw.draw(st.integers(0, len(other.graph.node) - 1))
    assume(other.graph.node[place].output[0] not in {item.name for item in other.graph.output})
    _insert(other, place)
    found = _differ(made, other)
    assert [node.op for node in found.added] == ["Ceil"]
    assert found.removed == found.weights == found.changed == ()
