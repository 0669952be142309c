"""What the terminal shows, whatever names hold and whatever it can encode."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trtopt
from tests.support.command_line import DIGITS, CommandLine
from tests.support.long import few
from trtopt.records import to_json

NO_TEXT = os.fsdecode(b"caf\xe9")
"""A name in Latin-1."""


@pytest.mark.parametrize("name", ["a[/b]", "a[red]", "a :key: b"])
def test_a_folders_name_is_shown_unchanged(name: str, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("build", DIGITS, "-o", name, "--backend", "onnxruntime")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: 1 engine by ONNX Runtime")


@pytest.mark.parametrize("encoding", few("ascii", of=["ascii", "latin-1"]))
def test_what_the_terminal_cannot_encode_is_spelled_in_ascii(
    encoding: str, trtopt_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = trtopt_cli("lint", DIGITS)
    assert done.returncode == 0, done.stderr
    assert "\n  -> pad the vocabulary" in done.stdout
    refused = trtopt_cli.fails(2, "build", "--backend", "onnxruntime", DIGITS, "-o", NO_TEXT)
    assert "\n  -> rename the file" in refused


def test_a_folders_name_that_is_no_text_is_reported_as_such(trtopt_cli: CommandLine) -> None:
    refused = trtopt_cli.fails(2, "build", "--backend", "onnxruntime", DIGITS, "-o", NO_TEXT)
    assert "has a name that is not UTF-8\n  → rename the file or folder" in refused


def test_a_file_whose_name_is_no_text_is_written_under_it(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("cast", "--no-compare", DIGITS, "-o", NO_TEXT)
    assert done.returncode == 0, done.stderr
    assert (trtopt_cli.folder / NO_TEXT).is_file()


HOSTILE = "\x1b]0;title\x07\r\nFORGED: all is well\x9b2J\u202e\x7f"
"""It names the window, forges a line, and turns what comes after round."""
OWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What colours, bars and tables are made of on a terminal."""


def hostile_model(path: Path) -> Path:
    """Two convolutions whose tensors and nodes have such names."""
    x, y, a, b = (f"{name}{HOSTILE}" for name in "xyab")
    axes = [4, 8, 6, 6]
    weights = np.random.RandomState(0).standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
    nodes = [
        helper.make_node("Conv", [x, "w"], [a], name=f"first{HOSTILE}", pads=[1] * 4),
        helper.make_node("Relu", [a], [b], name=f"relu{HOSTILE}"),
        helper.make_node("Conv", [b, "w"], [y], name=f"second{HOSTILE}", pads=[1] * 4),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes) for name in (x, y)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def on_a_terminal(folder: Path, arguments: list[str]) -> tuple[int, str]:
    """Status of a command, and all that it wrote to a terminal."""
    reader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trtopt", *arguments],
        cwd=folder,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "150"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    written = b""
    while True:
        try:
            piece = os.read(reader, 1 << 16)
        except OSError:  # Linux says so when the last writer has gone
            break
        written += piece
    os.close(reader)
    return process.wait(), written.decode().replace("\r\n", "\n")


def test_progress_calls_the_current_folder_by_its_name(trtopt_cli: CommandLine) -> None:
    folder = trtopt_cli.folder / "built"
    assert trtopt_cli("build", DIGITS, "-o", folder, "--backend", "onnxruntime").returncode == 0
    status, told = on_a_terminal(folder, ["report", "."])
    assert status == 0, told
    assert "writing the page of built" in told


def assert_harmless(told: str) -> None:
    """Nothing in it is a control of the model's, and no line begins with the model's words."""
    assert [one for one in told if not one.isprintable() and one not in "\r\n"] == []
    assert not re.search(r"^\W*FORGED", told, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "status", "shows"),
    [
        ("rewrite m.onnx -o o.onnx", 0, False),
        pytest.param("lint m.onnx", 0, False, marks=pytest.mark.long),
        pytest.param("cast m.onnx -o o.onnx", 0, True, marks=pytest.mark.long),
        pytest.param(
            "quantize m.onnx -o o.onnx --precision int8 --random-data -v", 0, True, marks=pytest.mark.long
        ),
        pytest.param("check built --against m.onnx", 0, True, marks=pytest.mark.long),
        pytest.param("check m.onnx --against digits.onnx", 1, True, marks=pytest.mark.long),
        ("bench built --duration 0.1 --layers", 0, True),
        pytest.param("profile built --log-file log", 0, True, marks=pytest.mark.long),
        ("compare result.json changed.json", 2, True),
    ],
)
def test_nothing_of_a_models_names_commands_the_terminal_or_forges_a_line(
    hostile: Path, arguments: str, status: int, shows: bool
) -> None:
    ended, told = on_a_terminal(hostile, arguments.split())
    assert ended == status, told
    told = OWN.sub("", told)
    assert_harmless(told)
    assert ("\\x1b]0;title" in told) is shows


