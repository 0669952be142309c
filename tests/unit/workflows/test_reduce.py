"""Reducing models that fail: by commands, refused by TensorRT-RTX, and wrong on ONNX Runtime."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trtopt
from tests.support.command_line import DIGITS
from tests.support.graphs import model_of, value
from trtopt.errors import MeasurementError, ModelError, OutputError, UnsupportedOpError, UsageError
from trtopt.records import Symptom
from trtopt.workflows.reduce import JOURNAL, Journal

SHAPE = ("N", 4, 8, 8)


def saved(path: Path, *middle: onnx.NodeProto, weights: dict[str, np.ndarray], length: int = 4) -> Path:
    """Nodes from `a` to `b` amid convolutions and activations, of which every second is skipped too."""
    nodes, tensor = [], "x"
    rng = np.random.default_rng(0)
    for index in range(2 * length):
        target = "a" if index == length - 1 else f"t{index}"
        weights[f"k{index}"] = rng.standard_normal((4, 4, 3, 3), np.float32) / 8
        nodes.append(
            helper.make_node("Conv", [tensor, f"k{index}"], [f"c{index}"], f"conv{index}", pads=[1] * 4)
        )
        nodes.append(helper.make_node("Tanh", [f"c{index}"], [target], f"tanh{index}"))
        tensor = target
        if index == length - 1:
            nodes += middle
            tensor = "b"
    model = model_of(
        *nodes,
        inputs=[value("x", SHAPE)],
        outputs=[value(tensor, SHAPE)],
        weights=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A model with an operator that TensorRT-RTX does not know."""
    return saved(
        tmp_path / "m.onnx",
        helper.make_node("Det", ["a"], ["d"], "det"),
        helper.make_node("Unsqueeze", ["d", "axes"], ["u"], "unsqueeze"),
        helper.make_node("Add", ["a", "u"], ["b"], "add"),
        weights={"axes": np.array([2, 3])},
    )


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A model whose batch normalisation ONNX Runtime folds into weights that become infinite."""
    ones = np.ones(4, np.float32)
    return saved(
        tmp_path / "m.onnx",
        helper.make_node("Mul", ["a", "tiny"], ["m"], "mul"),
        helper.make_node("Conv", ["m", "big"], ["c"], "conv"),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "zero", "zero", "var"], ["b"], "bn", epsilon=0.0
        ),
        weights={
            "tiny": np.float32(1e-30).reshape(()),
            "big": np.random.default_rng(0).standard_normal((4, 4, 1, 1), np.float32) * np.float32(1e20),
            "scale": ones * np.float32(1e10),
            "zero": ones * 0,
            "var": ones * np.float32(1e-20),
        },
    )


def command_of(code: str, tmp_path: Path) -> str:
    """A command that runs this Python; `count` is that of an operator, read as protobuf writes it."""
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, os, signal\ncontent = open(sys.argv[1], 'rb').read()\n"
        "def count(op):\n    return content.count(bytes([0x22, len(op)]) + op.encode())\n"
        f"{code}\n"
    )
    return f"{shlex.quote(sys.executable)} -S -E {shlex.quote(str(script))} {{model}} {{data}}"


def test_what_tensorrt_rtx_refuses_is_left(refused: Path, tmp_path: Path) -> None:
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition="fails", backend="tensorrt-rtx")
    assert [node.op for node in report.nodes] == ["Det"]
    assert (report.symptom.kind, report.minimal, report.fixed_shapes) == ("error", True, True)
    part = onnx.load(report.out)
    onnx.checker.check_model(part, full_check=True)
    assert [item.name for item in part.graph.input] == ["a"]
    assert np.load(report.data)["a"].shape == tuple(
        axis.dim_value for axis in part.graph.input[0].type.tensor_type.shape.dim
    )
    assert not Path(f"{report.out}.journal").exists()


def test_what_makes_outputs_wrong_is_left_with_inputs_that_show_it(wrong: Path, tmp_path: Path) -> None:
    report = trtopt.reduce(wrong, tmp_path / "part.onnx", condition="wrong", backend="onnxruntime")
    assert [node.name for node in report.nodes] == ["conv", "bn"]
    assert report.symptom.signature == "NaN or infinite values"
    engines = trtopt.build(report.out, tmp_path / "engines", backend="onnxruntime", rewrite="none")
    assert len(engines.engines) == 1
    check = trtopt.check(tmp_path / "engines", report.out, data=report.data, min_cosine=0.9)
    assert not check.passed


def test_a_part_that_fails_otherwise_does_not_count(refused: Path, tmp_path: Path) -> None:
    """Both of two nodes give the first error; either alone another one, by its code or by its last line."""
    code = """
