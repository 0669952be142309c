"""Commands that consist of other commands."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.core import ParameterSource

_PASSED_ON = {"verbose": "-v", "quiet": "-q"}


def run_command(context: click.Context, arguments: Sequence[str]) -> None:
    """Run another command of trtopt, as loud as this one; end with its exit code if it fails."""
    loudness = [
        flag
        for name, flag in _PASSED_ON.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    root = context.find_root().command
    status = root.main([*arguments, *loudness], prog_name="trtopt", standalone_mode=False)
    if status:
        context.exit(status)
