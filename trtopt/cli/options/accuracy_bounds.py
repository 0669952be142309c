"""Accuracy bounds shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import inf
from typing import Any

import click

from trtopt.errors import UsageError
from trtopt.precision.bounds import Bounds

_OPTIONS = (
    click.option("--min-cosine", type=float, help="Minimum cosine of every output."),
    click.option("--min-sqnr", type=float, metavar="DB", help="Minimum SQNR of every output."),
    click.option("--max-error", type=float, help="Maximum absolute error of every output."),
    click.option("--min-top1", type=float, metavar="SHARE", help="Minimum top-1 agreement, 0 to 1."),
)
_RANGES = {"min_cosine": (-1, 1), "min_sqnr": (-inf, inf), "max_error": (0, inf), "min_top1": (0, 1)}


def bounds_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add them all. The command gets `bounds`."""

    @functools.wraps(command)
    def with_bounds(**arguments: Any) -> None:
        bounds = Bounds(**{name: arguments.pop(name) for name in Bounds.__struct_fields__})
        for name, value in bounds.given.items():
            low, high = _RANGES[name]
            if not low <= value <= high:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} {value:g}: out of range", f"give a number from {low:g} to {high:g}")
        command(**arguments, bounds=bounds)

    for option in reversed(_OPTIONS):
        with_bounds = option(with_bounds)
    return with_bounds
