"""The console that tables and progress appear on."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console that shows names as they are: in a folder's name `[/b]` is no markup, `:key:` no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False)
