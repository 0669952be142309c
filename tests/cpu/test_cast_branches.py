"""Subgraphs that call their tensors alike, and nodes inside of them, whose values are not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import trtopt
from tests.support.cast_models import saved
from trtopt.onnxio.graph_walk import name_apart
from trtopt.onnxio.model_file import load
from trtopt.onnxio.prepare import prepare
from trtopt.precision.compare import open_model
from trtopt.records.precision import CastReport

TWINS = """
# w: float[8,8]
g (float[1,8] x) => (float[1,8] y)
<float zero = {0.0}>
{a = MatMul(x, w) t = ReduceSum<keepdims=0>(x) c = Greater(t, zero)
 q = If(c) <then_branch = p () => (float[1,8] o) {v = MatMul(a, w) o = Tanh(v)},
            else_branch = n () => (float[1,8] o) {v = Cast<to=7>(a) o = Cast<to=1>(v)}>
 y = MatMul(q, w)}"""
SCALED = """
# w: float[8,8]
g (float[1,8] x) => (float[1,8] y)
<float zero = {0.0}, float small = {0.001}>
{a = MatMul(x, w) t = ReduceSum<keepdims=0>(x) c = Greater(t, zero)
 q = If(c) <then_branch = p () => (float[1,8] o) <float[1] k = {1.0}> {v = MatMul(a, w) o = Mul(v, k)},
            else_branch = n () => (float[1,8] o) <float[1] k = {200000.0}> {v = MatMul(a, w) o = Mul(v, k)}>
 r = Mul(q, small) y = MatMul(r, w)}"""
LOOP = """
# w: float[8,8]
# v: float[8,8]
g (float[1,8] x) => (float[1,8] y, float[I,1,8] all)
<int64 trips = {5}, bool go = {1}>
{a = MatMul(x, v)
 l, all = Loop(trips, go, a)
   <body = b (int64 i, bool cin, float[1,8] hin) => (bool cout, float[1,8] h, float[1,8] s)
     {m = MatMul(hin, w) h = Add(m, hin) s = Neg(m) cout = Identity(cin)}>
 y = MatMul(l, v)}"""
OVERFLOWING = """
# w: float[8,8]
g (float[1,8] x) => (float[1,8] y)
<float zero = {0.0}, float huge = {30000.0}, float tiny = {0.0001}>
{a = MatMul(x, w) t = ReduceSum<keepdims=0>(x) c = Greater(t, zero)
 q = If(c) <then_branch = p () => (float[1,8] o) {v = MatMul(a, w) o = Tanh(v)},
            else_branch = n () => (float[1,8] o) {v = MatMul(a, w) u = Mul(v, huge) o = Mul(u, tiny)}>
 y = MatMul(q, w)}"""
WHOLE = """
# w: float[8,8]
g (int64[1,8] x, bool c) => (int64[1] y)
{y = If(c) <then_branch = p () => (int64[1] o)
              {f = Cast<to=1>(x) v = MatMul(f, w) o = ArgMax<axis=1, keepdims=0>(v)},
            else_branch = n () => (int64[1] o)
              {f = Cast<to=1>(x) v = MatMul(f, w) o = ArgMin<axis=1, keepdims=0>(v)}>}"""
SIGNS = np.where(np.arange(6) % 2, 1.0, -1.0)[:, None].astype(np.float32)


def samples(folder: Path) -> Path:
    """Sums above and below zero in turns: the models take one at a time, so that both branches run."""
    x = SIGNS * np.abs(np.random.default_rng(0).standard_normal((6, 8))).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    return folder / "data.npz"


def cast(text: str, folder: Path, **options: Any) -> tuple[CastReport, onnx.ModelProto]:
    source = saved(text, folder, **options.pop("weights", {}))
    report = trtopt.cast(source, folder / "out.onnx", precision="fp16", data=samples(folder), **options)
    before, after = open_model(load(source)), open_model(load(folder / "out.onnx"))
    for sign in (-1, 1):  # a branch each
        feed = {"x": np.full((1, 8), 0.5 * sign, np.float32)}
        for name, wanted in before.run(feed).items():
            assert np.abs(after.run(feed)[name] - wanted).max() < 5e-3 * np.abs(wanted).max(), name
    return report, onnx.load(folder / "out.onnx")


def inner(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [item.g for node in proto.graph.node for item in node.attribute if item.HasField("g")]


def test_branches_that_call_their_tensors_alike_stay_two_branches(tmp_path: Path) -> None:
    report, proto = cast(TWINS, tmp_path, include=("*",))
    operators = [[node.op_type for node in branch.node] for branch in inner(proto)]
    assert [name for name in operators[0] if name != "Cast"] == ["MatMul", "Tanh"]
    assert 7 in [item.i for node in inner(proto)[1].node for item in node.attribute]
    assert "MatMul:v" in report.lowered
    assert report.notes == ()
    assert report.lowered[-1] in {node.name for branch in inner(proto) for node in branch.node}


@pytest.mark.parametrize("keep", ["MatMul:v", "MatMul:v_1"])
def test_either_of_two_nodes_that_are_called_alike_can_be_kept(keep: str, tmp_path: Path) -> None:
    report, _ = cast(SCALED, tmp_path, exclude=(keep,))
    assert [item.node for item in report.kept if item.rule == "pattern"] == [keep]


def test_weights_that_are_called_alike_are_evaluated_one_by_one(tmp_path: Path) -> None:
    report, _ = cast(SCALED, tmp_path)
    assert {item.node: item.rule for item in report.kept} == {
        "If:q": "operator",
        "Mul:r": "range",
        "Mul:o_1": "weight",
        "MatMul:v": "unmeasured",
        "Mul:o": "unmeasured",
        "MatMul:v_1": "unmeasured",
    }


@pytest.mark.parametrize("included", [False, True])
def test_what_lies_in_a_branch_stays_fp32_unless_it_is_included(included: bool, tmp_path: Path) -> None:
    report, _ = cast(OVERFLOWING, tmp_path, include=("MatMul:v_1",) if included else ())
    unmeasured = [item.node for item in report.kept if item.rule == "unmeasured"]
    assert unmeasured == ["MatMul:v", "Tanh:o"] + ([] if included else ["MatMul:v_1"]) + ["Mul:u", "Mul:o"]
    (note,) = report.notes
    assert note.startswith(
        f"{len(unmeasured)} nodes with unknown values stay FP32, such as {unmeasured[0]!r} ("
    )


def test_of_a_network_that_is_inside_a_branch_no_value_is_known(tmp_path: Path) -> None:
    report = trtopt.cast(saved(WHOLE, tmp_path), tmp_path / "out.onnx", precision="fp16")
    assert report.lowered == ()
    assert {item.rule for item in report.kept if item.op == "MatMul"} == {"unmeasured"}


def test_what_goes_round_a_loop_and_is_collected_is_cast_inside_where_it_is_included(tmp_path: Path) -> None:
    small = {"w": 0.1 * np.eye(8, dtype=np.float32), "v": np.eye(8, dtype=np.float32)}
    inside = ("MatMul:m", "Add:h", "Neg:s")
    report, _ = cast(LOOP, tmp_path, weights=small, include=inside)
    assert set(inside) <= set(report.lowered)


def test_names_are_set_apart_once_and_for_all(tmp_path: Path) -> None:
    proto = onnx.load(saved(SCALED, tmp_path))
    name_apart(proto.graph)
    once = proto.SerializeToString(deterministic=True)
    name_apart(proto.graph)
    assert proto.SerializeToString(deterministic=True) == once
    onnx.checker.check_model(proto, full_check=True)
    branches = inner(proto)
    names = [{name for node in part.node for name in (*node.input, *node.output)} for part in branches]
    assert names[0] & names[1] == {"a", "w"}
    assert [part.output[0].name for part in branches] == ["o", "o_1"]


def test_a_branch_may_use_a_name_that_the_graph_around_it_uses_later(tmp_path: Path) -> None:
    later = TWINS.replace("y = MatMul(q, w)", "v = MatMul(q, w) y = Neg(v)")
    proto = prepare(load(saved(later, tmp_path))).proto
    assert inner(proto)[0].node[0].output[0] == "v_1"
    cast(later, tmp_path)
