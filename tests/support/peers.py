"""What the tests of translated command lines share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import click

from trtopt.cli.main import cli
from trtopt.errors import UsageError
from trtopt.peers.options import Translation


def assert_is_read(command: Sequence[str]) -> None:
    """A command line of trtopt's is one that its own parser takes."""
    with click.Context(cli) as context:
        found = cli.get_command(context, command[0])
        assert found is not None
        found.make_context(command[0], list(command[1:]), parent=context)


def assert_options_are_known(command: Sequence[str]) -> None:
    """Every option of a command line of trtopt's is one of the command's."""
    found = cli.commands[command[0]]
    known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    assert {word for word in command if word.startswith("-") and not word[1:2].isdigit()} - known == set()


def dropped_without_a_word(
    translate: Callable[[Sequence[str]], Translation], base: Sequence[str], added: Iterable[Sequence[str]]
) -> list[Sequence[str]]:
    """What, added to a line, is neither refused, nor named in a note, nor changes what is run."""
    before, silent = translate(base).lines, []
    for words in added:
        with suppress(UsageError):
            found = translate([*base, *words])
            if found.lines == before and not any(words[0].partition("=")[0] in note for note in found.notes):
                silent.append(words)
    return silent
