"""Exit codes besides those of errors, which are in `trtopt.errors`: 1 for a failure, 2 for wrong usage."""

from __future__ import annotations

from collections.abc import Sequence

import click

NOT_MET = 3
"""The work is done, but a bound is not met, B is slower than A, lint has findings to fail on, or there is an
accuracy alarm (`--strict`)."""
UNTRUSTWORTHY = 4
"""Figures are not trustworthy (`--strict`)."""
NOT_SHOWN = 5
"""B is not SLOWER than A, but not shown to be within the limit either."""
INTERRUPTED = 130
BY_SIGNAL = 128
"""The signal's number is added to this."""

strict_option = click.option(
    "--strict", is_flag=True, help="Exit with 3 on an accuracy WARNING: low SQNR or cosine, NaN, infinity."
)


def check_alarms(alarms: Sequence[str], *, strict: bool) -> None:
    """End with exit code 3 if there are alarms and they are to count."""
    if strict and alarms:
        raise click.exceptions.Exit(NOT_MET)
