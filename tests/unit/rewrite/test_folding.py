"""Constant folding: all at once, and what cannot be evaluated keeps nothing else from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import fold_constants

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
    run = fold_constants.Unoptimised

    def counted(*args: Any) -> Any:
        runs.append(args)
        return run(*args)

    monkeypatch.setattr(fold_constants, "Unoptimised", counted)
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
