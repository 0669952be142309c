"""A remedy can be carried out: the commands and options that messages name exist, and are not hidden."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import click
import pytest

from tests.support.paths import ROOT
from trtopt import errors
from trtopt.cli.main import COMMANDS, cli

_ERRORS = {name for name, found in vars(errors).items() if isinstance(found, type)} | {"BadParameter"}
_FOREIGN = re.compile(
    r"(nvidia-smi|openssl|nsys|docker|trtexec|perf_analyzer|onnx\.)[^`;,]*( or --export\w+)?"
)
"""What follows the name of another program are that program's options."""


def text_of(node: ast.expr) -> str:
    """The text of a literal, with `…` for what is computed."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return " ".join(text_of(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


@cache
def messages() -> list[tuple[str, str]]:
    """(place, text) of everything that an error is made of, and of every text called a remedy."""
    found = {
        (f"{file.relative_to(ROOT)}:{line}", text)
        for file in (ROOT / "trtopt").rglob("*.py")
        if file.parent.name != "peers"  # about their options
        for line, text in messages_in(file.read_text("utf-8"))
    }
    return sorted(found)


def messages_in(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called(node) in _ERRORS:
            yield from ((node.lineno, text_of(argument)) for argument in node.args)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if any("remedy" in name.lower() or name in ("_AGAIN", "_EXPORT_AGAIN") for name in names):
                yield node.lineno, text_of(node.value)


def options_of(command: click.Command) -> set[str]:
    """The options that the help of a command shows, those of its subcommands included."""
    shown = {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return shown.union(*map(options_of, inner)) | {"--help"}


def command_named(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@cache
def options() -> dict[str, set[str]]:
    return {name: options_of(command_named(name)) for name in COMMANDS}


def faults_in(text: str) -> list[str]:
    """The commands and options of a text that do not exist."""
    own = _FOREIGN.sub("", text)
    faults = [
        f"{option}: no command has it"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", own)
        if not any(option in known for known in options().values())
    ]
    for name, rest in re.findall(r"`?\btrtopt ([a-z]+)\b([^`;,)]*)", own):
        if name in COMMANDS:
            wrong = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest)) - options()[name]
            faults += [f"trtopt {name} has no {option}" for option in sorted(wrong)]
    faults += [
        f"there is no command {name}" for name in re.findall(r"`trtopt ([a-z]+)", own) if name not in COMMANDS
    ]
    return faults


@pytest.mark.parametrize(
    "text",
    [
        "measure again with `trtopt bench --precision fp16`",
        "see `trtopt frobnicate`",
        "add --no-such-thing",
    ],
)
def test_a_remedy_that_cannot_be_carried_out_is_noticed(text: str) -> None:
    assert faults_in(text)


def test_messages_name_commands_and_options_that_exist() -> None:
    assert len(messages()) > 500
    found = [f"{place}: {fault}" for place, text in messages() for fault in faults_in(text)]
    assert found == []


def test_no_install_line_names_an_extra_of_the_unpublished_package() -> None:
    assert [place for place, text in messages() if "trtopt[" in text] == []
