from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.inspected import profiled
from tests.support.scripted_device.device import Script, ScriptedDevice
from trtopt.errors import ArtifactError, DeviceError, DeviceMemoryError
from trtopt.inspect.costs import matrix_peak, peaks_of, together
from trtopt.measure.loop.profiling_passes import copy_bandwidth
from trtopt.records import DeviceInfo, DevicePeaks, LayerCost, MeasuredPeaks, Peak, ProfiledLayer, to_json
from trtopt.workflows.profile.peaks import known_peaks, product

NAMES = (
    "NVIDIA H200",
    "nvidia h100 80gb hbm3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "NVIDIA L40S",
    "Tesla T4",
)

# ── data sheets ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_the_table_names_its_data_sheet_and_its_order_is_that_of_widths(name: str) -> None:
    peaks = peaks_of(name)
    assert peaks is not None
    assert all("Datasheet" in peak.source for peak in (peaks.bandwidth, *peaks.flops.values()))
    rates = [peaks.flops[dtype].value for dtype in ("float32", "float16", "int8")]
    assert rates == sorted(rates)


def test_what_was_measured_goes_before_the_data_sheet_which_fills_in_the_rest() -> None:
    sheet = peaks_of("NVIDIA H200")
    assert sheet is not None
    measured = DevicePeaks(
        device="NVIDIA H200",
        bandwidth=Peak(value=4e12, source="measured"),
        flops={"float16": Peak(value=7e14, source="measured")},
    )
    both = together(measured, sheet)
    assert both is not None
    assert both.bandwidth == measured.bandwidth
    assert both.flops["float16"] == measured.flops["float16"]
    assert both.flops["int8"] == sheet.flops["int8"]
    assert (together(None, sheet), together(measured, None), together(None, None)) == (sheet, measured, None)


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_counts_bytes_read_and_bytes_written() -> None:
    device = ScriptedDevice(Script(d2d_ms=0.5))
    assert copy_bandwidth(device, 1_000_000) == pytest.approx(2 * 1_000_000 / 0.5e-3)
    assert device.calls.count("copy_on_device") == 23
    assert (device.open, device.used) == (0, 0)


@pytest.mark.parametrize("script", [Script(memory_bytes=1500), Script(fail_at=("copy_on_device", 5))])
def test_a_copy_that_fails_gives_everything_back(script: Script) -> None:
    device = ScriptedDevice(script)
    with pytest.raises((DeviceMemoryError, DeviceError)):
        copy_bandwidth(device, 1000)
    assert (device.open, device.used) == (0, 0)


# ── products ────────────────────────────────────────────────────────────────────────────────────────────


def layer(
    name: str, onnx_ops: str, ms: float | None, dtype: str = "float16", **rest: object
) -> ProfiledLayer:
    cost = LayerCost(flops=10**9, bytes_moved=1)
    return profiled(name, onnx_ops, ms=ms, dtype=dtype, cost=cost, **rest)


def test_the_rate_is_that_of_the_layer_that_holds_the_product() -> None:
    layers = [
        layer("quantise", "QuantizeLinear", 9.0),
        layer("reshape", "MatMul", 0.1),
        layer("Reformat", "MatMul", 8.0, is_reformat=True),
        layer("product", "MatMul", 2.0, tactic="hopper_gemm"),
    ]
    assert matrix_peak(layers, "float16", "measured") == Peak(value=5e11, source="measured (hopper_gemm)")


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ([layer("other", "Conv", 1.0)], "no layer covers the product"),
        ([layer("product", "MatMul", None)], "no layer covers the product"),
        ([layer("product", "MatMul", 1.0, "float32")], "the product ran in float32"),
        ([profiled("product", "MatMul", dtype="")], "the product's operations are not known"),
    ],
)
def test_a_product_that_did_not_run_as_asked_tells_why_it_gives_no_rate(
    layers: list[ProfiledLayer], told: str
) -> None:
    assert matrix_peak(layers, "float16", "measured") == told


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_a_probes_model_is_valid_and_its_weights_are_of_the_type(dtype: str) -> None:
    model = product(dtype, 64)
    onnx.checker.check_model(model, full_check=True)
    weights = numpy_helper.to_array(model.graph.initializer[0])
    assert (weights.dtype.name, weights.shape) == (dtype, (64, 64))
    assert np.unique(weights.astype(np.float32)).size > 30
    ops = [node.op_type for node in model.graph.node]
    assert ops == (
        ["QuantizeLinear", *["DequantizeLinear"] * 2, "MatMul"] if weights.itemsize == 1 else ["MatMul"]
    )


# ── the cache ───────────────────────────────────────────────────────────────────────────────────────────


def test_peaks_are_kept_by_uuid_and_a_damaged_file_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gpu = DeviceInfo(kind="gpu", name="NVIDIA L4", uuid="GPU-1")
    assert known_peaks(gpu) == peaks_of("NVIDIA L4")
    found = DevicePeaks(device="NVIDIA L4", bandwidth=Peak(value=1.0, source="here"), flops={})
    file = tmp_path / "trtopt" / "peaks" / "GPU-1.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(to_json(MeasuredPeaks(created="", uuid="GPU-1", peaks=found)))
    known = known_peaks(gpu)
    assert known is not None
    assert known.bandwidth == found.bandwidth
    assert known_peaks(DeviceInfo(kind="gpu", name="NVIDIA L4", uuid="GPU-2")) == peaks_of("NVIDIA L4")
    assert known_peaks(DeviceInfo(kind="cpu", name="a processor")) is None
    file.write_text("{")
    with pytest.raises(ArtifactError, match="cannot be read as measured peaks") as caught:
        known_peaks(gpu)
    assert "--probe-peaks" in caught.value.remedy
