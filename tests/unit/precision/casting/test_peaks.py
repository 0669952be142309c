"""Peaks of tensors inside subgraphs, against what each step computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.prepare import prepare
from trtopt.precision.casting.peaks import NOT_RUN, with_subgraph_peaks
from trtopt.precision.compare import open_model

NESTED = """
g (float[N] x, int64 trips) => (float[N] y, float[I,N] all)
<bool go = {1}, float three = {3.0}, float ten = {10.0}>
{y, all = Loop(trips, go, x)
   <body = b (int64 i, bool cin, float[N] h) => (bool cout, float[N] next, float[N] kept)
     {s = ReduceSum<keepdims=0>(h) c = Greater(s, ten)
      next = If(c) <then_branch = big () => (float[N] p) {p = Neg(h)},
                    else_branch = small () => (float[N] q) {t = Mul(h, three) q = Add(t, h)}>
      kept = Identity(h) cout = Identity(cin)}>}"""
SCAN = """
g (float[N] start, float[T,N] x) => (float[N] y, float[T,N] all)
{y, all = Scan<num_scan_inputs=1, body = b (float[N] state, float[N] row) => (float[N] next, float[N] seen)
   {d = Sub(row, state) next = Add(state, d) seen = Mul(d, d)}>(start, x)}"""
MASKED = """
g (float[N] x, bool c) => (float[N] y)
<float infinity = {inf}>
{y = If(c) <then_branch = a () => (float[N] p) {m = Div(x, x) n = Mul(x, infinity) p = Add(x, x)},
            else_branch = b () => (float[N] q) {q = Identity(x)}>}"""


def peaks(text: str, **feed: Any) -> dict[str, float]:
    """By tensor; the model's own outputs are checked to be those it had."""
    proto, _ = prepare(model(text))
    plain = ModelFile(proto, Path(), external=False)
    found = with_subgraph_peaks(plain)
    wanted = open_model(plain).run(feed)
    watched = onnx.ModelProto()
    watched.CopyFrom(found.model.proto)
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [len(tensors)])
        for name, tensors in found.tensors.items()
    )
    onnx.checker.check_model(watched, full_check=True)
    got = open_model(ModelFile(watched, Path(), external=False)).run(feed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value)
    return {
        tensor: float(peak)
        for output, tensors in found.tensors.items()
        for tensor, peak in zip(tensors, got[output], strict=True)
    }


def test_an_if_in_a_loop_has_the_peaks_of_all_steps() -> None:
    found = peaks(NESTED, x=np.array([1.0, 1.5], np.float32), trips=np.array(2))
    # h is (1, 1.5), then, as their sum is not above 10, (4, 6); nor is that one: the result is (16, 24).
    assert found == {"p": NOT_RUN, "t": 18.0, "q": 24.0, "h": 6.0, "next": 24.0, "kept": 6.0, "s": 10.0}
    found = peaks(NESTED, x=np.array([1.0, 1.5], np.float32), trips=np.array(3))
    assert (found["p"], found["h"], found["s"]) == (24.0, 24.0, 40.0)


@pytest.mark.parametrize(("trips", "length"), [(0, 2), (2, 0)])
def test_a_loop_without_steps_ran_nothing_and_empty_tensors_have_a_peak_of_0(trips: int, length: int) -> None:
    found = peaks(NESTED, x=np.zeros(length, np.float32), trips=np.array(trips))
    if trips:
        assert found.pop("p") == NOT_RUN
    assert set(found.values()) == {0.0 if trips else NOT_RUN}


def test_a_scan_has_the_peaks_of_all_its_rows() -> None:
    rows = np.array([[1, 2], [-5, 3], [0, 0.5]], np.float32)
    found = peaks(SCAN, start=np.array([1, 0], np.float32), x=rows)
    assert found == {"state": 5.0, "row": 5.0, "d": 6.0, "next": 5.0, "seen": 36.0}


def test_infinite_values_and_nan_are_no_peaks() -> None:
    found = peaks(MASKED, x=np.array([0.0, -3.0], np.float32), c=np.array(True))
    assert found == {"m": 1.0, "n": 0.0, "p": 6.0, "q": NOT_RUN}


def test_a_model_without_subgraphs_stays_the_one_it_is() -> None:
    proto, _ = prepare(model("g (float[N] x) => (float[N] y) {y = Neg(x)}"))
    plain = ModelFile(proto, Path(), external=False)
    assert with_subgraph_peaks(plain).model is plain
