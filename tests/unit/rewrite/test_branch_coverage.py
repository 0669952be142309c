# ruff: noqa: E501 - graphs read best one statement after another
"""A check says which branches of Ifs its inputs did not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model

_RARE = """
    g (float[N,4] x) => (float[N,4] y) {
      large = Constant<value_float=1000000.0>()
      top = ReduceMax<keepdims=0>(x)
      c = Greater(top, large)
      y = If(c) <then_branch = t () => (float[N,4] p) {u = Identity(x) p = Neg(u)},
                 else_branch = e () => (float[N,4] q) {v = Identity(x) q = Relu(v)}>
    }"""
_NESTED = """
    g (float[N,4] x, bool c, bool d) => (float[N,4] y) {
      y = If(c) <then_branch = t () => (float[N,4] p) {
                   u = Identity(x)
                   p = If(d) <then_branch = tt () => (float[N,4] r) {r = Neg(u)}, else_branch = te () => (float[N,4] s) {s = Relu(u)}>},
                 else_branch = e () => (float[N,4] q) {v = Identity(x) q = Relu(v)}>
    }"""


def _notes(text: str, folder: Path, **samples: np.ndarray) -> list[str]:
    """What rewriting notes about branches."""
    onnx.save(model(text), folder / "in.onnx")
    np.savez(folder / "samples.npz", **samples)
    data = folder / "samples.npz" if samples else None
    trace = rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", data=data)
    assert trace.applied
    assert all(item.ok for item in trace.checked)
    return [note for note in trace.notes if "branch" in note]


def test_a_branch_that_no_input_ran_is_told_with_what_reaches_it(tmp_path: Path) -> None:
    assert _notes(_RARE, tmp_path) == [
        "the check did not run the then branch of If 'If:y': "
        "`trtopt rewrite --data` checks it on samples that reach it"
    ]


def test_samples_that_reach_the_branch_end_the_note(tmp_path: Path) -> None:
    assert _notes(_RARE, tmp_path, x=np.full((1, 4), 2e6, np.float32)) == []


def test_ifs_inside_branches_are_told_as_unknown(tmp_path: Path) -> None:
    notes = _notes(_NESTED, tmp_path, x=np.ones((1, 4), np.float32), c=np.array(True), d=np.array(True))
    assert notes[-1] == "which branches the check ran of 1 If inside subgraphs is not known"
