"""What commands print: results on standard output; notes, warnings and live progress on standard error.

Where the JSON of a result goes to standard output, everything else goes to standard error.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from trtopt.cli.outputs import QUIET, VERBOSITY, takes_stdout, write_json
from trtopt.logs import LOG
from trtopt.printable import visible
from trtopt.records import BenchReport, SweepPoint, SweepReport
from trtopt.records.base import Result
from trtopt.report.sweep import point_line
from trtopt.report.view import Note, View, grouped, note_lines
from trtopt.requests.shared import Request
from trtopt.workflows.listener import DONE, Listener

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


def show(*parts: RenderableType, err: bool = False) -> None:
    """Print tables and text; in a pipe without wrapping or trailing blanks."""
    screen = console(stderr=err or takes_stdout())
    if screen.file.isatty():
        screen.print(*parts, crop=False)  # what does not wrap is the terminal's to wrap
        return
    with screen.capture() as captured:
        screen.print(*parts)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=_stream(err))


def show_result(
    result: Result, shown: View | Sequence[str] | None = None, *, alarms: Iterable[str] = ()
) -> None:
    """Print what warns of the result, its JSON if requested, and its view or what is `shown` of it."""
    warn((*getattr(result, "alarms", ()), *alarms))
    try:
        write_json(result.record())
    finally:  # a full disk does not take the result along
        shown = result.view if shown is None else shown
        if isinstance(shown, View):
            show_view(shown)
        else:
            say(*shown)


def show_view(view: View) -> None:
    """Print what a record shows, with -v its details, then its notes."""
    show(view.terminal(verbose=is_verbose()))
    show_notes(view.notes)


def say(*lines: str, err: bool = False) -> None:
    """Print lines; each stays one line, whatever names it contains."""
    print("\n".join(map(visible, lines)), file=_stream(err))  # click.echo would write past a live display


def say_wrapped(*lines: str, err: bool = False) -> None:
    """Print lines; on a terminal those that are too long break between words, and are indented."""
    screen = console(stderr=err or takes_stdout())
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


def show_notes(notes: Iterable[Note]) -> None:
    """The notes under a result: three lines, with -v all, with --quiet none."""
    notes = list(notes)
    for line in grouped(notes):
        LOG.info("%s", line)
    lines = note_lines(notes, verbose=is_verbose())
    if lines and verbosity() != QUIET:
        say_wrapped(*lines)


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
    return sys.stderr if err or takes_stdout() else sys.stdout


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────

_DAY = 86400.0
AnyRequest = TypeVar("AnyRequest", bound=Request)
Outcome = TypeVar("Outcome")


class ProgressBars(Progress):
    """One bar per running job, one line for those that wait; finished ones are counted, and gone.

    The points of a sweep are printed, each once and again when it is measured again.
    """

    def __init__(self, screen: Console, *, disable: bool = False) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            _Bar(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.fields[phase]}", markup=False),
            console=screen,
            speed_estimate_period=_DAY,
            transient=True,
            redirect_stdout=False,  # a result that goes into a file stays out of the display
            disable=disable,
        )
        self._jobs: list[TaskID] = []
        self._waiting = self.add_task("", total=None, phase="", visible=False)
        self._printed: dict[tuple[str, str], SweepPoint] = {}

    def plan(self, labels: Sequence[str]) -> None:
        """Start a new list of jobs; earlier bars are removed."""
        for job in self._jobs:
            self.remove_task(job)
        count = len(labels)
        self._jobs = [
            self.add_task(
                f"{label} ({index} of {count})" if count > 1 else label,
                total=None,
                phase="",
                start=False,
                visible=False,
            )
            for index, label in enumerate(labels, 1)
        ]
        self._show_waiting()

    def show(self, index: int, phase: str, fraction: float | None) -> None:
        """Show a job's progress; its bar goes when it is done."""
        if index >= len(self._jobs):  # a job on its own, which no one announced
            self.plan([phase])
        job = self._jobs[index]
        self.start_task(job)
        total = None if fraction is None else 1.0
        done = phase == DONE
        self.update(job, phase=phase, total=total, completed=fraction, visible=not done)
        if done:
            self.stop_task(job)
        self._show_waiting()

    def print_points(self, report: SweepReport, total: int) -> None:
        """Print points that are new or have changed, each as one of so many."""
        for point in report.points:
            if self._printed.get((report.model, point.key)) != point:
                self._printed[report.model, point.key] = point
                done = sum(model == report.model for model, _ in self._printed)
                say(f"trtopt: {report.model} ({done} of {total}): {point_line(point)}", err=True)

    def _show_waiting(self) -> None:
        left = sum(not one.started for one in self.tasks if one.id in self._jobs)
        self.update(self._waiting, description=f"{left} waiting", visible=left > 0)


class _Bar(BarColumn):
    """A bar where the length is known, else nothing: one that pulses informs no one."""

    def render(self, task: Task) -> Text:  # type: ignore[override]
        """See `BarColumn.render`."""
        return Text("") if task.total is None else super().render(task)  # type: ignore[return-value]


class _Left(TimeRemainingColumn):
    """The time left, where it is known."""

    def render(self, task: Task) -> Text:
        """See `TimeRemainingColumn.render`."""
        return Text("") if task.time_remaining is None else super().render(task) + " left"


@contextmanager
def listening(report: Callable[[BenchReport], None] = lambda report: None) -> Iterator[Listener]:
    """A listener that shows notes and, on a terminal, bars; all on standard error.

    `report` receives each report so far. The points of a sweep are a line each.
    """
    screen = console(stderr=True)
    can_redraw = screen.file.isatty() and screen.is_terminal and not screen.is_dumb_terminal
    is_quiet = verbosity() == QUIET
    with ProgressBars(screen, disable=is_quiet or not can_redraw) as bars:

        def sweep(report: SweepReport, total: int) -> None:
            if not is_quiet:
                bars.print_points(report, total)

        yield Listener(progress=bars.show, plans=bars.plan, report=report, note=note, sweep=sweep)


def perform(work: Callable[[AnyRequest], Outcome], request: AnyRequest, doing: str = "") -> Outcome:
    """Run a workflow, its notes and its progress shown; `doing` names one whose length is unknown."""
    with listening() as listener:
        if doing:
            listener.phase(doing, "")
        return work(replace(request, listener=listener))


@contextmanager
def phases(doing: str) -> Iterator[Listener]:
    """Work of unknown length: its phase and the time since it began, on a terminal; its notes are phases."""
    with listening() as listener:
        listener.phase(doing, "")

        def enter(phase: str) -> None:
            if is_verbose():
                note(phase)
            else:
                LOG.info("%s", phase)
            listener.progress(0, phase, None)

        yield Listener(note=enter)
