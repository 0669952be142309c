"""What the terminal shows, whatever names hold and whatever it can encode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import DIGITS, CommandLine

NO_TEXT = os.fsdecode(b"caf\xe9")
"""A name in Latin-1."""


@pytest.mark.parametrize("name", ["a[/b]", "a[red]", "a :key: b"])
def test_a_folders_name_is_shown_as_it_is(name: str, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("build", DIGITS, "-o", name, "--backend", "onnxruntime")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: engines by onnxruntime")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_terminal_cannot_encode_is_spelled_out(
    encoding: str, cpu_build: Path, trtopt_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    done = trtopt_cli("bench", cpu_build, "--batch", "1", "--duration", "0.1")
    assert done.returncode == 0, done.stderr
    assert "\\u2013" in done.stdout  # the dash where no copies were timed


@pytest.mark.parametrize("arguments", [["build", "--backend", "onnxruntime"], ["cast", "--no-compare"]])
def test_a_name_that_is_no_text_is_told_as_such(arguments: list[str], trtopt_cli: CommandLine) -> None:
    told = trtopt_cli.fails(2, *arguments, DIGITS, "-o", NO_TEXT)
    assert "has a name that is not UTF-8\n  → rename the file or folder" in told
