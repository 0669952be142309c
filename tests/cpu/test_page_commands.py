"""Commands that pages show with their output run, in the order of the page, on the model that they name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.page_commands import PAGES, blocks_of, folder_for
from tests.support.paths import ROOT
from trtopt.cli.main import cli

RUNNING = [page for page in PAGES if blocks_of(page, "console")]
SECONDS = "0.05"


def quick(arguments: list[str]) -> list[str]:
    """The same call, with a short measurement where it names the duration."""
    at = [n for n, word in enumerate(arguments, 1) if word == "--duration"]
    return [SECONDS if n in at else word for n, word in enumerate(arguments)]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_with_output_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder_for(tmp_path))
    monkeypatch.setenv("TRTOPT_CACHE_DIR", str(tmp_path / "cache"))
    for block in blocks_of(page, "console"):
        for command in block.commands:
            program, *arguments = shlex.split(command)
            assert program == "trtopt"
            done = CliRunner().invoke(cli, quick(arguments), catch_exceptions=False)
            may_end_with = (0, 3, 5) if arguments[0] == "compare" else (0,)  # 3, 5: a gate that is closed
            assert done.exit_code in may_end_with, f"{command}\n{done.output}"
