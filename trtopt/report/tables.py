"""The style of tables."""

from __future__ import annotations

from rich.table import Table


def plain_table(title: str | None = None, caption: str | None = None) -> Table:
    """Narrow enough for 80 columns of figures."""
    return Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