if count("Det") and count("Add"): sys.exit("both: %d bytes" % len(content))
if count("Det"): sys.exit("alone")
if count("Add"): sys.exit(3)"""
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition=command_of(code, tmp_path))
    assert [node.op for node in report.nodes] == ["Det", "Add"]
    assert report.symptom.detail.startswith("exit 1: both")
    assert report.others == ()  # its code alone is no failure besides


@pytest.mark.long
def test_a_signal_and_a_hang_are_failures(refused: Path, tmp_path: Path) -> None:
    killed = command_of("if count('Det'): os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition=killed)
    assert [node.op for node in report.nodes] == ["Det"]
    assert report.symptom.detail.startswith("signal 11")
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition="! grep -q Det {model} || exit 255")
    assert report.symptom.detail == "exit 255"
    few = [helper.make_node(op, [a], [b], op) for op, a, b in (("Neg", "x", "s"), ("Sin", "s", "y"))]
    onnx.save(model_of(*few), tmp_path / "few.onnx")
    hung = "! grep -q Sin {model} || sleep 600"
    report = trtopt.reduce(tmp_path / "few.onnx", tmp_path / "p.onnx", condition=hung, timeout=15)
    assert ([node.op for node in report.nodes], report.symptom.kind) == (["Sin"], "hang")


def test_a_killed_run_continues(refused: Path, tmp_path: Path) -> None:
    """The command ends trtopt itself in the seventh step, and notes how often it is run."""
    ran = tmp_path / "ran"
    code = f"""
with open({str(ran)!r}, "a+") as file:
    file.write("x")
    file.seek(0)
    if len(file.read()) == 7: os.kill(os.getppid(), signal.SIGKILL)
