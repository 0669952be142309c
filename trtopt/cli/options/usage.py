"""The usage line of a command."""

from __future__ import annotations

import click


def with_required_options_in_usage(command: click.Command) -> click.Command:
    """The command, or every command of the group, with a usage line that names the options it needs.

    A usage error prints the line, and thereby all that is missing at once.
    """
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_required_options_in_usage(inner)
    else:
        context = click.Context(command)
        needed = [
            f"{option.opts[0]} {option.make_metavar(context).strip('[]')}"
            for option in command.params
            if isinstance(option, click.Option) and option.required
        ]
        command.options_metavar = " ".join([*needed, "[OPTIONS]"])
    return command
