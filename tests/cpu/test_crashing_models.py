"""A model on which ONNX Runtime itself crashes is a failure that says so, in every command that runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from tests.support.command_line import CommandLine
from trtopt.device.ort.reference import Crashed, Unoptimised


@pytest.fixture
def crashing(tmp_path: Path) -> Path:
    """InstanceNormalization of an axis of length 0: ONNX Runtime 1.32 and older read beyond its end."""
    small = {"s": [9], "e": [9], "a": [2]}
    weights = {name: np.array(values, np.int64) for name, values in small.items()}
    weights |= {"g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
    weights["w"] = np.eye(32, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="layer"),
            helper.make_node("Slice", ["m", "s", "e", "a"], ["y"], name="empty"),
            helper.make_node("InstanceNormalization", ["y", "g", "b"], ["z"], name="crash"),
            helper.make_node("Identity", ["z"], ["o"], name="out"),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4, 32, 32])],
        [helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, [2, 4, None, None])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "crash.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(Crashed):  # else these tests would show nothing
        Unoptimised(path.read_bytes()).run({"x": np.ones((2, 4, 32, 32), np.float32)})
    return path


RUNNING = "ONNX Runtime cannot run the model: its process was ended by SIGSEGV while running it"
COMMANDS = {
    "rewrite": ("", "-o", "out.onnx"),
    "cast": (" (samples 0 to 1)", "-o", "out.onnx"),
    "quantize": ("", "-o", "out.onnx", "--precision", "int8", "--random-data"),
    "check": (" (crash.onnx)", "--against", "crash.onnx"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_crash_of_onnx_runtime_is_a_failure_that_reports_it_and_leaves_nothing(
    command: str,
    crashing: Path,
    trtopt_cli: CommandLine,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = tmp_path_factory.mktemp("system")
    monkeypatch.setenv("TMPDIR", str(system))
    where, *flags = COMMANDS[command]
    told = trtopt_cli.fails(1, command, crashing.name, *flags)
    assert f"{RUNNING}{where}\n" in told
    assert list(system.glob(".trtopt*")) == []


def test_a_build_goes_without_rewriting_a_model_that_it_crashes_on(
    crashing: Path, trtopt_cli: CommandLine
) -> None:
    done = trtopt_cli("build", crashing.name, "-o", "out", "--backend", "onnxruntime", "--rewrite", "all")
    assert done.returncode == 0, done.stderr
    assert f"not rewritten: {RUNNING}" in done.stdout


def test_a_crash_while_it_is_measured_is_put_down_to_onnx_runtime(
    crashing: Path, trtopt_cli: CommandLine
) -> None:
    told = trtopt_cli.fails(1, "bench", crashing.name, "--backend", "onnxruntime")
    assert "its process was ended by SIGSEGV in phase 'latency'" in told
    assert "a crash in native code, that of ONNX Runtime;" in told


def test_what_it_refuses_to_run_at_all_is_measured_with_its_own_words(
    trtopt_cli: CommandLine, tmp_path: Path
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x) => (float y) <int64[2] s = {4194304, 4194304}>
        {m = ReduceMax<keepdims=0>(x) e = Expand(m, s) y = ReduceSum<keepdims=0>(e)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "huge.onnx")
    told = trtopt_cli.fails(1, "bench", "huge.onnx", "--backend", "onnxruntime", "--duration", "0.1")
    assert "ONNX Runtime cannot run the model on this input: " in told
    assert "please report it" not in told


def test_a_constant_on_which_it_crashes_stays_and_the_others_are_folded(
    trtopt_cli: CommandLine, tmp_path: Path
) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]> g (float[2] v) => (float[2] y, float[2,4,1,6] z)
        <int64[1] nine = {9}, int64[1] two = {2}, float[4] g = {1,1,1,1},
         float[4] b = {0,0,0,0}, float[2] c = {1,2}>
        {empty = Slice(x, nine, nine, two) crash = InstanceNormalization(empty, g, b) z = Identity(crash)
         square = Mul(c, c) y = Add(v, square)}"""
    model = onnx.parser.parse_model(text)
    ones = numpy_helper.from_array(np.ones((2, 4, 6, 6), np.float32), "x")
    model.graph.initializer.append(ones)
    onnx.save(model, tmp_path / "constant.onnx")
    done = trtopt_cli("rewrite", "constant.onnx", "-o", "out.onnx", "--no-check", "--rules", "fold-constants")
    assert done.returncode == 0, done.stderr
    left = onnx.load(tmp_path / "out.onnx").graph
    assert sorted(node.op_type for node in left.node) == ["Add", "Identity", "InstanceNormalization"]
