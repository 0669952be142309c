"""`trtopt trtexec` and `trtopt completion`, in this process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.paths import ROOT
from trtopt import logs
from trtopt.cli.main import cli
from trtopt.errors import TrtoptError

DIGITS = ROOT / "models/digits/digits.onnx"
LINE = ["trtexec", "--onnx=empty.onnx", "--fp16", "--skipInference"]


def test_print_shows_the_lines_and_runs_none() -> None:
    done = CliRunner().invoke(cli, [*LINE, "--print"])
    assert done.exit_code == 0
    assert done.stdout == "trtopt build empty.onnx --precision fp16\n"
    assert "--fp16: trtexec allows the type" in done.stderr


def test_quiet_leaves_notes_out_and_what_is_run_is_quiet_too() -> None:
    done = CliRunner().invoke(cli, [*LINE, "--print", "-q"])
    assert (done.stdout, done.stderr) == ("trtopt build empty.onnx --precision fp16 -q\n", "")


def test_what_follows_a_tool_of_polygraphy_is_polygraphys() -> None:
    done = CliRunner().invoke(
        cli, ["polygraphy", "--print", "run", "m.onnx", "--trt", "--log-file", "l", "-v"]
    )
    build, bench = done.stdout.splitlines()
    assert build == "trtopt build m.onnx --log-file l -v"
    assert bench == "trtopt bench m.trtopt --log-file l -v"


def test_print_may_stand_behind_a_tool_of_polygraphy() -> None:
    done = CliRunner().invoke(cli, ["polygraphy", "run", "m.onnx", "--trt", "--print"])
    assert done.stdout.splitlines()[0] == "trtopt build m.onnx"


def test_without_print_the_translated_line_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.onnx").touch()
    done = CliRunner().invoke(cli, LINE)
    assert "trtopt: trtopt build empty.onnx --precision fp16" in done.stderr
    assert isinstance(done.exception, TrtoptError)  # of the build
    assert "empty.onnx" in done.exception.problem


def test_a_line_that_writes_a_file_may_be_run_again(tmp_path: Path) -> None:
    line = ["polygraphy", "check", "lint", str(DIGITS), "-o", str(tmp_path / "found.json")]
    assert [CliRunner().invoke(cli, line).exit_code for _ in range(2)] == [0, 0]


def test_a_remedy_with_an_option_of_trtopt_says_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, "m.onnx")
    Path("m.trtopt").mkdir()
    Path("m.trtopt", "mine.txt").touch()
    done = CliRunner().invoke(cli, ["trtexec", "--onnx=m.onnx"])
    assert isinstance(done.exception, TrtoptError)
    assert "another name with -o" in done.exception.remedy
    assert done.exception.remedy.endswith(
        "options of trtopt go to the command above, not to `trtopt trtexec`"
    )
    Path("empty.onnx").touch()
    done = CliRunner().invoke(cli, LINE)
    assert isinstance(done.exception, TrtoptError)
    assert "command above" not in done.exception.remedy


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_calls_trtopt_and_where_to_put_it_is_on_standard_error(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert f"_TRTOPT_COMPLETE={shell}_complete" in done.stdout
    assert f"to install: trtopt completion {shell} > " in done.stderr


def test_the_command_that_is_run_is_as_loud_as_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.onnx").touch()
    shown: list[int] = []
    monkeypatch.setattr(logs, "show", shown.append)
    CliRunner().invoke(cli, [*LINE, "--verbose"])
    assert shown == [1, 2]
