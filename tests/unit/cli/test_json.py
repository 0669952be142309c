"""Which commands have `--json`: all but those whose output is no result of their own."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trtopt.cli.main import COMMANDS, cli
from trtopt.export.spec import Collection, files
from trtopt.records import from_json

WITHOUT = {
    "export": "it writes an ONNX file, which `inspect` shows",
    "report": "it writes a page of files that are JSON",
    "demo": "it runs `optimize`",
    "trtexec": "it runs other commands",
    "polygraphy": "it runs other commands",
    "deploy triton": "it writes a repository",
    "history add": "it keeps files, which `history show` shows",
    "cache prune": "it removes files",
    "completion": "it prints a script",
}
"""Each with the reason; a new command without is a new line."""


def every_command() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name, one in COMMANDS.items():
        inner = one.commands if isinstance(one, click.Group) else {"": one}
        found |= {f"{name} {own}".strip(): command for own, command in inner.items()}
    return found


def test_every_command_with_a_result_writes_it_as_json() -> None:
    lacking = {
        name
        for name, one in every_command().items()
        if not any("--json" in param.opts for param in one.get_params(click.Context(one)))
    }
    assert lacking <= WITHOUT.keys()


@pytest.mark.parametrize("names", [[], ["digits"]])
def test_the_collection_is_written_as_json(names: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert CliRunner().invoke(cli, ["models", *names, "--json", str(out)]).exit_code == 0
    found = from_json(out.read_bytes(), Collection).models
    assert [one.name for one in found] == [*(names or files())]
    printed = CliRunner().invoke(cli, ["models", *names, "--json", "-"])
    assert json.loads(printed.stdout)["schema"] == "trtopt.models/1"
