"""`--data`: samples, wherever a command reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from trtopt.cli.options.aliases import OptionWithAliases
from trtopt.cli.options.completion import files


def data_option(purpose: str, *, aliases: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """The option, whose value the command gets as `data`; `aliases` are names that it had."""
    return click.option(
        "--data",
        metavar="DATA",
        cls=OptionWithAliases,
        aliases=aliases,
        shell_complete=files,
        help=f"{purpose}: an .npz, a folder of them, Polygraphy's JSON or module:function.",
    )


def older_data_option(name: str) -> Callable[[Callable[..., Any]], Any]:
    """A hidden option that once gave one of the purposes of `--data` alone, and still does."""
    return click.option(name, metavar="DATA", hidden=True)
