"""`trtopt quantize` and `trtopt build --precision` on models of the oldest opsets and of the newest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtopt
from trtopt.errors import ModelError
from trtopt.onnxio import model_file
from trtopt.precision.compare import open_model
from trtopt.requests.models import QuantizeOptions
from trtopt.targets import target_named
from trtopt.workflows.precision.quantize import quantize

IMAGE = (8, 6, 6)


def between_convolutions(
    folder: Path, opset: int, nodes: Sequence[onnx.NodeProto], *shape: int | str
) -> Path:
    """x → Conv → `nodes`, from a to b → Conv → y of the `shape`; no node has a name."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((8, 8, 3, 3)) * 0.2).astype(np.float32), name)
        for name in ("w1", "w2")
    ]
    weights.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    convolutions = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Conv", ["b", "w2"], ["y"], pads=[1] * 4),
    ]
    graph = helper.make_graph(
        [convolutions[0], *nodes, convolutions[1]],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *IMAGE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", *(shape or IMAGE)])],
        [weight for weight in weights if any(weight.name in node.input for node in (*convolutions, *nodes))],
    )
    ir_version = 7 if opset < 22 else 11
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def _node(op: str, *more: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [helper.make_node(op, ["a", *more], ["b"], **attributes)]


@pytest.fixture
def calib(tmp_path: Path) -> str:
    samples = np.random.default_rng(1).standard_normal((40, *IMAGE)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=samples)
    return str(tmp_path / "x.npz")


_SQUEEZED = [
    helper.make_node("Unsqueeze", ["a"], ["u"], axes=[2]),
    helper.make_node("Squeeze", ["u"], ["b"], axes=[2]),
]


@pytest.mark.parametrize(
    ("opset", "nodes", "shape", "least_db"),
    [
        (10, _node("Resize", "scales", mode="linear"), (8, 12, 12), 30),
        (9, _node("Upsample", "scales", mode="nearest"), (8, 12, 12), 30),
        (10, _node("Resize", "scales", mode="nearest"), (8, 12, 12), 30),
        (9, _node("Clip", min=0.0, max=6.0), (), 30),
        (10, _node("Pad", mode="reflect", pads=[0, 0, 1, 1, 0, 0, 1, 1]), (8, 8, 8), 30),
        (11, _SQUEEZED, (), 30),
        (11, _node("Softmax", axis=1), (), 25),
        (9, _node("LogSoftmax", axis=2), (), 30),
    ],
    ids=["bilinear", "upsample", "nearest", "relu6", "reflect", "squeeze", "softmax", "log-softmax"],
)
@pytest.mark.parametrize("target", ["8.6", "10"])
def test_a_model_of_an_old_opset_computes_what_it_did(
    opset: int,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    least_db: float,
    target: str,
    calib: str,
    tmp_path: Path,
) -> None:
    source = between_convolutions(tmp_path, opset, nodes, *shape)
    quantize(source, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target=target, data=calib))
    feed = {"x": np.load(calib)["x"][:8]}
    exact, found = (
        open_model(model_file.load(path)).run(feed)["y"] for path in (source, tmp_path / "q.onnx")
    )
    assert np.square(found - exact).sum() <= np.square(exact).sum() * 10 ** (-least_db / 10)
    onnx.checker.check_model(tmp_path / "q.onnx", full_check=True)


def test_one_hot_of_the_largest_stays_one_hot(calib: str, tmp_path: Path) -> None:
    """Over all channels and pixels, as before opset 13: quantisation may move it, but not add another."""
    soft = [helper.make_node("Hardmax", ["a"], ["h"], axis=1), helper.make_node("Identity", ["h"], ["b"])]
    source = between_convolutions(tmp_path, 12, soft)
    model = onnx.load(source)
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", *IMAGE]))
    onnx.save(model, source)
    quantize(source, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="10", data=calib))
    found = open_model(model_file.load(tmp_path / "q.onnx")).run({"x": np.load(calib)["x"][:8]})["h"]
    assert found.reshape(8, -1).sum(1).tolist() == [1] * 8


def test_what_has_no_newer_form_is_refused_with_its_name(calib: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Resize", ["a", "half"], ["b"], mode="nearest", name="mixed"),
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(
            np.array([1, 1, 2, 0.5], np.float32))),
    ]  # fmt: skip
    source = between_convolutions(tmp_path, 10, nodes[::-1], 8, 12, 3)
    with pytest.raises(ModelError, match=r"node 'mixed' .Resize. shrinks one axis and enlarges another"):
        quantize(source, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="10", data=calib))
    assert not (tmp_path / "q.onnx").exists()


def test_tensorrt_rtx_takes_int8_at_every_opset_that_it_builds(calib: str, tmp_path: Path) -> None:
    newest = target_named("rtx").loaded_opset
    source = between_convolutions(tmp_path, newest, _node("Relu"))
    for name, more in (("plain", {}), ("int8", {"precision": "int8", "data": calib})):
        manifest = trtopt.build(source, tmp_path / name, backend="tensorrt-rtx", **more)
        assert len(manifest.engines) == 1
    model = onnx.load(source)
    model.opset_import[0].version = newest + 1
    onnx.save(model, source)
    for name, more in (("plain", {}), ("int8", {"precision": "int8", "data": calib})):
        with pytest.raises(ModelError, match=f"opset {newest + 1} is newer than"):
            trtopt.build(source, tmp_path / name, backend="tensorrt-rtx", force=True, **more)


@pytest.mark.parametrize("target", ["10", "11", "rtx"])
def test_quantize_takes_the_newest_opset_that_the_target_reads(
    target: str, calib: str, tmp_path: Path
) -> None:
    source = between_convolutions(tmp_path, target_named(target).loaded_opset, _node("Relu"))
    quantize(source, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target=target, data=calib))
