"""Weights are rounded with each other's errors in mind: as the paper has it, and better where it matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.support.networks import Net, as_file
from trtopt.data import open_data
from trtopt.errors import DataError
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision import rounding
from trtopt.precision.calibrate import copy_model
from trtopt.precision.compare import open_model
from trtopt.precision.observe import Products, SecondMoments
from trtopt.precision.placement.draft import PlacementOptions, View
from trtopt.precision.placement.place import place
from trtopt.precision.qdq import Scales, qdq_format_for, quantize_weight, weight_scale, write
from trtopt.precision.rounding import DAMPING, MOST_CHANNELS, PER_CHANNEL, Rounded, round_by_data, rounded

Floats = NDArray[np.float32]
FORM = qdq_format_for("int4", "rtx")
K, N = 256, 48


def scale(rows: Floats, importance: Floats) -> Floats:
    return weight_scale(rows, 0, "int4", len(rows), importance)[0]


def inputs(rows: int, seed: int, channels: int = K) -> Floats:
    """Rows of channels that move together: 24 causes, and a tenth of noise."""
    mixed = np.random.default_rng(5).standard_normal((24, channels))
    random = np.random.default_rng(seed)
    made = random.standard_normal((rows, 24)) @ mixed + 0.1 * random.standard_normal((rows, channels))
    return made.astype(np.float32)


def moments(x: Floats) -> SecondMoments:
    seen = Products()
    seen.visit("x", x, 0)
    return seen.together(["x"])


def weight(channels: int = K, n: int = N) -> Floats:
    return np.random.default_rng(2).standard_normal((channels, n)).astype(np.float32)


def nearest(w: Floats) -> Floats:
    scales = weight_scale(w, 0, "int4", 128)
    return quantize_weight(w, scales, 0, "int4", 128) * np.repeat(scales, 128, axis=0)


def lost(x: Floats, w: Floats, moved: Floats) -> float:
    """The share of the energy of x·W that rounding changes."""
    return float(np.sum((x @ (w - moved)) ** 2) / np.sum((x @ w) ** 2))


# ── arithmetic ──────────────────────────────────────────────────────────────────────────────────────────


def by_the_paper(w: Floats, seen: SecondMoments, steps: Floats) -> NDArray[np.float64]:
    """Row after row, each error spread by the inverse of what is left of H, which is taken anew each time."""
    h, left = seen.mean.astype(np.float64), w.astype(np.float64)
    h += (DAMPING + PER_CHANNEL * len(h) / seen.rows) * np.diag(h).mean() * np.eye(len(h))
    for i in range(len(left)):
        inverse = np.linalg.inv(h[i:, i:])
        moved = np.clip(np.rint(left[i] / steps), -8, 7) * steps
        left[i + 1 :] -= np.outer(inverse[1:, 0] / inverse[0, 0], left[i] - moved)
        left[i] = moved
    return left


@pytest.mark.parametrize("block", [5, 8, 24, 128])
def test_it_is_what_the_paper_does_in_whatever_blocks(block: int) -> None:
    w, seen = weight(24, 9), moments(inputs(400, 1, 24))
    steps = np.full(9, 0.25, np.float32)
    moved, scales = rounded(w, seen, "int4", block, lambda rows, importance: steps)
    assert np.abs(moved - by_the_paper(w, seen, steps)).max() < 1e-5
    assert np.abs(moved - w).max() > 0.125 * 1.5  # rounding to nearest moves by half a step
    assert scales.shape == (-(-24 // block), 9)


def test_it_is_rounding_to_nearest_where_channels_move_apart() -> None:
    moved, scales = rounded(weight(), SecondMoments(np.eye(K, dtype=np.float32), 1000), "int4", 128, scale)
    assert np.abs(moved - nearest(weight())).max() < 1e-6
    assert np.array_equal(scales, weight_scale(weight(), 0, "int4", 128))


def test_outputs_err_less_on_other_data_and_values_lie_on_the_grid() -> None:
    moved, scales = rounded(weight(), moments(inputs(4000, 1)), "int4", 128, scale)
    other = inputs(1000, 2)
    assert lost(other, weight(), moved) < 0.25 * lost(other, weight(), nearest(weight()))
    levels = moved / np.repeat(scales, 128, axis=0)
    assert np.abs(levels - np.rint(levels)).max() < 1e-4
    assert np.rint(levels).min() >= -8
    assert np.rint(levels).max() <= 7


def test_few_rows_do_no_harm() -> None:
    """With `DAMPING` alone one row makes the error 1.3 times that of rounding to nearest."""
    other, plain = inputs(1000, 2), nearest(weight())
    for rows in (1, 4, 16):
        moved, _ = rounded(weight(), moments(inputs(rows, 1)), "int4", 128, scale)
        assert lost(other, weight(), moved) < 1.05 * lost(other, weight(), plain)


def test_channels_that_are_always_zero_are_rounded_by_themselves() -> None:
    x = inputs(400, 1)
    x[:, ::3] = 0
    seen, steps = moments(x), np.full(N, 0.3, np.float32)
    moved, _ = rounded(weight(), seen, "int4", 128, lambda rows, importance: steps)
    alone = np.clip(np.rint(weight() / steps), -8, 7) * steps
    assert np.abs(moved - alone)[::3].max() < 1e-6
    assert np.abs(moved - alone)[1::3].max() > 0.29
    silent, _ = rounded(weight(), moments(0 * x), "int4", 128, lambda rows, importance: steps)
    assert np.abs(silent - alone).max() < 1e-6


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def network() -> ModelFile:
    """Three layers: two read x, of which one shares its weight with the third, that reads another tensor."""
    net = Net(x=["N", 4, K])
    shared = net.constant("shared", K, K)
    first = net.node("MatMul", "first", "x", shared)
    net.node("MatMul", "again", net.node("Relu", "act", first), shared)
    net.linear("beside", "x", K, N)
    model = net.model("again", "beside")
    model.opset_import[0].version, model.ir_version = 21, 10
    return as_file(model)


@pytest.fixture
def calib(tmp_path: Path) -> str:
    np.savez(tmp_path / "x.npz", x=inputs(160, 1).reshape(40, 4, K))
    return str(tmp_path / "x.npz")


def quantize(model: ModelFile, calib: str | None) -> tuple[ModelFile, Rounded]:
    made = copy_model(model)
    plan = place(View(made.proto), PlacementOptions("int4"))
    found = Rounded({}, 0, 0)
    if calib:
        found = round_by_data(made, plan, open_data(calib), FORM)
    write(made, plan, Scales({}, weights=found.scales), FORM)
    onnx.checker.check_model(made.proto, full_check=True)
    return made, found


def test_a_model_errs_less_and_what_is_written_is_what_was_found(calib: str) -> None:
    model = network()
    made, found = quantize(model, calib)
    assert (len(found.scales), found.samples, found.left) == (3, 40, 0)
    narrow = [item for item in made.proto.graph.initializer if item.data_type == onnx.TensorProto.INT4]
    assert len([item for item in narrow if item.name.endswith("quantized")]) == 2  # the shared one once
    feed = {"x": inputs(80, 2).reshape(20, 4, K)}
    wanted, got, plain = (open_model(item).run(feed) for item in (model, made, quantize(model, None)[0]))
    for name, limit in (("beside", 0.25), ("again", 0.5)):
        errors = [np.sum((wanted[name] - other[name]) ** 2) for other in (got, plain)]
        assert errors[0] < limit * errors[1]
    source = next(item for item in model.proto.graph.initializer if item.name == "beside.w")
    alone, _ = rounded(
        numpy_helper.to_array(source),
        _one_by_one(inputs(160, 1).reshape(40, 4, K)),
        "int4",
        128,
        lambda rows, importance: FORM.fit(scale(rows, importance)),
    )
    assert np.abs(got["beside"] - feed["x"] @ alone).max() < 1e-4 * np.abs(got["beside"]).max()


def _one_by_one(x: Floats) -> SecondMoments:
    seen = Products()
    for number in range(len(x)):
        seen.visit("x", x[number : number + 1], number)
    return seen.together(["x"])


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [511, 512, 513], [100, 1030]])
def test_moments_have_the_same_bits_however_rows_come(cuts: list[int]) -> None:
    x = inputs(1100, 3)
    seen, first = Products(), 0
    for part in np.split(x, cuts):
        seen.visit("x", part, first)
        first += len(part)
    found = seen.together(["x"])
    assert found.rows == 1100
    assert np.array_equal(found.mean, moments(x).mean)
    expected = x.astype(np.float64).T @ x.astype(np.float64) / len(x)
    assert np.abs(found.mean - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_bytes_do_not_depend_on_what_is_held_at_a_time(
    calib: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantize(network(), calib)[0].proto
    monkeypatch.setattr(rounding, "MOMENTS_BYTES", 1)
    sharded = quantize(network(), calib)[0].proto
    assert whole.SerializeToString() == sharded.SerializeToString()


def test_too_many_channels_are_left(tmp_path: Path) -> None:
    channels = MOST_CHANNELS + 128
    net = Net(x=["N", 2, channels])
    model = net.model(net.linear("wide", "x", channels, 16))
    model.opset_import[0].version, model.ir_version = 21, 10
    np.savez(tmp_path / "x.npz", x=np.ones((2, 2, channels), np.float32))
    made, found = quantize(as_file(model), str(tmp_path / "x.npz"))
    assert (found.scales, found.left) == ({}, 1)
    assert made.proto == quantize(as_file(model), None)[0].proto


def test_what_is_not_finite_is_named_and_huge_values_are_left(tmp_path: Path) -> None:
    x = inputs(160, 1).reshape(40, 4, K)
    x[7, 1, 3] = 1e25
    np.savez(tmp_path / "huge.npz", x=x)
    assert quantize(network(), str(tmp_path / "huge.npz"))[1].left == 3
    x[7, 1, 3] = np.nan
    with pytest.raises(DataError, match=r"'x' is not finite .* with sample 37"):
        Products().visit("x", x, 30)
