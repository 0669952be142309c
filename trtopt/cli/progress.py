"""Live progress on standard error, and none off a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from trtopt.cli.console import console, say
from trtopt.logs import LOG
from trtopt.records import BenchReport, SweepPoint, SweepReport
from trtopt.report.sweep import point_line, sweep_table
from trtopt.workflows.listener import Listener


class ProgressBars:
    """One bar per job; a job of unknown length pulses."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: list[TaskID] = []

    def plan(self, labels: Sequence[str]) -> None:
        """Start a new list of jobs; earlier bars are removed."""
        for task in self._tasks:
            self._progress.remove_task(task)
        self._tasks = [
            self._progress.add_task(label, total=None, phase="waiting", start=False) for label in labels
        ]

    def update(self, index: int, phase: str, fraction: float | None) -> None:
        """Show a job's progress."""
        total = None if fraction is None else 1.0
        self._progress.start_task(self._tasks[index])
        self._progress.update(self._tasks[index], phase=phase, total=total, completed=fraction or 0.0)


@contextmanager
def listening(report: Callable[[BenchReport], None] = lambda report: None) -> Iterator[Listener]:
    """A listener that shows notes and, on a terminal, bars; all on standard error.

    `report` receives each report so far.
    """
    screen = console(stderr=True)
    with _progress(screen) as progress:
        bars = ProgressBars(progress)
        yield Listener(progress=bars.update, plans=bars.plan, report=report, note=_print_note)


@contextmanager
def listening_to_sweep() -> Iterator[Listener]:
    """A listener that shows a sweep's points: in a live table on a terminal, otherwise one line each."""
    screen = console(stderr=True)
    progress = _progress(screen)
    bars = ProgressBars(progress)
    if not screen.is_terminal:
        yield Listener(note=_print_note, sweep=_NewPoints().print_changed)
        return
    with Live(progress, console=screen, transient=True) as live:
        yield Listener(
            progress=bars.update,
            plans=bars.plan,
            note=_print_note,
            sweep=lambda report: live.update(Group(sweep_table(report), progress)),
        )


class _NewPoints:
    """Prints each point once, and again if it is measured again."""

    def __init__(self) -> None:
        self._printed: dict[str, SweepPoint] = {}

    def print_changed(self, report: SweepReport) -> None:
        """Print points that are new or have changed."""
        for point in report.points:
            if self._printed.get(point.key) != point:
                self._printed[point.key] = point
                _print_note(point_line(point))


def _progress(screen: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[phase]}", markup=False),
    )
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def _print_note(text: str) -> None:
    say(f"trtopt: {text}", err=True)
    LOG.info("%s", text)
