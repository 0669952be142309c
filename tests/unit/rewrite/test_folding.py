"""Constant folding: all at once, and what cannot be evaluated keeps nothing else from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from tests.rewrite_graphs import model
from trtopt.errors import UnsupportedOpError
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import folding

_MANY = 12


def _fold(text: str, folder: Path) -> list[str]:
    """The operators that are left."""
    onnx.save(model(text), folder / "in.onnx")
    rewrite_model(folder / "in.onnx", folder / "out.onnx", target="11", rules=["fold-constants"], check=False)
    return [node.op_type for node in onnx.load(folder / "out.onnx").graph.node]


def test_onnx_runtime_is_not_asked_for_every_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    run = folding.Unoptimised

    def counted(*args: Any) -> Any:
        runs.append(args)
        return run(*args)

    monkeypatch.setattr(folding, "Unoptimised", counted)
    made = " ".join(f"c{i} = Mul(c, i{i}) x{i + 1} = Add(x{i}, c{i})" for i in range(_MANY))
    inits = ", ".join(f"float[4] i{i} = {{{i},1,2,3}}" for i in range(_MANY))
    text = f"g (float[N,4] x0) => (float[N,4] x{_MANY}) <float[4] c = {{1,2,3,4}}, {inits}> {{{made}}}"
    assert _fold(text, tmp_path) == ["Add"] * _MANY
    assert len(runs) == 1


def test_one_that_cannot_be_evaluated_stays_and_the_others_go(tmp_path: Path) -> None:
    text = """
        g (float[N,4] x) => (float[N,4] y) <float[4] c = {1,2,3,4}, int64[1] far = {9}>
        {a = Mul(c, c) b = Gather(c, far) d = Add(x, a) y = Add(d, b)}"""
    assert sorted(_fold(text, tmp_path)) == ["Add", "Add", "Gather"]


@pytest.mark.parametrize("rule", ["fold-constants", "fold-weights"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.INT4])
def test_a_constant_in_a_type_that_is_not_written_is_neither_folded_nor_said_to_be(
    rule: str, kind: int, tmp_path: Path
) -> None:
    """ONNX Runtime gives FP8 as integers, which would be read as such."""
    size = 64 if rule == "fold-weights" else 4
    text = f"""
        # w: float[{size},{size}]
        g (float[N,{size}] x) => (float[N,{size}] y) <float s = {{0.5}}>
        {{q = Cast<to={kind}>(w) d = DequantizeLinear(q, s) y = MatMul(x, d)}}"""
    proto = model(text)
    proto.opset_import[0].version = 21
    proto.ir_version = 10
    onnx.save(proto, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=[rule], check=False)
    assert trace.applied == ()
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == [
        "Cast",
        "DequantizeLinear",
        "MatMul",
    ]


@pytest.mark.parametrize("large", ["Transpose(w)", "Cast<to=16>(w)"])
def test_what_is_small_is_folded_beside_what_cannot_be(large: str, tmp_path: Path) -> None:
    """The weight stays for the large one, which is as large, or in a type that is not written."""
    text = f"""
        # w: float[600,600]
        g (float[N,600] x) => (float[N,600] y) <int64[1] i = {{3}}>
        {{t = {large} c = CastLike(t, x) r = Gather(w, i) m = MatMul(x, c) y = Add(m, r)}}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    rewrite_model(
        tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=["fold-weights"], check=False
    )
    assert "Gather" not in [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]


def test_a_chain_through_such_a_type_is_folded_where_it_ends_in_another(tmp_path: Path) -> None:
    text = """
        # w: float[4,4]
        g (float[N,4] x) => (float[N,4] y) {q = Cast<to=16>(w) d = Cast<to=1>(q) y = MatMul(x, d)}"""
    assert _fold(text, tmp_path) == ["MatMul"]


def test_reshapes_that_copy_a_known_length_say_it(tmp_path: Path) -> None:
    """A -1 beside a copied batch could not be inferred for an empty batch."""
    text = """
        g (float[N,3,4] x) => (float[N,12] y) <int64[3] a = {0,12,1}, int64[2] b = {0,0}>
        {t = Reshape(x, a) y = Reshape(t, b)}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", rules=["reshape-chain"])
    proto = onnx.load(tmp_path / "out.onnx")
    (node,) = proto.graph.node
    (shape,) = (item for item in proto.graph.initializer if item.name == node.input[1])
    assert onnx.numpy_helper.to_array(shape).tolist() == [0, 12]


def test_an_attribute_that_is_no_text_is_refused(tmp_path: Path) -> None:
    proto = model("g (float[N,4] x) => (float[N,4] y) {a = foo.Custom(x) y = Neg(a)}")
    proto.graph.node[0].attribute.add(name="blob", type=onnx.AttributeProto.STRING, s=b"\xff\xfe\x00abc")
    proto.opset_import.append(onnx.helper.make_opsetid("foo", 1))
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(UnsupportedOpError, match="is no text and would be lost"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="11", check=False)
