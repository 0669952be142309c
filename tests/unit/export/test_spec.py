"""Model files: what is read, what is refused, at which sizes a model is traced and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtopt.errors import UsageError
from trtopt.export.spec import Axis, read_spec
from trtopt.export.verify import check_sizes, trace_sizes

GOOD = """
title = "t"
description = "d"
source = "s"
construct = "m.py:build"
outputs = ["y"]
[[inputs]]
name = "x"
dtype = "float32"
shape = ["batch", "side"]
[axes.batch]
min = 1
opt = 8
max = 64
[variants.full]
sizes = { side = 32 }
[variants.tiny]
sizes = { side = 4 }
axes.batch = { min = 1, opt = 2, max = 4 }
"""


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "m.toml"
    path.write_text(text, "utf-8")
    return path


def test_shapes_take_their_sizes_from_axes_and_variants(tmp_path: Path) -> None:
    spec = read_spec(_write(tmp_path, GOOD))
    assert spec.inputs[0].shape_at(spec.sizes_at("full", {"batch": 3})) == (3, 32)
    assert spec.inputs[0].shape_at(spec.sizes_at("tiny", {})) == (2, 4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "t"', "", "`title`"),
        ('title = "t"', 'title = "t"\ncolour = "red"', "`colour`"),
        ('construct = "m.py:build"', "", "exactly one of `construct` and `onnx`"),
        ("[variants.full]", "[variants.large]", "at least `full`"),
        ("sizes = { side = 32 }", "", "names 'side'"),
        ("opt = 8", "opt = 80", "min <= opt <= max"),
        ("axes.batch = {", "axes.time = {", "sets axis 'time'"),
        ('dtype = "float32"', "dtype = 3", "Expected `str`"),
        ("[[inputs]]", "[[inputs", "as TOML"),
    ],
)
def test_a_wrong_model_file_is_refused_with_the_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_spec(_write(tmp_path, GOOD.replace(old, new, 1)))
    assert said in caught.value.problem


def test_a_missing_model_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_spec(tmp_path / "no.toml")


def test_near_stays_on_steps_and_within_the_range() -> None:
    axis = Axis(min=2, opt=10, max=61, step=2)
    assert [axis.near(0), axis.near(6), axis.near(100)] == [2, 14, 60]


def test_two_checked_sizes_differ_from_each_other_and_from_the_traced_one() -> None:
    axes = {"batch": Axis(min=1, opt=8, max=64), "sequence": Axis(min=1, opt=128, max=512)}
    low, high = check_sizes(axes)
    for name in axes:
        assert len({low[name], high[name], trace_sizes(axes)[name]}) == 3


def test_without_varying_axes_there_is_one_check() -> None:
    assert check_sizes({}) == [{}]
