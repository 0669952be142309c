"""Options that older names still set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


class OptionWithAliases(click.Option):
    """An option that also goes by the names it once had; help and completion show the present one only."""

    def __init__(self, *arguments: Any, aliases: Sequence[str], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.aliases = tuple(aliases)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """See `click.Option.add_to_parser`."""
        super().add_to_parser(parser, ctx)
        action = "append" if self.multiple else "store"
        parser.add_option(obj=self, opts=self.aliases, dest=self.name, action=action, nargs=self.nargs)
