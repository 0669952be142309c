"""The style of tables."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

UNKNOWN = "–"


def plain_table(*columns: str, left: Collection[str] = (), no_wrap: bool = True) -> Table:
    """Narrow enough for 80 columns of figures, without lines; `left` columns hold text."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=no_wrap)
    return table


def shown(value: float | None, form: str) -> str:
    """A figure in that format; a dash where it is unknown."""
    return UNKNOWN if value is None else format(value, form)


def titled(title: str, table: Table, caption: str = "") -> RenderableType:
    """A table with a line above and, where there is something to explain, one below."""
    below = [Text(caption, "dim")] if caption else []
    return Group(Text(title, "bold"), table, *below)
