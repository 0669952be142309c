"""Typed inputs and outputs from the command line's workflows to engines of TensorRT-RTX and a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtopt
from tests.support.long import few
from tests.support.paths import ROOT
from trtopt.device.api import BuildInput
from trtopt.device.backends import open_builder
from trtopt.errors import DataError, UsageError
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records.tensors import TYPES
from trtopt.report.build import build_view
from trtopt.report.view import Table
from trtopt.serving import EnginePool
from trtopt.targets import RTX, target_of
from trtopt.workflows.listener import Listener
from trtopt.workflows.workbench import make_plans

PIXELS = "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions of an image [N, 3, 16, 16]."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.2, name)
        for name, shape in (("w", (16, 3, 3, 3)), ("v", (16, 16, 3, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], name="second", pads=[1] * 4),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16, 16, 16])],
        weights,
    )
    path = tmp_path_factory.mktemp("typed") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def samples(model: Path) -> Path:
    file = model.with_name("samples.npz")
    np.savez(file, x=np.random.default_rng(1).standard_normal((32, 3, 16, 16)).astype(np.float32))
    return file


@pytest.fixture(scope="module")
def int8(model: Path, samples: Path) -> Path:
    """The model quantised, its input INT8."""
    out = model.with_name("int8.onnx")
    trtopt.quantize(model, out, precision="int8", data=samples, target="rtx", io={"x": "int8"})
    return out


def test_tensorrt_rtx_builds_every_pair_of_its_row(model: Path, int8: Path, tmp_path: Path) -> None:
    builder = open_builder(RTX)
    short = {dtype: name for name, dtype in TYPES.items()}
    for dtype, layouts in target_of(builder.backend).io_formats.items():
        file = int8
        if dtype != "int8":
            file = tmp_path / f"{dtype}.onnx"
            trtopt.rewrite(model, file, target="rtx", io={"x": short[dtype]}, check=False)
        onnx_file = read_onnx(file)
        assert onnx_file.inputs[0].dtype == dtype
        for layout in ("nchw", *layouts):
            recipe = Recipe(batch=(2,), io={"x": f"{short[dtype]}:{layout}"})
            (plan,) = make_plans(onnx_file, recipe, builder.backend)
            built = builder.build(
                BuildInput(file, onnx_file.types, plan, None),
                progress=lambda phase, fraction: None,
                log=lambda severity, message: None,
            )
            assert built.config.get("io_formats", "") == (f"x:{layout.upper()}" if layout in layouts else "")
            assert built.inputs[0].dtype == dtype


def test_a_pixel_input_is_built_with_its_normalisation_and_serves(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pixels"
    manifest = trtopt.build(
        model, folder, batch=4, io={"x": "uint8:nhwc"}, normalize={"x": PIXELS}, backend="onnxruntime"
    )
    assert [(one.dtype, one.layout, one.mean) for one in manifest.io] == [
        ("uint8", "nhwc", (123.7, 116.3, 103.5))
    ]
    assert manifest.source_sha256 == read_onnx(model).sha256
    pixels = np.random.default_rng(2).integers(0, 256, (4, 16, 16, 3), np.uint8)
    with EnginePool.open(folder) as pool:
        served = pool.run({"x": trtopt.pack(folder, pixels)})["y"]
    mean, std = np.array([123.7, 116.3, 103.5]), np.array([58.4, 57.1, 57.4])
    plain = tmp_path / "plain"
    trtopt.build(model, plain, batch=4, backend="onnxruntime")
    with EnginePool.open(plain) as pool:
        floats = ((pixels - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
        wanted = pool.run({"x": np.ascontiguousarray(floats)})["y"]
    np.testing.assert_allclose(served, wanted, atol=1e-4 * np.abs(wanted).max())
    assert trtopt.check(folder, model).subjects[0].outputs[0].sqnr_db > 80
    with pytest.raises(DataError, match="type float32 does not fit uint8"):
        trtopt.pack(folder, pixels.astype(np.float32))
    for dtype in ("float32", "int64"):  # astype would cut off or wrap around
        with EnginePool.open(folder) as pool, pytest.raises(DataError, match=f"has type {dtype}") as caught:
            pool.run({"x": pixels.astype(dtype)})
        assert "raw pixels" in caught.value.remedy


def test_real_samples_of_the_new_input_take_part_in_the_build_s_check(model: Path, tmp_path: Path) -> None:
    pixels = tmp_path / "pixels.npz"
    np.savez(pixels, x=np.random.default_rng(4).integers(0, 256, (4, 16, 16, 3), np.uint8))
    io = {"x": "uint8:nhwc"}
    manifest = trtopt.build(
        model, tmp_path / "out", io=io, precision="fp16", data=pixels, backend="onnxruntime"
    )
    assert any("verified on 3 inputs" in note for note in manifest.notes)


def test_an_int8_input_keeps_its_scale_in_the_manifest_for_pack(
    model: Path, samples: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "int8"
    manifest = trtopt.build(
        model, folder, batch=4, precision="int8", data=samples, io={"x": "int8:hwc16"}, backend=RTX
    )
    (tensor,) = manifest.io
    image = np.load(samples)["x"][:4]
    packed = trtopt.pack(folder, image, saturate=True)
    assert (packed.dtype, packed.shape) == (np.dtype(np.int8), (4, 16, 16, 16))
    assert tensor.scale is not None
    levels = np.clip(np.rint(image / np.float32(tensor.scale)), -128, 127)
    np.testing.assert_array_equal(packed[..., :3].transpose(0, 3, 1, 2), levels)
    assert manifest.engines[0].plan.io_layouts == {"x": "hwc16"}


@pytest.mark.parametrize("seed", [0, 3])  # FP16 rounds in other places once the Q is gone: levels flip
def test_an_int8_input_of_a_trained_model_in_fp16_is_verified_to_the_bit(seed: int, tmp_path: Path) -> None:
    images = np.load(ROOT / "models/digits/heldout.npz")["images"]
    np.savez(tmp_path / "data.npz", images=images[np.random.default_rng(seed).permutation(len(images))[:128]])
    report = trtopt.quantize(
        ROOT / "models/digits/digits.onnx",
        tmp_path / "int8.onnx",
        precision="int8",
        data=tmp_path / "data.npz",
        target="10",
        io={"images": "int8"},
    )
    assert "inputs and outputs verified on 3 inputs: largest error 0" in report.notes


def test_a_format_that_the_backend_does_not_have_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no uint8 in chw4"):
        trtopt.build(model, tmp_path / "out", io={"x": "uint8:chw4"}, backend=RTX)
    with pytest.raises(UsageError, match="ONNX cannot express"):
        trtopt.build(model, tmp_path / "out", io={"x": "fp16:hwc8"}, backend="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_int8_of_an_int8_input_is_built_as_it_is_for_no_float_graph_has_its_scale(
    model: Path, samples: Path, tmp_path: Path
) -> None:
    folder, image = tmp_path / "out", np.load(samples)["x"][:2]
    given: dict[str, Any] = {"batch": 2, "io": {"x": "int8"}, "data": str(samples), "backend": "onnxruntime"}
    manifest = trtopt.build(model, folder, precision="int8", **given)
    assert manifest.verdict is None
    assert any("not measured against fp16: 'x' exchanges INT8" in note for note in manifest.notes)
    assert [spec.dtype for spec in manifest.onnx.inputs] == ["int8"]
    with EnginePool.open(folder) as pool:
        int8 = pool.run({"x": trtopt.pack(folder, image, saturate=True)})["y"]
    trtopt.build(model, tmp_path / "float", batch=2, backend="onnxruntime")
    with EnginePool.open(tmp_path / "float") as pool:
        exact = pool.run({"x": image})["y"]
    assert 0 < np.abs(exact - int8).max() < 0.1 * np.abs(exact).max()
    with pytest.raises(UsageError, match=r"chooses by measuring.*'x' exchanges INT8"):
        trtopt.build(model, tmp_path / "best", precision="best", **given)


@pytest.mark.parametrize(
    ("io", "precision"),
    few(
        ("uint8:nhwc", None),
        ("int8", "int8"),
        of=[("uint8:nhwc", None), ("int8", "int8"), ("fp16", "int8"), ("fp32:nhwc", None)],
    ),
)
def test_a_typed_file_is_checked_against_its_original_and_keeps_what_its_inputs_are(
    io: str, precision: str | None, model: Path, samples: Path, tmp_path: Path
) -> None:
    typed, pixels = tmp_path / "typed.onnx", io == "uint8:nhwc"
    normalize = {"x": PIXELS} if pixels else None
    if precision is None:
        trtopt.rewrite(model, typed, target="rtx", io={"x": io}, normalize=normalize)
    else:
        trtopt.quantize(model, typed, precision=precision, random_data=True, target="rtx", io={"x": io})
    (output,) = trtopt.check(typed, model).subjects[0].outputs
    least = 15 if precision else 80
    assert output.sqnr_db is None or output.sqnr_db > least  # None: equal
    if io == "int8":
        floats = np.load(samples)["x"][:2]
        packed = trtopt.pack(typed, floats, saturate=True)
        np.testing.assert_array_equal(
            packed, trtopt.pack(trtopt.build(typed, tmp_path / "b", backend=RTX), floats, saturate=True)
        )
    (output,) = trtopt.check(typed, typed).subjects[0].outputs
    assert output.max_abs == 0
    manifest = trtopt.build(typed, tmp_path / "out", batch=2, backend="onnxruntime")
    (tensor,) = manifest.io
    assert (tensor.dtype, tensor.mean != (), tensor.scale is not None) == (
        TYPES[io.partition(":")[0]],
        pixels,
        io == "int8",
    )
    (output,) = trtopt.check(tmp_path / "out", model).subjects[0].outputs
    assert output.sqnr_db is None or output.sqnr_db > least


def test_a_typed_file_gets_a_vectorised_format_and_keeps_its_scale(int8: Path, tmp_path: Path) -> None:
    manifest = trtopt.build(int8, tmp_path / "out", batch=2, backend=RTX, io={"x": "int8:chw4"})
    (tensor,) = manifest.io
    assert (tensor.layout, tensor.model_dtype) == ("chw4", "float32")
    assert tensor.scale
    assert trtopt.pack(manifest, np.zeros((2, 3, 16, 16), np.float32)).shape == (2, 1, 16, 16, 4)
    blocks = [block for block in build_view(manifest, "b").blocks if isinstance(block, Table)]
    (row,) = next(block.rows for block in blocks if block.title == "Typed inputs and outputs")
    assert row == ["x", "input", "int8", "chw4", "float32", str(tensor.scale)]


@pytest.mark.long
def test_a_sweep_and_builds_that_exchange_int8_calibrate_on_floats_and_measure(
    model: Path, samples: Path, tmp_path: Path
) -> None:
    noted: list[str] = []
    swept = trtopt.sweep(
        model,
        tmp_path / "s",
        batch=2,
        precision="int8",
        io={"x": "int8"},
        data=samples,
        duration=0.1,
        warmup=0.01,
        backend="onnxruntime",
        listener=Listener(note=noted.append),
    )
    assert [point.failure for point in swept.points] == [None]
    assert swept.terms.data is None
    assert noted.count("times are taken on random input, as the data is not quantised") == 1
