# ruff: noqa: E501 - graphs read best one statement after another
"""Normalisations in BF16, and of mixed types: ONNX Runtime runs neither, the specification's own expansion does.

`LayerNormalization` is a function: it is replaced by the nodes that define it, and
those run in onnx's reference evaluator, which rounds every result to its type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, inliner, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from trtopt.rewrite.rewrite import rewrite_model

_MOMENTS = "p = Mul(a, a) q = ReduceMean(p, ax) r = Add(q, eps) s = Sqrt(r) u = Div(a, s)"
_GRAPHS = {
    "LayerNorm by hand, BF16": ("layer-norm", "bfloat16", 16,
        f"f = Cast<to=1>(x) m = ReduceMean(f, ax) a = Sub(f, m) {_MOMENTS} b = Cast<to=16>(u) h = Mul(c, b) y = Add(h, d)"),
}  # fmt: skip


def _model(kind: str, body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
        g ({kind}[2,S,64] x) => ({kind}[2,S,64] y) <int64[1] ax = {{-1}}, float eps = {{0.00001}}> {{ {body} }}"""
    made = parser.parse_model(text)
    rng, dtype = np.random.default_rng(3), _dtype(kind)
    for name in ("c", "d"):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(64).astype(dtype), name))
    return made


def _dtype(kind: str) -> Any:
    return ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16


def _run(made: onnx.ModelProto, x: Any) -> Any:
    typed = onnx.shape_inference.infer_shapes(made)
    for item in made.graph.initializer:  # the inliner asks for their types
        typed.graph.input.add().CopyFrom(helper.make_tensor_value_info(item.name, item.data_type, item.dims))
    plain = inliner.inline_selected_functions(typed, [], exclude=True, inline_schema_functions=True)
    assert not any("Normalization" in node.op_type for node in plain.graph.node)
    return ReferenceEvaluator(plain).run(None, {"x": x})[0]


def _rewritten(rule: str, made: onnx.ModelProto, element: int, folder: Path) -> onnx.ModelProto:
    """What the rule makes: one node over x, whose scale and shift have the type of x."""
    onnx.save(made, folder / "in.onnx")
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target="11", rules=[rule], check=False)
    assert trace.counts == {rule: 1}
    after = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(after, full_check=True)
    (node,) = after.graph.node
    types = {item.name: item.data_type for item in after.graph.initializer}
    assert node.input[0] == "x"
    assert {types[name] for name in node.input[1:]} == {element}
    return after


@pytest.mark.parametrize("graph", _GRAPHS)
def test_the_casts_go_and_the_specification_says_that_only_roundings_differ(
    graph: str, tmp_path: Path
) -> None:
    rule, kind, element, body = _GRAPHS[graph]
    made = _model(kind, body)
    after = _rewritten(rule, made, element, tmp_path)
    x = (4 * np.random.default_rng(5).standard_normal((2, 5, 64))).astype(_dtype(kind))
    before, now = _run(made, x), _run(after, x)
    assert before.dtype == now.dtype == _dtype(kind)
    np.testing.assert_array_equal(before, now)
