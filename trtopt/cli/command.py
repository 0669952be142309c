"""A command: its options are made when they are needed, so that a list of commands loads none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from inspect import cleandoc
from typing import Any

import click

from trtopt.cli.outputs import LOG_OPTIONS, OWN, checked_outputs

WORDS = "trtopt.words"
"""The key in a context's `meta`: the words of the command line."""
_ALL = "trtopt.help_all"
"""The key in a context's `meta`."""
_LINES = 40
"""A help of at most so many lines shows all options."""
_COLUMNS = 24
"""Those of names in a help that does not, where lines are scarce."""


def _show_all(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, hidden=True, expose_value=False, callback=_show_all
)
"""A help that leaves options out names it."""


class Command(click.Command):
    """A command whose function gets a request, made of the command line, then the values of its own options.

    `request` names its class as MODULE.CLASS of `trtopt.requests`. Fields in `optional` may be missing from
    the command line: the request is then None. `synonyms` are what other tools, and habit, call the command;
    `more_precisions` is the one that writes the precisions that this one does not.
    """

    def __init__(
        self,
        *args: Any,
        request: str | None = None,
        optional: Sequence[str] = (),
        synonyms: Sequence[str] = (),
        more_precisions: str | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self._request, self._optional = request, optional
        self.synonyms, self.more_precisions = synonyms, more_precisions
        self._own: list[click.Parameter] = self.__dict__.pop("params")  # in place of these `params` is made

    @cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]
        """Arguments, the output, what the request declares, its own, and what every command has."""
        made = []
        if self._request is not None:
            from trtopt.cli.declared import parameters_of

            made = parameters_of(self._class, self._optional)
        return [*sorted([*made, *self._own], key=_rank), *LOG_OPTIONS, _HELP_ALL]

    @property
    def _class(self) -> type:
        module, _, name = str(self._request).partition(".")
        found: type = getattr(import_module(f"trtopt.requests.{module}"), name)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command.invoke`; the outputs are checked first."""
        values = {name: value for name, value in ctx.params.items() if name not in OWN}
        with checked_outputs(ctx):
            if self._request is not None:
                from trtopt.cli.declared import fields_of

                given = {one.name: values.pop(one.name) for one in fields_of(self._class)}
                is_whole = all(given[one] is not None for one in self._optional)
                values["request"] = self._class(**given) if is_whole else None
            try:
                return ctx.invoke(self.callback, **values)  # type: ignore[arg-type]
            except SystemExit as ended:
                from trtopt.errors import UsageError

                if ended.code:  # a signal's, or one of the user's code
                    raise
                raise UsageError(
                    "your code ended the process before the command was done", "call no sys.exit() in it"
                ) from ended

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the options that are needed: a usage error prints them, all that is missing at once."""
        needed = [
            f"{one.opts[0]} {one.make_metavar(ctx).strip('[]')}"
            for one in self.params
            if isinstance(one, click.Option) and one.required
        ]
        return [*needed, *super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: click.Context) -> str:
        """All of it if that is short or requested, else what most need."""
        is_requested = ctx.meta.get(_ALL)
        ctx.meta[_ALL] = True
        whole = super().get_help(ctx)
        if is_requested or whole.count("\n") < _LINES:
            return whole
        ctx.meta[_ALL] = False
        return super().get_help(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_help_text`; the first paragraphs say what most need."""
        paragraphs = cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs[: None if ctx.meta.get(_ALL, True) else 2]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        from trtopt.cli.declared import is_advanced, sections_of

        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option) and not one.hidden]
        if ctx.meta.get(_ALL, True):
            for title, listed in sections_of(options).items():
                with formatter.section(title):
                    formatter.write_dl(_rows(listed, ctx))
            return
        few = [one for one in options if not is_advanced(one, str(self.name))]
        with formatter.section("Options"):
            formatter.write_dl(_rows(few, ctx), col_max=_COLUMNS)
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} --help-all shows {len(options) - len(few)} more options.")


def _rows(options: Sequence[click.Option], context: click.Context) -> list[tuple[str, str]]:
    return [row for one in options if (row := one.get_help_record(context))]


class Group(click.Group):
    """Commands in a command, which has `synonyms` as these have."""

    command_class = Command

    def __init__(self, *args: Any, synonyms: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.synonyms = synonyms


def command(request: str | None = None, **attributes: Any) -> Callable[[Callable[..., None]], Command]:
    """Make a `Command` of a function."""
    return click.command(cls=Command, request=request, **attributes)


def _rank(param: click.Parameter) -> int:
    """Arguments first, then the output; the rest in its own order."""
    return 0 if isinstance(param, click.Argument) else 1 if "-o" in param.opts else 2
