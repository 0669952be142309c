"""The style of tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def plain_table() -> Table:
    """Narrow enough for 80 columns of figures, without lines."""
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def titled(title: str, table: Table, caption: str = "") -> RenderableType:
    """A table with a line above and, where there is something to explain, one below."""
    below = [Text(caption, "dim")] if caption else []
    return Group(Text(title, "bold"), table, *below)
