"""`--strict`: an accuracy alarm fails the command."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trtopt.cli.exit_codes import NOT_MET

strict_option = click.option(
    "--strict", is_flag=True, help="Exit with 3 on an accuracy WARNING: low SQNR or cosine, NaN, infinity."
)


def check_alarms(alarms: Sequence[str], *, strict: bool) -> None:
    """End with exit code 3 if there are alarms and they are to count."""
    if strict and alarms:
        raise click.exceptions.Exit(NOT_MET)
