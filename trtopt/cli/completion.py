"""`trtopt completion`."""

from __future__ import annotations

import click

_PLACES = {
    "bash": "trtopt completion bash > ~/.local/share/bash-completion/completions/trtopt",
    "zsh": 'trtopt completion zsh > "${fpath[1]}/_trtopt"',
    "fish": "trtopt completion fish > ~/.config/fish/completions/trtopt.fish",
}
"""By shell: how to install its script."""


@click.command()
@click.argument("shell", type=click.Choice(list(_PLACES)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes trtopt's commands, options and files in SHELL.

    Standard error shows how to install it; a new shell then has it.
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None  # click brings these three
    root = context.find_root().command
    click.echo(script(root, {}, "trtopt", "_TRTOPT_COMPLETE").source())
    click.echo(f"trtopt: to install: {_PLACES[shell]}", err=True)
