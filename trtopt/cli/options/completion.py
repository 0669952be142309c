"""What a shell offers for values that a table names; the table is read when the shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Names = Callable[[], Iterable[str]]


def names(table: Names) -> Completer:
    """Offer the names of a table."""
    return lambda context, option, begun: _matching(table(), begun)


def names_or_files(table: Names) -> Completer:
    """Offer the names of a table, and files."""
    return lambda context, option, begun: [*_matching(table(), begun), CompletionItem(begun, type="file")]


def files(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer files, for values that may be something else too."""
    return [CompletionItem(begun, type="file")]


def lists_of(table: Names) -> Completer:
    """Offer the names of a table as the next entry of a list with commas."""

    def offered(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
        done, comma, last = begun.rpartition(",")
        return [CompletionItem(f"{done}{comma}{name}") for name in table() if name.startswith(last)]

    return offered


def node_names(context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer the nodes of MODEL, where it has been typed and can be read."""
    from trtopt.errors import TrtoptError
    from trtopt.onnxio import model_file
    from trtopt.onnxio.graph_walk import graphs_of

    try:
        graph = model_file.load(Path(context.params["model"])).proto.graph
    except (KeyError, TypeError, OSError, TrtoptError):
        return []
    return _matching((node.name for part in graphs_of(graph) for node in part.node if node.name), begun)


def lint_check_names() -> Iterable[str]:
    """The checks of `trtopt lint`."""
    from trtopt.rewrite.lint import CHECKS

    return ("any", *(check.name for check in CHECKS))


def _matching(offered: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in offered if name.startswith(begun)]
