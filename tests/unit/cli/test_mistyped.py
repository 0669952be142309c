"""Mistyped commands and options, and those of trtexec."""

from __future__ import annotations

import click
import pytest

from trtopt.cli.main import COMMANDS, SECTIONS, cli, main


def refused(line: str) -> click.UsageError:
    """The error that a command line without its files ends with."""
    with pytest.raises(click.UsageError) as caught:
        cli.main(line.split(), prog_name="trtopt", standalone_mode=False)
    return caught.value


@pytest.mark.parametrize(
    ("line", "near"),
    [("biuld m.onnx", "'build'"), ("optimise m.onnx", "'optimize'"), ("quantise m.onnx", "'quantize'")],
)
def test_a_mistyped_command_names_the_nearest(line: str, near: str) -> None:
    assert f"Did you mean {near}?" in refused(line).format_message()


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"trtexec", "cache", "deploy", "history"}))
def test_a_mistyped_option_names_the_nearest(command: str) -> None:
    assert "--log-file" in refused(f"{command} --lgo-file").format_message()


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("build m.onnx --fp16", "Write: trtopt build m.onnx --precision fp16"),
        ("--onnx=m.onnx --fp16", "Write: trtopt trtexec --onnx=m.onnx --fp16"),
        ("bench m.onnx --useDLACore=0", "cannot be translated (trtopt builds for GPUs only"),
        ("bench m.onnx --percentile=99", "no effect (bench shows p50, p90 and p99"),
        (
            "check m.onnx --against r.onnx --atol 1e-3",
            "Write: trtopt check m.onnx --against r.onnx --max-error",
        ),
        ("build m.onnx --profile quick", "build m.onnx --recipe quick"),
        ("check m.onnx --against r.onnx --task digits", "--model digits"),
        ("build --model m.onnx", "Write: trtopt build m.onnx"),
    ],
)
def test_an_option_of_trtexec_and_a_keyword_of_python_are_answered_with_the_option(
    line: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["trtopt", *line.split()])
    monkeypatch.setattr("signal.signal", lambda *given: None)  # the tests' own stay
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


def test_the_help_lists_what_users_reach_for_first() -> None:
    assert list(COMMANDS)[:5] == ["optimize", "build", "bench", "profile", "compare"]
    with click.Context(cli) as context:
        text = cli.get_help(context)
    assert [line[:-1] for line in text.splitlines() if line[:-1] in SECTIONS] == list(SECTIONS)


def test_a_file_is_no_history() -> None:
    for command in ("add", "show", "check"):
        assert "is a file" in refused(f"history {command} {__file__} {__file__}").format_message()
