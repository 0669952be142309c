"""Flags that select a contract and change its terms, for every command that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

_STREAMS = click.option("--streams", type=int, metavar="N", help="Streams, each with its own context.")
_OTHERS = (
    click.option(
        "--graph/--no-graph", default=None, help="Use a CUDA graph or not [default: the contract's]."
    ),
    click.option("--transfers/--no-transfers", default=None, help="Copy inputs and outputs in every query."),
    click.option("--pinned/--no-pinned", default=None, help="Copy from and to page-locked host memory."),
    click.option(
        "--queue", "queue_ahead", type=int, metavar="N", help="Queries queued ahead of the one waited for."
    ),
    click.option("--sync", type=click.Choice(["spin", "blocking"]), help="How the host waits."),
    click.option(
        "--threads", type=click.Choice(["one", "per-stream"]), help="Host threads that serve the streams."
    ),
)
_OTHER_TERMS = ("graph", "transfers", "pinned", "queue_ahead", "sync", "threads")


def contract_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--contract` and the flags that change its terms.

    The command receives `contract`, a name or None, and `terms`, `records.Terms` with the given values.
    """
    return _with_flags(command, (*_OTHERS, _STREAMS), ("streams", *_OTHER_TERMS))


def contract_flags_of_one_stream(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same without `--streams`, for commands that take several stream counts."""
    return _with_flags(command, _OTHERS, _OTHER_TERMS)


def _with_flags(
    command: Callable[..., Any], options: Sequence[Any], names: Sequence[str]
) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_terms(**arguments: Any) -> Any:
        given = {term: arguments.pop(term) for term in names}
        terms = {term: value for term, value in given.items() if value is not None}
        return command(**arguments, terms=terms)

    for option in reversed(options):
        with_terms = option(with_terms)
    contract = click.option(
        "--contract", metavar="NAME", help="Terms: trtexec-10, trtexec-11, serving, isolated."
    )
    return contract(with_terms)
