import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.support import examples
from tests.support.trt_exercise import DIGITS, builder
from tests.support.trt_surface import Surface
from trtopt.builder.engine import BuildJob, build_engine
from trtopt.errors import ArtifactError, BuildError, WrongPathError
from trtopt.files.manifests import hashes_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import Backend, BuildPlan, BuildSettings, Manifest, PrecisionReceipt, ShapeRange
from trtopt.report.profile import receipt_blocks
from trtopt.report.view import Table
from trtopt.workflows.build.folder import check_receipts, receipts_of, verified_graphs
from trtopt.workflows.workbench import MODEL_FILE

HEAVY, LIGHT = 64, 8


def folder_of(path: Path, *layers: dict[str, object] | str) -> Manifest:
    """Two half-precision convolutions, `first` with most of the weights, and what the inspector says."""
    weights = [
        numpy_helper.from_array(np.zeros((HEAVY, HEAVY, 3, 3), np.float16), "w1"),
        numpy_helper.from_array(np.zeros((LIGHT, HEAVY, 1, 1), np.float16), "w2"),
    ]
    half = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
            helper.make_node("Conv", ["a", "w2"], ["y"], name="second"),
        ],
        "graph",
        [helper.make_tensor_value_info("x", half, ["N", HEAVY, 8, 8])],
        [helper.make_tensor_value_info("y", half, ["N", LIGHT, "h", "w"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path / MODEL_FILE))
    (path / "batch8.layers.json").write_text(json.dumps({"Layers": layers}), encoding="utf-8")
    shape = ShapeRange(min=(8, HEAVY, 8, 8), opt=(8, HEAVY, 8, 8), max=(8, HEAVY, 8, 8))
    plan = msgspec.structs.replace(examples.plan(), shapes={"x": shape})
    engine = msgspec.structs.replace(examples.engine(), plan=plan, layers="batch8.layers.json")
    onnx_file = read_onnx(path / MODEL_FILE)
    return msgspec.structs.replace(
        examples.manifest(), onnx=onnx_file, engines=(engine,), files=hashes_of(path)
    )


def ran(name: str, dtype: str, count: int) -> dict[str, object]:
    return {"Name": name, "LayerType": "CaskConvolution", "Weights": {"Type": dtype, "Count": count}}


FIRST, SECOND = HEAVY * HEAVY * 9, LIGHT * HEAVY


def test_what_ran_as_asked_passes(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, ran("first", "Half", FIRST), ran("second", "Half", SECOND))
    receipts = receipts_of(tmp_path, manifest)
    assert receipts["batch8.engine"].weights_ran == {"float16": 1.0}
    assert receipts["batch8.engine"].weights_requested == {"float16": 1.0}
    assert receipts["batch8.engine"].time_ran is None
    check_receipts(receipts)


def test_precision_that_did_not_happen_fails_the_build_with_the_layer(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, ran("first", "Float", FIRST), ran("second", "Half", SECOND))
    receipts = receipts_of(tmp_path, manifest)
    with pytest.raises(
        BuildError, match=r"98\.6% of the weights .*'first' in float32 instead of float16"
    ) as caught:
        check_receipts(receipts)
    assert "--allow-fallback" in caught.value.remedy
    assert caught.value.exit_code == 1


def test_layers_that_tensorrt_8_6_chose_to_run_in_fp32_are_reported_and_fail_nothing(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, ran("first", "Half", FIRST), ran("second", "Float", SECOND))
    with pytest.raises(BuildError, match=r"1\.4% of the weights"):
        check_receipts(receipts_of(tmp_path, manifest))
    (engine,) = manifest.engines
    backend = Backend(name="tensorrt", version="8.6.0")
    weak = msgspec.structs.replace(engine, plan=msgspec.structs.replace(engine.plan, backend=backend))
    receipts = receipts_of(tmp_path, msgspec.structs.replace(manifest, engines=(weak,)))
    check_receipts(receipts)
    (wider,) = (one for one in receipt_blocks(receipts["batch8.engine"]) if isinstance(one, Table))
    assert wider.title == "1 of 2 layers ran in a wider type than requested"
    ((layer, *types, weights, _, how),) = wider.rows
    assert (layer, types, how) == ("second", ["float16", "float32"], "chosen by timing")
    assert weights == pytest.approx(0.014, abs=5e-4)


def fallen_back(share: float) -> dict[str, PrecisionReceipt]:
    fallback = {
        "layer": "l",
        "requested": "int8",
        "ran": "float16",
        "share_of_time": None,
        "share_of_weights": share,
    }
    told = {"time_ran": None, "weights_ran": {}, "weights_requested": {}, "fallbacks": [fallback]}
    return {"e": msgspec.convert(told, PrecisionReceipt)}


def test_a_hundredth_of_the_weights_may_run_wider() -> None:
    check_receipts(fallen_back(0.01))
    with pytest.raises(BuildError, match=r"1\.1% of the weights"):
        check_receipts(fallen_back(0.011))


def test_what_was_measured_to_be_the_fastest_is_told_and_not_refused() -> None:
    (told,) = check_receipts(fallen_back(0.011), was_measured=True)
    assert "1.1% of the weights run in a wider type" in told
    assert check_receipts(fallen_back(0.01), was_measured=True) == ()


def test_engines_that_tell_no_types_have_no_receipt_or_an_unknown_one(tmp_path: Path) -> None:
    manifest = folder_of(tmp_path, "first", "second")
    assert receipts_of(tmp_path, manifest) == {}
    bare = msgspec.structs.replace(manifest.engines[0], layers=None)
    assert receipts_of(tmp_path, msgspec.structs.replace(manifest, engines=(bare,))) == {}
    opaque = {"Name": "{ForeignNode[first...second]}", "LayerType": "Myelin"}
    receipts = receipts_of(tmp_path, folder_of(tmp_path, opaque))
    assert receipts["batch8.engine"].weights_ran == {"unknown": 1.0}
    assert receipts["batch8.engine"].weights_requested == {"float16": 1.0}
    check_receipts(receipts)


@pytest.mark.parametrize(("told", "file"), [('{"Layers": []}', "batch4.layers.json"), ("", None)])
def test_a_build_keeps_what_the_inspector_says_next_to_the_engine(
    tmp_path: Path, told: str, file: str | None
) -> None:
    by = builder(Surface("tensorrt-8.6.0", {"EngineInspector.get_engine_information": told}))
    plan = BuildPlan(
        onnx_sha256="0" * 64,
        batch=ShapeRange(min=(4,), opt=(4,), max=(4,)),
        shapes={"images": ShapeRange(min=(4, 1, 8, 8), opt=(4, 1, 8, 8), max=(4, 1, 8, 8))},
        settings=BuildSettings(),
        backend=by.backend,
    )
    job = BuildJob(onnx=str(DIGITS), types=("float32",), plan=plan, folder=str(tmp_path), timing_cache=None)
    built = build_engine(by, job, lambda phase, fraction: None)
    assert built.layers == file
    assert [path.read_text() for path in tmp_path.glob("*.layers.json")] == ([told] if file else [])


def test_graphs_that_are_gone_or_others_are_damage_of_the_folder(tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(folder_of(tmp_path), graphs=())
    assert verified_graphs(tmp_path, manifest) == [manifest.onnx]
    for change in (
        lambda file: file.write_bytes(DIGITS.read_bytes()),
        lambda file: file.write_bytes(b"damaged"),
        Path.unlink,
    ):
        change(tmp_path / MODEL_FILE)
        with pytest.raises(ArtifactError) as caught:
            verified_graphs(tmp_path, manifest)
        assert not isinstance(caught.value, WrongPathError)  # another path is no remedy
    for name in ("x" * 300, "a\0b"):
        told = msgspec.structs.replace(manifest.onnx, path=name)
        with pytest.raises(ArtifactError):
            verified_graphs(tmp_path, msgspec.structs.replace(manifest, onnx=told))
