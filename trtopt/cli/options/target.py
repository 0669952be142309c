"""`--target`: the TensorRT that a graph is written or judged for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from trtopt.targets import DEFAULT, target_names


def target_option(purpose: str, *, otherwise: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """The option; `otherwise` describes the default of a command that finds it out itself."""
    default = "" if otherwise is None else f" [default: {otherwise}]"
    return click.option(
        "--target",
        type=click.Choice(target_names()),
        default=DEFAULT if otherwise is None else None,
        show_default=True,
        help=f"TensorRT to {purpose}{default}.",
    )
