"""Mistyped commands and options, and those of trtexec."""

from __future__ import annotations

import click
import pytest

from trtopt.cli.main import COMMANDS, SECTIONS, cli
from trtopt.trtexec.answers import answer


def refused(line: str) -> click.UsageError:
    """The error that a command line without its files ends with."""
    with pytest.raises(click.UsageError) as caught:
        cli.main(line.split(), prog_name="trtopt", standalone_mode=False)
    return caught.value


def answered(line: str) -> list[str]:
    """The lines of the answer to an option of trtexec."""
    error = refused(line)
    assert isinstance(error, click.NoSuchOption)
    text = answer(error.option_name, line.split(), error.ctx)
    assert text is not None
    head, _, *lines = text.splitlines()
    assert head == f"{error.option_name} is an option of trtexec. In trtopt:"
    return [one.strip() for one in lines if not one.strip().startswith("#")]


@pytest.mark.parametrize(
    ("line", "near"),
    [("biuld m.onnx", "'build'"), ("optimise m.onnx", "'optimize'"), ("quantise m.onnx", "'quantize'")],
)
def test_a_mistyped_command_names_the_nearest(line: str, near: str) -> None:
    assert f"Did you mean {near}?" in refused(line).format_message()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("trtexec", "cache", "deploy")])
def test_a_mistyped_option_names_the_nearest(command: str) -> None:
    assert "--log-file" in refused(f"{command} --lgo-file").format_message()


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (
            "--onnx=m.onnx --fp16",
            ["trtopt build m.onnx --precision fp16", "trtopt bench m.trtopt --contract trtexec-10"],
        ),
        ("build --onnx m.onnx --saveEngine=e.plan", ["trtopt build m.onnx -o e.trtopt"]),
        (
            "build m.onnx --fp16 -o f --builderOptimizationLevel=5",
            ["trtopt build m.onnx --precision fp16 --opt-level 5 -o f"],
        ),
        (
            "bench m.onnx --fp16 --duration 5",
            [
                "trtopt build m.onnx --precision fp16",
                "trtopt bench m.trtopt --contract trtexec-10 --duration 5",
            ],
        ),
        ("bench m.onnx --noCudaGraph", ["trtopt bench m.onnx --contract trtexec-11 --no-graph"]),
        ("bench m.onnx --skipInference", ["trtopt build m.onnx"]),
        ("bench f.trtopt --useCudaGraph", ["trtopt bench f.trtopt --contract trtexec-10 --graph"]),
        ("bench --loadEngine=e.plan", ["trtopt bench e.plan --trust e.plan --contract trtexec-10"]),
        ("profile --loadEngine=e.plan", ["trtopt profile e.plan --trust e.plan"]),
        ("sweep m.onnx --best", ["--best: build --precision best (measured; needs samples: "
                                 "trtopt trtexec --data DATA)"]),
        (
            "bench m.onnx --useDLACore=0",
            [
                "--useDLACore=0: cannot be translated",
                "→ trtopt builds for GPUs only: omit it, or stay with trtexec for DLA",
            ],
        ),
    ],
)  # fmt: skip
def test_options_of_trtexec_are_answered_with_lines_to_paste(line: str, lines: list[str]) -> None:
    assert answered(line) == lines


def test_an_option_that_is_dropped_is_a_comment_above_the_lines() -> None:
    error = refused("bench m.onnx --percentile=99")
    assert isinstance(error, click.NoSuchOption)
    text = answer(error.option_name, ["bench", "m.onnx", "--percentile=99"], error.ctx)
    assert text is not None
    assert "  # --percentile=99: no effect here: bench shows p50, p90 and p99" in text


def test_an_option_of_neither_is_not_answered() -> None:
    error = refused("build m.onnx --no-such-thing")
    assert isinstance(error, click.NoSuchOption)
    assert answer(error.option_name, ["build", "m.onnx", "--no-such-thing"], error.ctx) is None


def test_the_help_lists_what_users_reach_for_first() -> None:
    assert list(COMMANDS)[:5] == ["optimize", "build", "bench", "profile", "compare"]
    with click.Context(cli) as context:
        text = cli.get_help(context)
    assert [line[:-1] for line in text.splitlines() if line[:-1] in SECTIONS] == list(SECTIONS)
