"""What calibration refuses, and under which name and number; what is told of the samples it took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.support.networks import Net, as_file
from trtopt.data import SampleSource
from trtopt.data.readers import HeldReader
from trtopt.errors import ArtifactError, DataError, ModelError
from trtopt.precision.calibrate import Part, QuantizationJob, best_of, read_table
from trtopt.precision.observe import check_finite
from trtopt.precision.placement.draft import PlacementOptions, Precision, View
from trtopt.precision.placement.place import place
from trtopt.precision.qdq import Scales, check_weight, held_by_half, qdq_format_for, write
from trtopt.precision.quantize import QuantizedModel, quantize_graph
from trtopt.records import TensorSpec, to_json
from trtopt.records.precision import CalibrationTable, MethodScore, QuantizeReport, TensorRange

Floats = NDArray[np.float32]


def images(count: int, bad: int | None = None) -> Floats:
    """Positive samples, but for one."""
    values = np.abs(np.random.default_rng(2).standard_normal((count, 32, 4, 4))).astype(np.float32)
    if bad is not None:
        values[bad] = -1
    return values


def source(x: Floats) -> SampleSource:
    return SampleSource("held", [HeldReader([{"x": x}])])


def calibrated(net: Net, x: Floats, *outputs: str, precision: Precision = "int8") -> QuantizedModel:
    asked = QuantizationJob(precision, qdq=qdq_format_for(precision, "rtx"), source=source(x))
    return quantize_graph(as_file(net.model(*outputs)), asked)


def rooted(batch: int | str = "N") -> Net:
    """A square root, NaN where x is negative, in front of a convolution."""
    net = Net(x=[batch, 32, 4, 4])
    net.conv("y", net.node("Sqrt", "root", "x"), 32, 32)
    return net


# ── samples ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bad", [0, 7, 20, 62, 63])
def test_the_sample_is_named_as_the_data_numbers_it_held_out_or_not(bad: int) -> None:
    with pytest.raises(DataError, match=rf"tensor 'root' is not finite .* with sample {bad}\n") as caught:
        calibrated(rooted(), images(64, bad), "y")
    assert "take that sample out" in caught.value.remedy


@pytest.mark.parametrize("bad", [14, 17])
def test_it_is_also_where_the_model_fixes_the_batch(bad: int) -> None:
    with pytest.raises(DataError, match=rf"tensor 'root' is not finite .* with sample {bad}\n"):
        calibrated(rooted(2), images(20, bad), "y")


@pytest.mark.parametrize(("count", "bad"), [(16, 15), (5, 3)])
def test_methods_are_not_evaluated_by_outputs_that_are_not_finite(count: int, bad: int) -> None:
    net = Net(x=["N", 32, 4, 4])
    net.conv("y", "x", 32, 32)
    net.node("Sqrt", "aside", "x")
    with pytest.raises(DataError, match=rf"tensor 'aside' is not finite .* with sample {bad}\n") as caught:
        calibrated(net, images(count, bad), "y", "aside")
    assert "--method" in caught.value.remedy


def test_a_tensor_without_an_axis_of_samples_is_not_given_one() -> None:
    values = np.array([[1.0], [np.inf], [1.0]])
    with pytest.raises(DataError, match=r"with one of the samples 8 to 9\n"):
        check_finite("t", values, [8, 9])
    with pytest.raises(DataError, match=r"with sample 8\n"):
        check_finite("t", values, [8])
    with pytest.raises(DataError, match=r"with sample 8\n"):
        check_finite("t", np.array(np.nan), [8])
    check_finite("t", np.zeros((0, 6)), [8])


@pytest.mark.parametrize("held", [True, False])
def test_a_part_numbers_its_samples_as_the_source_does(held: bool) -> None:
    x = np.arange(40, dtype=np.float32).reshape(40, 1)
    part = Part(source(x), held=held)
    batches = part.batches([TensorSpec(name="x", dtype="float32", shape=("N", 1))], 9)
    found = [(part.numbers.tolist(), batch["x"][:, 0].tolist()) for batch in batches]
    assert found
    assert all(numbers == values for numbers, values in found)


def test_a_part_s_hash_covers_texts() -> None:
    inputs = [TensorSpec(name="t", dtype="object", shape=("N", 1))]
    hashes = set()
    for text in ("a", "b"):
        part = Part(SampleSource("held", [HeldReader([{"t": np.full((8, 1), text, object)}])]), held=False)
        assert list(part.batches(inputs, 4))
        hashes.add(part.sha256)
    assert len(hashes) == 2


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────


def with_weight(bad: float) -> Net:
    """Two convolutions, so that a tensor behind the bad weight is calibrated."""
    net = Net(x=["N", 32, 4, 4])
    values = np.ones((32, 32, 1, 1), np.float32)
    values[3, 4] = bad
    first = net.node("Conv", "first", "x", net.constant("w", value=values))
    net.conv("y", net.node("Relu", "relu", first), 32, 32)
    return net


@pytest.mark.parametrize(("precision", "bad"), [("int8", np.nan), ("fp8", np.inf)])
def test_a_weight_that_is_not_finite_is_refused_and_no_sample_blamed(
    precision: Precision, bad: float
) -> None:
    with pytest.raises(ModelError, match=rf"weight 'w' of node 'first' is not finite: {bad} at \[3, 4, 0, 0"):
        calibrated(with_weight(bad), images(16), "y", precision=precision)


def test_it_is_where_no_data_runs() -> None:
    model = with_weight(np.nan).model("y")
    plan = place(View(model), PlacementOptions("int8"))
    with pytest.raises(ModelError, match="weight 'w' of node 'first' is not finite"):
        write(as_file(model), plan, Scales(dict.fromkeys(plan.tensors, 1.0)), qdq_format_for("int8", "rtx"))
    check_weight(np.float32([1, np.finfo(np.float32).max]), "w", "n")


@pytest.mark.parametrize(
    ("target", "size", "is_told"), [("rtx", 1e-6, True), ("rtx", 1e-4, False), ("8.6", 1e-6, False)]
)
def test_scales_that_fp16_does_not_hold_are_reported(target: str, size: float, is_told: bool) -> None:
    net = Net(x=["N", 32, 4, 4])
    net.conv("y", net.node("Relu", "relu", "x"), 32, 32)
    x = images(16)
    samples = source(x * np.float32(size / x.max()))
    asked = QuantizationJob("int8", qdq=qdq_format_for("int8", target), source=samples)
    made = quantize_graph(as_file(net.model("y")), asked)
    told = "1 tensors are so small that FP16 does not hold their scales, such as 'relu' (1e-06)"
    assert any(told in note for note in made.notes) == is_told


@pytest.mark.parametrize(
    ("lead", "held", "taken"), [(2.9, 15, "max"), (3.0, 15, "mse"), (0.1, 16, "mse"), (-1.0, 32, "max")]
)
def test_a_method_that_clips_must_be_clearly_better_on_few_samples(
    lead: float, held: int, taken: str
) -> None:
    scores = [MethodScore(method="max", sqnr_db=40.0), MethodScore(method="mse", sqnr_db=40.0 + lead)]
    assert best_of(sorted(scores, key=lambda item: -item.sqnr_db), held, "max") == taken


def test_tensors_of_one_group_share_the_scale_of_the_largest() -> None:
    net = Net(x=["N", 32, 4, 4])
    left, right = (net.conv(name, "x", 32, 32, kernel=1) for name in ("left", "right"))
    for tensor in net._weights:
        if tensor.name.startswith("right"):
            values = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(10), tensor.name))
    net.conv("y", net.node("Concat", "joined", left, right, axis=1), 64, 32)
    made = calibrated(net, images(32), "y")
    assert made.plan.groups == (frozenset({"left", "right", "joined"}),)
    assert made.table is not None
    chosen = {name: made.table.tensors[name].chosen for name in ("left", "right", "joined")}
    assert chosen["left"] < 0.2 * chosen["right"]
    constants = {item.name: item for item in made.model.proto.graph.initializer}
    written = {name: onnx.numpy_helper.to_array(constants[f"{name}_scale"]) for name in chosen}
    assert set(map(float, written.values())) == {float(held_by_half(np.float32(max(chosen.values()) / 127)))}


# ── tables and reports ──────────────────────────────────────────────────────────────────────────────────


def table(chosen: float = 1.0, amax: float = 1.0, divided: float = 2.0) -> CalibrationTable:
    return CalibrationTable(
        model_sha256="",
        data_sha256="",
        random_data=False,
        samples=100,
        method="max",
        tensors={"t": TensorRange(chosen=chosen, amax={"max": amax})},
        smoothed={"s": {3: divided}},
    )


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table(chosen=1e300), r"tensor 't' has amax 1e\+300"),
        (table(amax=3.5e38), r"tensor 't' has amax 3.5e\+38"),
        (table(divided=1e300), r"channel 3 of 's' is divided by 1e\+300"),
        (table(divided=1e-300), "channel 3 of 's' is divided by 1e-300"),
    ],
)
def test_numbers_that_fp32_does_not_hold_are_refused(
    made: CalibrationTable, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_bytes(to_json(made))
    with pytest.raises(ArtifactError, match=message) as caught:
        read_table(tmp_path / "t.json")
    assert "FP32" in caught.value.remedy


def test_the_largest_that_fp32_holds_is_taken(tmp_path: Path) -> None:
    made = table(chosen=float(np.finfo(np.float32).max), amax=0.0)
    (tmp_path / "t.json").write_bytes(to_json(made))
    assert read_table(tmp_path / "t.json") == made


@pytest.mark.parametrize(("count", "are_held"), [(7, False), (8, True)])
def test_only_held_out_samples_score_methods(count: int, are_held: bool) -> None:
    made = calibrated(rooted(), images(count), "y").table
    assert made is not None
    assert (made.samples, made.held) == (count, count // 8)
    assert bool(made.scores) == are_held


def summary(scores: tuple[MethodScore, ...]) -> str:
    return QuantizeReport(
        source="a.onnx",
        out="b.onnx",
        calibration_table=None,
        precision="int8",
        target="rtx",
        method="mse",
        samples=505,
        held=32 if scores else 0,
        compared=8,
        random_data=False,
        pairs=1,
        weights=1,
        decisions=(),
        scores=scores,
        sqnr_db={"y": 40.64},
        seconds=1.0,
    ).table()


def test_the_report_tells_whether_samples_were_held_out() -> None:
    judged = summary((MethodScore(method="mse", sqnr_db=40.0),))
    assert "ranges by mse from 505 samples, 32 of them held out to choose it\n" in judged
    assert "output y: SQNR 40.6 dB against the original on 8 samples\n" in judged
    assert "methods on held-out samples, dB: mse 40.0" in judged
    assert "held" not in summary(())
    assert "ranges by mse from 505 samples\n" in summary(())
