"""Accuracy bounds shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from trtopt.precision.bounds import Bounds, bounds_in

_OPTIONS = (
    click.option("--min-sqnr", type=float, metavar="DB", help="Minimum SQNR of every output, in dB."),
    click.option(
        "--max-error",
        type=float,
        metavar="VALUE",
        help="Maximum absolute error of every output, in its own unit.",
    ),
    click.option("--min-top1", type=float, metavar="SHARE", help="Minimum top-1 agreement, 0 to 1."),
)


def bounds_options(
    min_cosine: float | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add them all, with a default of `--min-cosine`. The command gets `bounds`."""
    cosine = click.option(
        "--min-cosine",
        type=float,
        metavar="VALUE",
        default=min_cosine,
        show_default=min_cosine is not None,
        help="Minimum cosine of every output, at most 1.",
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_bounds(**arguments: object) -> None:
            bounds = bounds_in({name: arguments.pop(name) for name in Bounds.__struct_fields__})
            command(**arguments, bounds=bounds)

        for option in (*reversed(_OPTIONS), cosine):
            with_bounds = option(with_bounds)
        return with_bounds

    return add
