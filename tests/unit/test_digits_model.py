import re

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from tests.support.paths import ROOT

DIGITS = ROOT / "models" / "digits"
MODEL = DIGITS / "digits.onnx"
BATCH_SIZES = (1, 32, 540)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(MODEL)


@pytest.fixture(scope="module")
def heldout() -> tuple[FloatArray, IntArray]:
    with np.load(DIGITS / "heldout.npz", allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


@pytest.fixture(scope="module")
def predictions(heldout: tuple[FloatArray, IntArray]) -> dict[int, IntArray]:
    """The predicted class of every held-out image, by the batch size it was run with."""
    images, _ = heldout
    session = ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])

    def predict(batch_size: int) -> IntArray:
        starts = range(0, len(images), batch_size)
        batches = [session.run(["logits"], {"images": images[i : i + batch_size]})[0] for i in starts]
        return np.asarray(np.concatenate(batches).argmax(axis=1), dtype=np.int64)

    return {batch_size: predict(batch_size) for batch_size in BATCH_SIZES}


def stated(measure: str) -> str:
    """The value that the README's table gives for a measure."""
    rows = re.findall(rf"^\| {measure} \| (.+) \|$", (DIGITS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 1, f"the README states {measure} {len(rows)} times"
    return str(rows[0])


def axes(value: onnx.ValueInfoProto) -> list[int | str]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def test_the_model_file_is_under_one_megabyte() -> None:
    assert MODEL.stat().st_size < 1_000_000


def test_the_model_passes_the_onnx_checker_with_its_shapes(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)


def test_the_opset_and_ir_version_are_old_enough_for_tensorrt_8_6(model: onnx.ModelProto) -> None:
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert model.ir_version <= 8


def test_the_weights_are_inside_the_model_file() -> None:
    weights = onnx.load(MODEL, load_external_data=False).graph.initializer
    assert weights
    assert [weight.name for weight in weights if weight.data_location == onnx.TensorProto.EXTERNAL] == []


def test_the_batch_axis_is_dynamic_and_named(model: onnx.ModelProto) -> None:
    shapes = {value.name: axes(value) for value in [*model.graph.input, *model.graph.output]}
    assert shapes == {"images": ["batch", 1, 8, 8], "logits": ["batch", 10]}


def test_the_input_and_output_are_float32(model: onnx.ModelProto) -> None:
    types = {value.type.tensor_type.elem_type for value in [*model.graph.input, *model.graph.output]}
    assert types == {onnx.TensorProto.FLOAT}


def test_the_batch_norms_are_folded_into_the_convolutions(model: onnx.ModelProto) -> None:
    operators = {node.op_type for node in model.graph.node}
    assert operators == {"Conv", "Relu", "Add", "GlobalAveragePool", "Flatten", "Gemm"}


def test_the_heldout_images_load_without_pickles() -> None:
    with np.load(DIGITS / "heldout.npz", allow_pickle=False) as arrays:
        found = {name: (arrays[name].dtype.name, arrays[name].shape) for name in arrays.files}
    assert found == {"images": ("float32", (540, 1, 8, 8)), "labels": ("int64", (540,))}


def test_the_heldout_images_hold_pixels_from_zero_to_one_and_every_class(
    heldout: tuple[FloatArray, IntArray],
) -> None:
    images, labels = heldout
    assert (images.min(), images.max()) == (0.0, 1.0)
    # A stratified split of nearly balanced classes leaves each with about 54 images.
    counts = np.bincount(labels, minlength=10)
    assert len(counts) == 10
    assert counts.min() >= 50


def test_onnx_runtime_gets_exactly_as_many_heldout_images_right_as_the_readme_states(
    heldout: tuple[FloatArray, IntArray], predictions: dict[int, IntArray]
) -> None:
    _, labels = heldout
    correct = int((predictions[len(labels)] == labels).sum())
    assert f"{correct} of {len(labels)}" == stated("Correct")
    assert f"{correct / len(labels):.2%}" == stated("Accuracy")


def test_the_accuracy_is_at_least_99_percent(
    heldout: tuple[FloatArray, IntArray], predictions: dict[int, IntArray]
) -> None:
    _, labels = heldout
    assert np.mean(predictions[len(labels)] == labels) >= 0.99


def test_the_model_has_as_many_parameters_as_the_readme_states(model: onnx.ModelProto) -> None:
    parameters = sum(int(np.prod(weight.dims)) for weight in model.graph.initializer)
    assert str(parameters) == stated("Parameters")


@pytest.mark.parametrize("batch_size", [1, 32])
def test_the_predictions_do_not_depend_on_the_batch_size(
    predictions: dict[int, IntArray], batch_size: int
) -> None:
    np.testing.assert_array_equal(predictions[batch_size], predictions[540])
