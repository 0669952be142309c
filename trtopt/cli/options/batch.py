"""`--batch` and other sizes, as the command line writes them: whole numbers with commas between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def batch_option(text: str) -> Callable[[Callable[..., Any]], Any]:
    """The option; the command gets `batch`, sizes or None."""
    return click.option(
        "--batch",
        metavar="N,N,…",
        callback=lambda context, option, sizes: None if sizes is None else parse_batches(sizes),
        help=text,
    )


def parse_batches(text: str) -> tuple[int, ...]:
    """`1,8,32` as numbers, sorted, without repeats.

    Raises:
        UsageError: not a list of whole numbers from 1 on.
    """
    return unique_sizes("--batch", text, "batch sizes")


def parse_range(text: str) -> tuple[int, ...]:
    """`1,1,4` as numbers, sorted; in a range a repeat marks the tuned size.

    Raises:
        UsageError: not a list of whole numbers from 1 on.
    """
    return tuple(sorted(sizes("--batch", text, "batch sizes")))


def parse_streams(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers of streams, sorted, without repeats.

    Raises:
        UsageError: not a list of whole numbers from 1 on.
    """
    return unique_sizes("--streams", text, "numbers of streams")


def unique_sizes(flag: str, text: str, what: str) -> tuple[int, ...]:
    """The sizes of a list, sorted, without repeats.

    Raises:
        UsageError: see `sizes`.
    """
    return tuple(sorted(set(sizes(flag, text, what))))


def sizes(flag: str, text: str, what: str) -> list[int]:
    """The sizes of a list, in its order.

    Raises:
        UsageError: not a list of whole numbers from 1 on; names the option and what the numbers are.
    """
    from trtopt.errors import UsageError
    from trtopt.recipe import MAX_AXIS, axis_length

    found = [size for part in text.split(",") if (size := axis_length(part.strip())) is not None]
    if len(found) != text.count(",") + 1:
        option = flag if flag.endswith("=") else f"{flag} "
        raise UsageError(
            f"{option}{text!r}: {what} are whole numbers from 1 on, {MAX_AXIS:,} at most",
            f"write, say, {option}1,8,32",
        )
    return found
