"""Commands on documentation pages: find them, check that they exist, and run those that show their output.

A `console` block holds commands, after `$ `, with their real output. An `sh` block holds commands that a
reader adapts. Run as a module, this writes the output of all `console` blocks into the pages.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tests.support.paths import ROOT
from trtopt.cli.main import cli

BLOCK = re.compile(r"^```(?P<language>console|sh|python)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:trtopt )?[^`\n]+)`")
PAGES = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "_build" not in page.parts
)
OF_OTHER_TOOLS = {"--exportTimes", "--exportProfile"}
COLUMNS = 100


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The shell commands, in their order."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        return [line for line in text.splitlines() if shlex.split(line, comments=True)]


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of these languages."""
    found = [Block(match["language"], match["text"]) for match in BLOCK.finditer(page.read_text("utf-8"))]
    return [block for block in found if block.language in languages]


def calls_in(command: str) -> Iterator[list[str]]:
    """The arguments of each call of trtopt in a shell command."""
    words = shlex.split(command, comments=True)
    while "trtopt" in words:
        words = words[words.index("trtopt") + 1 :]
        end = next((n for n, word in enumerate(words) if word in ("|", "&&", ">", ";")), len(words))
        yield words[:end]


def command_named(arguments: list[str]) -> tuple[click.Context, list[str]]:
    """The context of the command that these arguments call, and the arguments left for it.

    Raises:
        UsageError: there is no such command.
    """
    context = click.Context(cli, info_name="trtopt")
    while isinstance(group := context.command, click.Group) and arguments and arguments[0][0] != "-":
        name, *arguments = arguments
        command = group.get_command(context, name)
        if command is None:
            raise click.UsageError(f"there is no command {context.command_path} {name}")
        context = click.Context(command, parent=context, info_name=name, **command.context_settings)
    return context, arguments


def check_call(arguments: list[str]) -> None:
    """Check a call's command, options and values, without running it. Files need not exist.

    Raises:
        UsageError: what is wrong.
    """
    context, rest = command_named(arguments)
    given, _, _ = context.command.make_parser(context).parse_args(list(rest))
    for parameter in context.command.params:
        value = given.get(parameter.name or "")
        if parameter.required and value is None and "help" not in given and "list" not in given:
            raise click.MissingParameter(ctx=context, param=parameter)
        if "$" in str(value):
            continue  # a variable of the script's
        if isinstance(parameter.type, click.Choice | click.types.IntParamType | click.types.FloatParamType):
            parameter.type_cast_value(context, value)


def options_of(command: click.Command) -> set[str]:
    """All spellings of a command's options."""
    return {"--help", "-h"} | {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


def all_options() -> set[str]:
    """All options of all commands."""
    found: set[str] = set()
    waiting: list[click.Command] = [cli]
    while waiting:
        command = waiting.pop()
        found |= options_of(command)
        if isinstance(command, click.Group):
            context = click.Context(command)
            waiting += filter(
                None, (command.get_command(context, name) for name in command.list_commands(context))
            )
    return found


def inline_problems(page: Path, known: set[str]) -> list[str]:
    """Commands and options in running text that do not exist."""
    problems = []
    for text in INLINE.findall(BLOCK.sub("", page.read_text("utf-8"))):
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        if words[:1] == ["trtopt"] and len(words) > 1 and words[1].islower():
            try:
                context, rest = command_named(words[1:])
            except click.UsageError as error:
                problems.append(f"{text}: {error.message}")
                continue
            names, taken = options_of(context.command), rest
        elif text.startswith("--"):
            names, taken = known | OF_OTHER_TOOLS, words[:1]
        else:
            continue
        options = [part for word in taken if word.startswith("--") for part in word.split("=")[0].split("/")]
        problems += [f"{text}: no option {option}" for option in options if option not in names]
    return problems


def check_python(text: str) -> None:
    """Check that a Python block compiles, that its imports of trtopt exist, and what it passes to functions.

    Raises:
        AssertionError: what is wrong.
    """
    trtopt = importlib.import_module("trtopt")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trtopt":
            module = importlib.import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="trtopt"), attr=name)):
                accepted = inspect.signature(getattr(trtopt, name)).parameters
                assert [one.arg for one in node.keywords if one.arg not in accepted] == [], name


def folder_for(parent: Path) -> Path:
    """A folder in which the commands of a page find what they name."""
    (parent / "models").symlink_to(ROOT / "models")
    return parent


def output_of(command: str, folder: Path) -> str:
    """What a command prints in a pipe."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    plain = {
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "TRTOPT_CACHE_DIR": str(folder / "cache"),
        "PATH": path,
    }
    done = subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | plain, text=True, stdout=-1, stderr=-2, check=False
    )
    assert done.returncode in (0, 3, 5), done.stdout
    return done.stdout


def with_output(page: str, run: Callable[[str], str]) -> str:
    """The page with the present output of its `console` blocks."""

    def renewed(match: re.Match[str]) -> str:
        if match["language"] != "console":
            return match[0]
        shown = [
            f"$ {command}\n{run(command).strip()}" for command in Block("console", match["text"]).commands
        ]
        lines = "\n\n".join(shown).splitlines()
        return "```console\n" + "\n".join(line.rstrip() for line in lines) + "\n```"

    return BLOCK.sub(renewed, page)


def write_output(page: Path) -> None:
    """Run a page's `console` blocks in one folder, and write their output into the page."""
    with tempfile.TemporaryDirectory() as parent:
        folder = folder_for(Path(parent))
        written = with_output(page.read_text("utf-8"), lambda command: output_of(command, folder))
    page.write_text(written, "utf-8")


if __name__ == "__main__":
    for page in PAGES:
        if blocks_of(page, "console"):
            write_output(page)
