"""`trtopt build` on bad input: a message, a status, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from tests.support.command_line import DIGITS, CommandLine, needs_no_tensorrt
from trtopt.device.api import BuildInput
from trtopt.device.backends import open_builder
from trtopt.errors import BuildError
from trtopt.records import BuildPlan, BuildSettings, ShapeRange


def _broken(folder: Path, change: str) -> Path:
    """The digits model, broken in one way."""
    path = folder / "model.onnx"
    content = DIGITS.read_bytes()
    model = onnx.load_from_string(content)
    if change == "text":
        content = b"this is not a model\n" * 100
    elif change == "empty file":
        content = b""
    elif change == "truncated":
        content = content[: len(content) // 2]
    else:
        if change == "empty graph":
            model.graph.ClearField("node")
        elif change == "unknown op":
            model.graph.node[3].op_type = "Frobnicate"
        elif change == "opset":
            model.opset_import[0].version = 99
        elif change == "duplicate names":
            model.graph.node[1].output[0] = model.graph.node[0].output[0]
        elif change == "missing weights":
            model.graph.initializer[0].ClearField("raw_data")
            model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
            entry = model.graph.initializer[0].external_data.add()
            entry.key, entry.value = "location", "weights.bin"
        content = model.SerializeToString()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("backend", ["tensorrt-rtx", "onnxruntime"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("text", "not an ONNX file, or cut short"),
        ("empty file", "the file is empty"),
        ("truncated", "not an ONNX file, or cut short"),
        ("empty graph", "no nodes or no outputs"),
        ("unknown op", "operator 'Frobnicate' (node '"),
        ("opset", "opset 99"),
        ("duplicate names", "given to more than one tensor"),
        ("missing weights", "weights file 'weights.bin' is missing"),
    ],
)
def test_a_broken_model_is_named_with_its_fault(
    trtopt_cli: CommandLine, change: str, message: str, backend: str
) -> None:
    model = _broken(trtopt_cli.folder, change)
    told = trtopt_cli.fails(1, "build", model, "--backend", backend)
    assert message in told
    assert "→" in told


@pytest.mark.parametrize("backend", ["tensorrt-rtx", "onnxruntime"])
def test_an_operator_of_a_foreign_domain_is_named_with_its_node_by_either_backend(
    trtopt_cli: CommandLine, backend: str
) -> None:
    model = onnx.load(str(DIGITS))
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    model.graph.node[3].op_type, model.graph.node[3].domain = "Frobnicate", "my.domain"
    onnx.save(model, str(trtopt_cli.folder / "model.onnx"))
    told = trtopt_cli.fails(1, "build", "model.onnx", "--backend", backend)
    assert "Frobnicate" in told
    assert repr(model.graph.node[3].name) in told


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere.onnx"], 2, "does not exist"),
        ([DIGITS, "--batch", "0"], 2, "whole numbers from 1 on"),
        ([DIGITS, "--shape", "images"], 2, "expected NAME:SHAPE"),
        ([DIGITS, "--shape", "image:Nx1x8x8"], 2, "did you mean 'images'"),
        ([DIGITS, "--shape", "images:Nx1x8"], 2, "3 axes given"),
        ([DIGITS, "--shape", "images:Nx1x9x9"], 2, "the model fixes it at 8"),
        ([DIGITS, "--shape", "images:Nx1x8x8,Nx1x8x8"], 2, "expected NAME:SHAPE"),
        ([DIGITS, "--shape", "images:Nx1x8x8", "--shape", "images:Nx1x8x8"], 2, "given twice"),
        ([DIGITS, "--dynamic", "--batch", "1,2,4,8"], 2, "at most three"),
        ([DIGITS, "--backend", "tensorflow"], 2, "'tensorflow' is not one of"),
        ([DIGITS, "--opt-level", "9"], 2, "choose 0 to 5"),
        ([DIGITS, "--workspace", "0"], 2, "--workspace 0: out of range"),
        ([DIGITS, "--jobs", "0"], 2, "--jobs 0: out of range"),
        ([DIGITS, "--tactic-sources", "MAGIC"], 2, "choose among EDGE_MASK_CONVOLUTIONS"),
        ([DIGITS, "--compute-capability", "9.0"], 2, "does not support it"),
        ([DIGITS, "--compute-capability", "8.9,8.6", "--precision", "fp8"], 2, "8.6: such GPUs have no FP8"),
        ([DIGITS, "--recipe", "defualt"], 2, "did you mean 'default'"),
        ([DIGITS, "--plugin", "nowhere.so"], 2, "no such file"),
        ([DIGITS, "--plugin", str(DIGITS)], 1, "cannot be loaded"),
        ([DIGITS, "--backend", "onnxruntime", "--opt-level", "3"], 2, "has no such setting"),
        pytest.param(
            [DIGITS, "--backend", "tensorrt"], 1, "tensorrt is not installed", marks=needs_no_tensorrt
        ),
        ([DIGITS, "-o", "/proc/nowhere/out"], 1, "cannot be written"),
    ],
)
def test_bad_flags_of_build_get_a_message_and_a_status(
    trtopt_cli: CommandLine, arguments: list[str | Path], status: int, message: str
) -> None:
    assert message in trtopt_cli.fails(status, "build", *arguments)


def test_a_folder_that_trtopt_did_not_make_is_never_replaced(trtopt_cli: CommandLine) -> None:
    (trtopt_cli.folder / "mine").mkdir()
    (trtopt_cli.folder / "mine" / "thesis.tex").write_text("years of work")
    told = trtopt_cli.fails(1, "build", DIGITS, "-o", "mine", "--backend", "tensorrt-rtx")
    assert "is not a build folder of trtopt's" in told
    assert (trtopt_cli.folder / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_model_above_two_gigabytes_is_refused_by_onnxruntime_before_its_weights_are_read(
    tmp_path: Path,
) -> None:
    model = parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    count = 1 << 29
    weight = model.graph.initializer.add(
        name="w", dims=[count], data_type=onnx.TensorProto.FLOAT, data_location=onnx.TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as sparse:
        sparse.truncate(4 * count)
    path = tmp_path / "large.onnx"
    path.write_bytes(model.SerializeToString())
    builder = open_builder("onnxruntime")
    one = ShapeRange(min=(1,), opt=(1,), max=(1,))
    plan = BuildPlan(
        onnx_sha256="", batch=one, shapes={"x": one}, settings=BuildSettings(), backend=builder.backend
    )
    with pytest.raises(BuildError, match="above 2 GB"):
        builder.build(BuildInput(path, (), plan, None), lambda *_: None, lambda *_: None)