def test_nor_do_they_in_a_pipe(hostile: Path, trtopt_cli: CommandLine) -> None:
    for arguments in (
        ("cast", hostile / "m.onnx", "-o", "c.onnx"),
        ("check", hostile / "m.onnx", "--against", DIGITS),
    ):
        done = trtopt_cli(*arguments)
        assert "FORGED" in done.stdout + done.stderr
        assert_harmless(done.stdout)
        assert_harmless(done.stderr)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that model, its engine, the digits model, and two result files of unlike work."""
    folder = tmp_path_factory.mktemp("hostile")
    model = hostile_model(folder / "m.onnx")
    shutil.copy(DIGITS, folder / "digits.onnx")
    trtopt.build(model, folder / "built", backend="onnxruntime")
    result = trtopt.bench(folder / "built", duration=0.03, warmup=0.01)
    (folder / "result.json").write_bytes(to_json(result))
    latency = result.points[0].latency
    moved = msgspec.structs.replace(latency, shapes=dict.fromkeys(latency.shapes, (9,)))
    point = msgspec.structs.replace(result.points[0], latency=moved)
    (folder / "changed.json").write_bytes(to_json(msgspec.structs.replace(result, points=(point,))))
    return folder


def test_a_result_in_a_pipe_has_one_line_per_row_and_each_note_once(
    hostile: Path, trtopt_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = trtopt_cli("bench", hostile / "built", "--duration", "0.03", "--warmup", "0.01", "--load", "100")
    assert done.returncode == 0, done.stderr
    summary, header, row, *rest = done.stdout.splitlines()
    assert re.match(
        r"built on ONNX Runtime \S+ \(CPU\): [\d,]+ samples/s at batch 4; \S+ ms p50 at batch 4$", summary
    )
    assert len(header.split("  ")) >= 6
    assert row.split()[0].startswith("4")
    notes = [line for line in rest if line.startswith("note: ") or "more notes" in line]
    assert len(notes) <= 3
    assert not any(note.removeprefix("note: ") in done.stderr for note in notes)
    assert not re.search(r"[━│┃ \t]$", done.stdout, re.MULTILINE)


def test_quiet_prints_the_result_alone_and_contradicts_verbose(
    hostile: Path, trtopt_cli: CommandLine
) -> None:
    done = trtopt_cli(
        "bench",
        hostile / "m.onnx",
        "--backend",
        "onnxruntime",
        "--duration",
        "0.03",
        "--warmup",
        "0.01",
        "-q",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3
    assert "contradict" in trtopt_cli.fails(2, "lint", DIGITS, "-q", "-v")


def test_a_model_with_nan_in_its_weights_warns_and_fails_if_strict(trtopt_cli: CommandLine) -> None:
    model = onnx.load(DIGITS)
    weight = max(model.graph.initializer, key=lambda item: len(item.raw_data))
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] = np.nan
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, trtopt_cli.folder / "nan.onnx")
    build = trtopt_cli("build", "nan.onnx", "--backend", "onnxruntime", "-o", "b")
    assert build.returncode == 0, build.stderr
    assert "WARNING: 1 weight holds NaN or infinity, such as" in build.stderr
    cast = trtopt_cli("cast", "nan.onnx", "-o", "c.onnx", "--strict", "-q")
    assert cast.returncode == 3, cast.stderr
    assert "values are NaN or infinite" in cast.stderr
    assert (trtopt_cli.folder / "c.onnx").is_file()
    check = trtopt_cli("check", "nan.onnx", "--against", "nan.onnx")
    assert "WARNING: output 'logits'" in check.stderr


def test_verdicts_and_warnings_have_colours_on_a_terminal_unless_no_color_is_set(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = ["compare", "result.json", "result.json"]
    _, coloured = on_a_terminal(hostile, arguments)
    assert re.search(r"\x1b\[33m[^\n]*UNDECIDED", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    _, plain = on_a_terminal(hostile, arguments)
    assert "UNDECIDED" in plain
    assert "\x1b[33m" not in plain
