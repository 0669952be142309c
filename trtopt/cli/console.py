"""The console for tables and progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trtopt.printable import visible


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


def console(*, stderr: bool = False) -> Console:
    """A console that shows names literally: in a folder's name `[/b]` is no markup, `:key:` no emoji."""
    return _Console(stderr=stderr, markup=False, emoji=False)


def say(*lines: str, err: bool = False) -> None:
    """Print lines; each stays one line, whatever names it contains."""
    click.echo("\n".join(map(visible, lines)), err=err)
