"""Axes whose names say nothing: two called `?` may differ in length, and are run so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.data.feeds import seeded, specs_of
from trtopt.data.fit import rows_of
from trtopt.device.ort.reference import Unoptimised
from trtopt.device.ort.runtime import spec_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.shape_inference import inferred
from trtopt.rewrite.rewrite import rewrite_model

NAMES = ["?", "None", "", "unk__5", "-1", "unknown"]
_TURNED = """
    g (float[N,3,A,B] x) => (float[N,3,P,Q] y) <int64[4] order = {0,1,3,2}>
    {s = Shape(x) t = Gather(s, order) r = Reshape(x, t) y = Relu(r)}"""
"""The last two axes change their lengths over: Reshape moves nothing only where they are equal."""


def named(text: str, name: str, *places: tuple[str, int]) -> onnx.ModelProto:
    made = model(text)
    for value in made.graph.input:
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, place) in places:
                axis.dim_param = name
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", [True, False])
def test_axes_that_share_a_placeholder_are_not_taken_as_equal(name: str, check: bool, tmp_path: Path) -> None:
    made = named(_TURNED, name, ("x", 2), ("x", 3))
    onnx.save(made, tmp_path / "in.onnx")
    assert rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=check).undone == ()
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    wanted, found = (
        Unoptimised(it.SerializeToString()).run(feed)["y"] for it in (made, onnx.load(tmp_path / "out.onnx"))
    )
    np.testing.assert_array_equal(found, wanted)


def test_an_axis_without_a_name_is_followed_all_the_same() -> None:
    made = named("g (float[N,A] x) => (float[N,A] y) {a = Relu(x) y = Neg(a)}", "?", ("x", 0), ("x", 1))
    graph = inferred(made).graph
    given, kept = (
        [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        for value in (graph.input[0], graph.value_info[0])
    )
    assert given == kept
    assert len(set(given)) == 2


@pytest.mark.parametrize("name", NAMES)
def test_axes_without_a_name_are_drawn_with_unlike_lengths(name: str) -> None:
    made = named(_TURNED, name, ("x", 2), ("x", 3))
    assert [feed.values["x"].shape for feed in seeded(made)] == [(1, 3, 64, 96), (3, 3, 96, 144)]


_SUM = (
    "g (float[J,K] x, float[L,M] z) => (float[J,K] y) {a = Add(x, z) b = Relu(a) c = Identity(b) y = Neg(c)}"
)
_OPEN = (("x", 0), ("x", 1), ("z", 0), ("z", 1))


@pytest.mark.parametrize(
    ("open_axes", "which"),
    [(_OPEN, "axes"), (_OPEN[::2], "first axes"), (_OPEN[:1], "first axes"), (_OPEN[1:2], "axes")],
)
def test_a_model_that_wants_equal_lengths_gets_them_and_it_is_reported(
    open_axes: tuple[tuple[str, int], ...], which: str, tmp_path: Path
) -> None:
    text = _SUM
    for place, letter in zip(_OPEN, "JKLM", strict=True):
        text = text if place in open_axes else text.replace(letter, "NT"[place[1]])
    onnx.save(named(text, "?", *open_axes), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert [item.feed for item in trace.checked if "large" in item.feed] == ["seed 0, large (3x24, 3x24)"]
    told = f"checked where {which} without a name are equally long: on others the model did not run"
    assert trace.notes == (told,)


@pytest.mark.parametrize("name", NAMES)
def test_a_placeholder_is_no_name_of_samples_wherever_inputs_are_described(name: str, tmp_path: Path) -> None:
    import onnxruntime

    made = named("g (float[A,3] x, float[2,B] z) => (float[A,3] y) {y = Relu(x)}", name, ("x", 0), ("z", 1))
    onnx.save(made, tmp_path / "in.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "in.onnx", providers=["CPUExecutionProvider"])
    told = [
        specs_of(made),
        read_onnx(tmp_path / "in.onnx").inputs,
        tuple(spec_of(item) for item in session.get_inputs()),
    ]
    for specs in told:
        assert [spec.shape for spec in specs] == [("?", 3), (2, "?")]
        assert rows_of(specs, 8) == {"x": 8, "z": None}
