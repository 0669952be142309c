"""`-o`, the file or folder that a command writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click


def output_option(
    metavar: Literal["FILE", "FOLDER"], text: str, *, name: str = "output", required: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """The option, whose path the command gets as `name`."""
    kind = click.Path(path_type=Path)
    return click.option("-o", "--output", name, type=kind, metavar=metavar, required=required, help=text)
