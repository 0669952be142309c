"""Real builds and runs on a machine with no GPU: TensorRT-RTX builds, ONNX Runtime builds and runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
import pytest

from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from tests.support.schemas import problems_of, record_of
from tests.support.selection_builds import TRANSFORMER


@pytest.fixture
def trtopt_cli(tmp_path: Path) -> CommandLine:
    """The command line in an empty folder."""
    return CommandLine(tmp_path)


@pytest.fixture(autouse=True)
def _result_files_keep_to_their_schemas(tmp_path: Path) -> Iterator[None]:
    """Every result file that a test leaves and trtopt reads has the form that is published."""
    yield
    for place in filter(Path.is_file, tmp_path.rglob("*.json")):
        if (kind := record_of(text := place.read_bytes())) is not None:
            assert problems_of(text) == [], f"{place} is no {kind.__name__}"


@pytest.fixture(scope="session")
def rtx_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model built by TensorRT-RTX for batches 1 and 8."""
    import trtopt

    folder = tmp_path_factory.mktemp("rtx") / "digits"
    trtopt.build(DIGITS, folder, batch=(1, 8), backend="tensorrt-rtx")
    return folder


@pytest.fixture(scope="session")
def cpu_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model prepared by ONNX Runtime for batches 1 and 8."""
    import trtopt

    folder = tmp_path_factory.mktemp("ort") / "digits"
    trtopt.build(DIGITS, folder, batch=(1, 8), backend="onnxruntime")
    return folder


@pytest.fixture(scope="session")
def right() -> np.ndarray:
    """What the digits model answers to the held-out images, by ONNX Runtime itself."""
    session = onnxruntime.InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"images": np.load(HELDOUT)["images"]})[0])


def _save(
    path: Path, inputs: list[onnx.ValueInfoProto], nodes: list[onnx.NodeProto], **weights: np.ndarray
) -> Path:
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(
        nodes, "g", inputs, [output], [onnx.numpy_helper.from_array(w, name) for name, w in weights.items()]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
    return path


def _input(shape: list[int | str]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)


@pytest.fixture
def fixed_batch_model(tmp_path: Path) -> Path:
    """Relu with its batch fixed at 4."""
    (tmp_path / "models").mkdir(exist_ok=True)
    return _save(
        tmp_path / "models" / "fixed.onnx", [_input([4, 8])], [onnx.helper.make_node("Relu", ["x"], ["y"])]
    )


@pytest.fixture
def sequence_model(tmp_path: Path) -> Path:
    """Relu over [batch, length, 8]."""
    (tmp_path / "models").mkdir(exist_ok=True)
    return _save(
        tmp_path / "models" / "sequence.onnx",
        [_input(["batch", "length", 8])],
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
    )


@pytest.fixture
def external_model(tmp_path: Path) -> Path:
    """A MatMul whose weights lie in weights.bin."""
    folder = tmp_path / "models"
    folder.mkdir(exist_ok=True)
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    path = _save(
        folder / "inline.onnx",
        [_input(["batch", 64])],
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        w=weights,
    )
    model = onnx.load(str(path))
    path.unlink()
    onnx.save(
        model,
        str(folder / "external.onnx"),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return folder / "external.onnx"


@pytest.fixture(scope="session")
def calib(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Samples of both digits models, by model."""
    folder = tmp_path_factory.mktemp("calibration")
    for model, key in ((DIGITS, "images"), (TRANSFORMER, "tokens")):
        with np.load(model.with_name("heldout.npz")) as file:
            np.savez(folder / f"{key}.npz", **{key: file[key][:32]})
    return {DIGITS: str(folder / "images.npz"), TRANSFORMER: str(folder / "tokens.npz")}
