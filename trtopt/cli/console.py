"""What commands print: results on standard output, notes and warnings on standard error."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO, Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trtopt.cli.outputs import QUIET, VERBOSITY, JsonOutput, takes_stdout, write_json
from trtopt.logs import LOG
from trtopt.printable import visible
from trtopt.records import Record
from trtopt.report.view import Note, View, grouped, note_lines

_UNLIMITED = 100_000
"""Columns where no one looks at a screen: a row is one line for programs to read."""


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
    """A console that shows names literally: in a folder's name `[/b]` is no markup, `:key:` no emoji."""
    screen = _Console(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)
    if not screen.file.isatty():
        screen.width = _UNLIMITED
    return screen


def is_live(screen: Console) -> bool:
    """Whether lines can be drawn again."""
    return screen.file.isatty() and screen.is_terminal and not screen.is_dumb_terminal


def show(*parts: RenderableType, err: bool = False) -> None:
    """Print tables and text; in a pipe without wrapping or trailing blanks."""
    screen = console(stderr=err)
    if screen.file.isatty():
        screen.print(*parts, crop=False)  # what does not wrap is the terminal's to wrap
        return
    with screen.capture() as captured:
        screen.print(*parts)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=_stream(err))


def show_result(
    json: JsonOutput | None,
    record: Record,
    shown: View | Sequence[str],
    *,
    alarms: Iterable[str] = (),
    indent: int | None = 2,
) -> None:
    """Print what warns of the result, its JSON if that is requested, and what is shown of it.

    Where the JSON goes to standard output, everything else goes to standard error.
    """
    warn(alarms)
    write_json(json, record, indent=indent)
    if isinstance(shown, View):
        show_view(shown, err=takes_stdout(json))
    else:
        say(*shown, err=takes_stdout(json))


def show_view(view: View, *, err: bool = False) -> None:
    """Print what a record shows, with -v its details, then its notes."""
    show(view.terminal(verbose=is_verbose()), err=err)
    show_notes(view.notes, err=err)


def say(*lines: str, err: bool = False) -> None:
    """Print lines; each stays one line, whatever names it contains."""
    print("\n".join(map(visible, lines)), file=_stream(err))  # click.echo would write past a live display


def say_wrapped(*lines: str, err: bool = False) -> None:
    """Print lines; on a terminal those that are too long break between words, and are indented."""
    screen = console(stderr=err)
    say(*(piece for line in lines for piece in wrapped(line, screen.width)), err=err)


def wrapped(line: str, width: int) -> list[str]:
    """The line in pieces of at most so many columns, as far as its words allow."""
    pieces = textwrap.wrap(
        visible(line), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return pieces or [line]


def note(text: str) -> None:
    """A note on standard error; none with --quiet."""
    if verbosity() != QUIET:
        say_wrapped(f"trtopt: {text}", err=True)
    LOG.info("%s", text)


def show_notes(notes: Iterable[Note], *, err: bool = False) -> None:
    """The notes under a result: three lines, with -v all, with --quiet none."""
    notes = list(notes)
    for line in grouped(notes):
        LOG.info("%s", line)
    lines = note_lines(notes, verbose=is_verbose())
    if lines and verbosity() != QUIET:
        say_wrapped(*lines, err=err)


def warn(texts: Iterable[str]) -> None:
    """Warnings about the result, in red on standard error, whatever the verbosity."""
    for text in texts:
        show(Text(f"WARNING: {text}", "bold red"), err=True)
        LOG.warning("%s", text)


def verbosity() -> int:
    """How often -v is given, or `QUIET`."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else context.meta.get(VERBOSITY, 0)


def is_verbose() -> bool:
    """Whether details are printed."""
    return verbosity() > 0


def _stream(err: bool) -> Any:
    return sys.stderr if err else sys.stdout
