"""Shares as the command line writes them: `5%` or `0.05`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def share_option(flag: str, *, text: str, default: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """An option whose value is a share; the command gets a number, or None without a default."""
    return click.option(
        flag,
        metavar="PERCENT",
        default=default,
        show_default=default is not None,
        callback=lambda context, option, share: None if share is None else parse_share(flag, share),
        help=text,
    )


def parse_share(flag: str, text: str) -> float:
    """`5%` or `0.05`; not `5`, which might be 5 % or five times.

    Raises:
        UsageError: no share above 0.
    """
    from trtopt.errors import UsageError

    number = text.strip().removesuffix("%").rstrip()
    is_percent = number != text.strip()
    try:
        share = float(number) / (100 if is_percent else 1)
    except ValueError:
        share = 0.0
    if not share > 0 or (share >= 1 and not is_percent):
        raise UsageError(f"{flag} {text}: not a share above 0", "write 5% or 0.05")
    return share
