"""The help of commands with many options: headings, units and defaults."""

import re

import click
import pytest
from click.testing import CliRunner

from trtopt.builder_settings import SETTINGS
from trtopt.cli.command import Command
from trtopt.cli.declared import _EXCEPTIONS, FIRST, SECTIONS, is_advanced, names_of, section_of
from trtopt.cli.main import COMMANDS, cli

CONTEXT = click.Context(cli)
EVERY = {name: found for name in COMMANDS if (found := cli.get_command(CONTEXT, name)) is not None}
LEAVES = {name: found for name, found in EVERY.items() if isinstance(found, Command)}


def help_of(name: str, option: str = "--help-all", width: int = 100) -> str:
    return CliRunner().invoke(cli, [name, option], prog_name="trtopt", terminal_width=width).output


def under(title: str, text: str) -> str:
    """What a help lists under a heading."""
    return text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_stands_under_its_heading_and_no_heading_holds_too_many(name: str) -> None:
    text = help_of(name)
    titles = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [title for title in SECTIONS if title in titles]
    for title in titles:
        flags = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", under(title, text), re.M)
        assert 1 < len(flags) <= 16 or title == FIRST, (title, flags)
    options = [one for one in EVERY[name].params if isinstance(one, click.Option) and not one.hidden]
    for option in options:
        together = [one for one in options if section_of(one) == section_of(option)]
        title = section_of(option) if len(together) > 1 else FIRST
        assert re.search(rf"{option.opts[0]}\b", under(title, text)), option.opts


def test_the_headings_name_only_options_that_exist() -> None:
    known = {name for command in LEAVES.values() for one in command.params for name in names_of(one)}
    listed = [flag for flags in SECTIONS.values() for flag in flags]
    assert set(listed) - known == {"--help"}
    assert len(listed) == len(set(listed))
    own = {f"{name} {flag}" for name, one in LEAVES.items() for param in one.params for flag in param.opts}
    assert _EXCEPTIONS - known - own == {"--help"}


@pytest.mark.parametrize("name", LEAVES)
def test_a_help_has_40_lines_at_most_and_says_where_the_rest_is(name: str) -> None:
    short, whole = (help_of(name, option, 80) for option in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 40
    options = [one for one in LEAVES[name].params if isinstance(one, click.Option) and not one.hidden]
    missing = [one for one in options if one.opts[0] not in short]
    assert all(one.opts[0] in whole for one in options)
    assert all(is_advanced(one, name) for one in missing)
    assert not missing or f"trtopt {name} --help-all shows {len(missing)} more" in short


def test_builder_settings_stand_together() -> None:
    text = help_of("build")
    for setting in SETTINGS:
        title = next(title for title in SECTIONS if setting.flag in SECTIONS[title])
        assert setting.flag in under(title, text)


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_named_by_what_they_are_and_not_by_their_type(name: str) -> None:
    command = EVERY[name]
    for one in command.commands.values() if isinstance(command, click.Group) else [command]:
        for option in one.params:
            if isinstance(option, click.Option) and not option.hidden:
                shown = (
                    option.make_metavar(click.Context(one)) if not (option.is_flag or option.count) else ""
                )
                assert not re.search(r"FLOAT|INTEGER|TEXT", shown), (option.opts, shown)
                assert option.help, option.opts


def test_the_list_of_commands_takes_one_line_each() -> None:
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    for name, command in COMMANDS.items():
        summary = (command.help or "").splitlines()[0]
        assert summary.endswith(".")
        assert any(line.split() == [name, *summary.split()] for line in lines), name