sys.exit(int(count("Det") and count("Tanh") >= 2))"""
    out = tmp_path / "part.onnx"
    condition = f"exec {command_of(code, tmp_path)}"  # its parent is trtopt
    arguments = [sys.executable, "-m", "trtopt", "reduce", str(refused), "-o", str(out), "--while", condition]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    journal = Path(f"{out}.journal")
    assert JOURNAL.is_own(journal)
    report = trtopt.reduce(refused, out, condition=condition)
    assert report.resumed == 6
    assert len(ran.read_text()) == 7 + report.steps - report.resumed
    assert [node.op for node in report.nodes].count("Tanh") == 2
    assert (out.exists(), journal.exists()) == (True, False)


def test_a_journal_keeps_names_that_are_no_text_and_forgets_what_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "part.onnx.journal"
    journal = Journal(path, "terms")
    journal.add("key", (Symptom(kind="error", signature="BuildError", detail="/data/\udcff/m.onnx"),))
    assert Journal(path, "terms").found == journal.found
    for edit in (b'{"key": 1}', b'{"key": [', b"[" * 100_000):
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n" + edit)
        assert JOURNAL.is_own(path)
        assert Journal(path, "terms").found == {}


def test_steps_that_are_spent_leave_the_best_so_far_and_the_journal(refused: Path, tmp_path: Path) -> None:
    condition = command_of("sys.exit(int(count('Tanh') >= 3))", tmp_path)
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition=condition, max_steps=8)
    assert not report.minimal
    assert report.nodes_before > len(report.nodes) >= 3
    again = trtopt.reduce(refused, tmp_path / "part.onnx", condition=condition)
    assert again.minimal
    assert again.resumed >= report.steps - 1
    assert [node.op for node in again.nodes] == ["Tanh"] * 3


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("test -e {model}", ModelError),
        ("no-such-command {model}", UsageError),
        ("test -e {data}", UsageError),
        ("slower:fast", UsageError),
        ("wrong:x", UsageError),
        ("wrong", ModelError),
    ],
)
def test_what_does_not_fail_or_cannot_be_judged_is_refused(
    condition: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        trtopt.reduce(DIGITS, tmp_path / "part.onnx", condition=condition)
    assert list(tmp_path.iterdir()) == []


def test_paths_that_have_to_be_quoted_are_not_quoted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a b"))
    with pytest.raises(UsageError, match="a b"):
        trtopt.reduce(DIGITS, tmp_path / "part.onnx", condition="! sh -c 'grep -q Gemm {model}'")
    assert trtopt.reduce(DIGITS, tmp_path / "p.onnx", condition="! grep -q Gemm {model}", max_steps=2)


def test_a_failure_that_comes_and_goes_is_refused(tmp_path: Path) -> None:
    mark = shlex.quote(str(tmp_path / "mark"))
    once = f"test -e {mark} || {{ touch {mark}; exit 1; }} # {{model}}"
    with pytest.raises(MeasurementError):
        trtopt.reduce(DIGITS, tmp_path / "part.onnx", condition=once)


@pytest.mark.parametrize("name", ["part.onnx", "part.npz", "part.onnx.journal"])
def test_files_of_the_user_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError):
        trtopt.reduce(DIGITS, tmp_path / "part.onnx", condition="! grep -q Gemm {model}")
    assert (tmp_path / name).read_text() == "mine"
    assert not JOURNAL.is_own(tmp_path / name)


def test_a_damaged_archive_of_the_user_stays(tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", x=np.zeros(3))
    content = bytearray((tmp_path / "part.npz").read_bytes())
    content[content.rfind(b"PK\x01\x02") + 6] = 99  # a version of the format that there is none of
    (tmp_path / "part.npz").write_bytes(content)
    with pytest.raises(OutputError):
        trtopt.reduce(DIGITS, tmp_path / "part.onnx", condition="! grep -q Gemm {model}")
    assert (tmp_path / "part.npz").read_bytes() == content


def test_a_model_that_cannot_be_built_is_not_taken_for_a_wrong_one(tmp_path: Path) -> None:
    own = helper.make_node("Relu", ["x"], ["y"], domain="own")
    onnx.save(model_of(own, domains=["own"]), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedOpError):
        trtopt.reduce(tmp_path / "m.onnx", tmp_path / "p.onnx", condition="wrong", backend="onnxruntime")


def test_what_nothing_reads_can_be_left(tmp_path: Path) -> None:
    dead = helper.make_node("Sin", ["t"], ["dead"], "dead")
    model = model_of(helper.make_node("Neg", ["x"], ["t"]), dead, helper.make_node("Relu", ["x"], ["y"]))
    onnx.save(model, tmp_path / "m.onnx")
    report = trtopt.reduce(tmp_path / "m.onnx", tmp_path / "p.onnx", condition="! grep -q Sin {model}")
    assert [node.name for node in report.nodes] == ["dead"]


def test_strings_become_inputs(tmp_path: Path) -> None:
    encode = helper.make_node("LabelEncoder", ["u"], ["k"], domain="ai.onnx.ml", classes_strings=["ä"])
    model = model_of(
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("Concat", ["t", "t"], ["u"], axis=0),
        encode,
        helper.make_node("Neg", ["k"], ["y"]),
        inputs=[value("s", ["N"], onnx.TensorProto.STRING)],
        outputs=[value("y", ["M"], onnx.TensorProto.INT64)],
        domains=["ai.onnx.ml"],
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", s=np.array(["ä", "longer"]))
    report = trtopt.reduce(
        tmp_path / "m.onnx",
        tmp_path / "p.onnx",
        condition="! grep -q LabelEncoder {model}",
        data=tmp_path / "data.npz",
    )
    assert [node.op for node in report.nodes] == ["LabelEncoder"]
    assert np.load(report.data)["u"].tolist() == ["ä", "longer"] * 2


def test_a_command_that_changed_is_asked_anew(refused: Path, tmp_path: Path) -> None:
    condition = command_of("sys.exit(int(count('Tanh') >= 3))", tmp_path)
    trtopt.reduce(refused, tmp_path / "part.onnx", condition=condition, max_steps=8)
    assert command_of("sys.exit(int(count('Det')))", tmp_path) == condition
    report = trtopt.reduce(refused, tmp_path / "part.onnx", condition=condition)
    assert ([node.op for node in report.nodes], report.resumed) == (["Det"], 0)


def test_the_model_and_its_inputs_need_two_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="output="):
        trtopt.reduce(DIGITS, tmp_path / "p.npz", condition="! grep -q Gemm {model}")


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="backend"):
        trtopt.reduce(DIGITS, tmp_path / "p.onnx", condition="false {model}", backend="onnxruntime")
    with pytest.raises(UsageError, match="min_cosine"):
        trtopt.reduce(DIGITS, tmp_path / "p.onnx", condition="fails", min_cosine=0.9)


def test_a_fusion_that_the_model_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unfused:Conv\+Relu") as refused:
        trtopt.reduce(DIGITS, tmp_path / "p.onnx", condition="unfused:Conv+Relu", backend="onnxruntime")
    assert "Conv+activation" in str(refused.value)
