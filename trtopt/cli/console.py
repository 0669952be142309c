"""The console for tables and progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trtopt.printable import visible

_FILE_WIDTH = 160


class _Console(Console):
    """A console that shows every string on one line; several lines are a group."""

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console.render_str`."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)
        return super().render(renderable, options)


def console(*, stderr: bool = False, file: IO[str] | None = None) -> Console:
    """A console that shows names literally: in a folder's name `[/b]` is no markup, `:key:` no emoji.

    What it writes to a `file` is wide enough for every table.
    """
    width = _FILE_WIDTH if file is not None else None
    return _Console(stderr=stderr, file=file, width=width, markup=False, emoji=False)


def say(*lines: str, err: bool = False) -> None:
    """Print lines; each stays one line, whatever names it contains."""
    click.echo("\n".join(map(visible, lines)), err=err)
