"""`--verbose` and `--log-file`: what trtopt, its processes and TensorRT say, and what is never said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, CommandLine
from trtopt.logs import LogLine
from trtopt.records import from_json

SECRET = "hunter2-and-more"
SPEAKING = f"""
import os, sys
import numpy as np

def aloud():
    print("said aloud with {SECRET}", file=sys.stderr, flush=True)
    yield {{"images": np.zeros((1, 1, 8, 8), np.float32)}}

def quits():
    sys.exit("the data is not mounted")
    yield {{}}

def last():
    print("the last that was heard", file=sys.stderr, flush=True)
    os.abort()
"""
ONNXRUNTIME = ("--backend", "onnxruntime", "--duration", "0.05")


def lines_of(file: Path) -> list[LogLine]:
    return [from_json(line, LogLine) for line in file.read_bytes().splitlines()]


@pytest.fixture
def speaking(trtopt_cli: CommandLine) -> CommandLine:
    (trtopt_cli.folder / "speaking.py").write_text(SPEAKING)
    return trtopt_cli


def test_a_log_file_holds_the_command_tensorrts_words_and_how_it_ended(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("build", DIGITS, "-o", "out", "--backend", "tensorrt-rtx", "--log-file", "log")
    assert done.returncode == 0, done.stderr
    lines = lines_of(trtopt_cli.folder / "log")
    assert "--log-file log" in lines[0].message
    assert lines[-1].message == "ended with exit code 0"
    assert {line.severity for line in lines} == {"info"}
    (parent,) = {line.process for line in lines if line.source == "trtopt"}
    heard = [line for line in lines if line.source == "tensorrt_rtx"]
    assert any("Opset version" in line.message for line in heard)
    assert parent not in {line.process for line in heard}
    assert [line.time for line in lines[:3]] == sorted(line.time for line in lines[:3])
    assert any("building with tensorrt-rtx" in line.message for line in lines if line.source == "trtopt")


def test_tensorrts_verbose_messages_come_with_vv_and_nothing_without(trtopt_cli: CommandLine) -> None:
    flags = ("build", DIGITS, "-o", "out", "--backend", "tensorrt-rtx")
    assert "tensorrt_rtx" not in trtopt_cli(*flags).stderr
    told = trtopt_cli(*flags, "-v").stderr
    assert "info: tensorrt_rtx[" in told
    assert "verbose: " not in told
    assert told.count("building with tensorrt-rtx") == 1
    told = trtopt_cli(*flags, "-vv", "--log-file", "log").stderr
    assert "verbose: tensorrt_rtx[" in told
    assert {line.severity for line in lines_of(trtopt_cli.folder / "log")} >= {"verbose", "info"}


def test_a_log_is_appended_to_and_holds_errors(trtopt_cli: CommandLine) -> None:
    for name in ("first.onnx", "second.onnx"):
        (trtopt_cli.folder / name).write_text("no model")
        trtopt_cli("bench", name, "--log-file", "log")
    lines = lines_of(trtopt_cli.folder / "log")
    errors = [line for line in lines if line.severity == "error"]
    assert [line.message.split(":")[0] for line in errors] == ["first.onnx", "second.onnx"]
    assert [line.message for line in lines if "ended" in line.message] == ["ended with exit code 1"] * 2


def test_a_crash_is_in_the_log_with_what_the_process_printed(speaking: CommandLine) -> None:
    speaking("bench", DIGITS, *ONNXRUNTIME, "--data", "speaking:last", "--log-file", "log")
    lines = lines_of(speaking.folder / "log")
    assert any("the last that was heard" in line.message for line in lines if line.source == "stderr")
    assert any("SIGABRT" in line.message for line in lines if line.severity == "error")


def test_code_of_the_users_that_quits_is_heard_and_logged(speaking: CommandLine) -> None:
    asked = ("quantize", DIGITS, "-o", "q.onnx", "--precision", "int8", "--data", "speaking:quits")
    done = speaking(*asked, "--log-file", "log")
    failure = "speaking:quits failed: SystemExit: the data is not mounted ("
    assert (done.returncode, failure in done.stderr) == (1, True)
    assert any(failure in line.message for line in lines_of(speaking.folder / "log"))


def test_no_secret_is_in_a_log(speaking: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", SECRET)
    monkeypatch.setenv("MY_SIGNING_KEY", "0123456789abcdef-the-key")
    speaking("bench", DIGITS, *ONNXRUNTIME, "--data", "speaking:aloud", "--log-file", "log", "-v")
    speaking("bench", "0123456789abcdef-the-key", "--log-file", "log")
    text = (speaking.folder / "log").read_text()
    assert "said aloud with ***" in text
    assert SECRET not in text
    assert "the-key" not in text


@pytest.mark.parametrize("where", [".", "nowhere/log"])
def test_a_log_that_cannot_be_written_is_refused_before_the_work(trtopt_cli: CommandLine, where: str) -> None:
    assert "--log-file" in trtopt_cli.fails(1, "build", DIGITS, "--log-file", where)


def test_a_log_on_a_full_disk_ends_and_the_work_goes_on(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("rewrite", DIGITS, "-o", "out.onnx", "--log-file", "/dev/full")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the log ends here") == 1
