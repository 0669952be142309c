"""The flags that choose a contract and change its terms, for every command that measures."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--graph/--no-graph", default=None, help="Use a CUDA graph or not [default: as the contract says]."
    ),
    click.option("--transfers/--no-transfers", default=None, help="Copy inputs and outputs in every query."),
    click.option("--pinned/--no-pinned", default=None, help="Copy from and to page-locked host memory."),
    click.option(
        "--queue", "queue_ahead", type=int, metavar="N", help="Queries queued ahead of the one waited for."
    ),
    click.option("--sync", type=click.Choice(["spin", "blocking"]), help="How the host waits."),
    click.option("--streams", type=int, metavar="N", help="Streams, each with a context of its own."),
    click.option(
        "--threads", type=click.Choice(["one", "per-stream"]), help="Host threads that serve the streams."
    ),
)


def contract_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--contract` and the flags that change its terms.

    The command gets `contract`, a name or None, and `terms`, `records.Terms` with what was given.
    """

    @functools.wraps(command)
    def with_terms(**arguments: Any) -> Any:
        from trtopt.records import Terms

        given = {term: arguments.pop(term) for term in Terms.__annotations__}
        terms = {term: value for term, value in given.items() if value is not None}
        return command(**arguments, terms=terms)

    for option in reversed(_OPTIONS):
        with_terms = option(with_terms)
    contract = click.option(
        "--contract", metavar="NAME", help="Terms: trtexec-10, trtexec-11, serving, isolated."
    )
    return contract(with_terms)
