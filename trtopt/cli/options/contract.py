"""Flags that select a contract and change its terms, for every command that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import click

from trtopt.cli.options.completion import contract_names, names
from trtopt.measure.contracts import DEFAULT, SUMMARIES

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

_STREAMS = click.option("--streams", type=int, metavar="N", help="Streams, each with its own context.")
_OTHERS = (
    click.option("--graph/--no-graph", default=None, help="Launch each query as a CUDA graph."),
    click.option("--transfers/--no-transfers", default=None, help="Copy inputs and outputs in every query."),
    click.option("--pinned/--no-pinned", default=None, help="Copy from and to page-locked host memory."),
    click.option(
        "--queue", "queue_ahead", type=int, metavar="N", help="Queries queued ahead of the one waited for."
    ),
    click.option("--sync", type=click.Choice(["spin", "blocking"]), help="How the host waits for the GPU."),
    click.option(
        "--threads", type=click.Choice(["one", "per-stream"]), help="Host threads that serve the streams."
    ),
)
_OTHER_TERMS = ("graph", "transfers", "pinned", "queue_ahead", "sync", "threads")


def contract_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--contract` and the flags that change its terms.

    The command receives `contract`, a name or None, and `terms`, `records.Terms` with the given values.
    """
    return _with_flags(command, (*_OTHERS, _STREAMS), ("streams", *_OTHER_TERMS))


def contract_flags_of_one_stream(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same without `--streams`, for commands that take several numbers of them."""
    return _with_flags(command, _OTHERS, _OTHER_TERMS)


def _with_flags(
    command: Callable[..., None], options: Sequence[Decorator], values: Sequence[str]
) -> Callable[..., None]:
    @functools.wraps(command)
    def with_terms(**arguments: object) -> None:
        given = {term: arguments.pop(term) for term in values}
        terms = {term: value for term, value in given.items() if value is not None}
        command(**arguments, terms=terms)

    decorated: Callable[..., None] = with_terms
    for option in reversed(options):
        decorated = option(decorated)
    named = ", ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
    contract = click.option(
        "--contract",
        metavar="NAME",
        shell_complete=names(contract_names),
        help=f"Terms: {named} [default: {DEFAULT}].",
    )
    return contract(decorated)
