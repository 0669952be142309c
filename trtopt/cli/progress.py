"""Live progress on standard error, and none off a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.text import Text

from trtopt.cli.console import console, is_live, is_verbose, note, say, verbosity
from trtopt.cli.options.logging import QUIET
from trtopt.logs import LOG
from trtopt.records import BenchReport, SweepPoint, SweepReport
from trtopt.report.sweep import point_line, points_table
from trtopt.report.view import View
from trtopt.workflows.listener import DONE, Listener

_MINUTE = 60
_SHOWN_FRACTION = 0.02
"""Before so much is done, a time left would be a guess."""


class ProgressBars:
    """One bar per running job, one line for those that wait; finished ones are counted, and gone."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: list[TaskID] = []
        self._waiting = progress.add_task("", total=None, phase="", start=False, visible=False)
        self._began: set[int] = set()

    def plan(self, labels: Sequence[str]) -> None:
        """Start a new list of jobs; earlier bars are removed."""
        for task in self._tasks:
            self._progress.remove_task(task)
        self._began = set()
        count = len(labels)
        self._tasks = [
            self._progress.add_task(
                f"{label} ({index} of {count})" if count > 1 else label,
                total=None,
                phase="",
                start=False,
                visible=False,
            )
            for index, label in enumerate(labels, 1)
        ]
        self._show_waiting()

    def update(self, index: int, phase: str, fraction: float | None) -> None:
        """Show a job's progress; its bar goes when it is done."""
        if index >= len(self._tasks):  # a job on its own, which no one announced
            self.plan([phase])
        task = self._tasks[index]
        self._began.add(index)
        self._progress.start_task(task)
        total = None if fraction is None else 1.0
        done = phase == DONE
        reported = next(one.elapsed for one in self._progress.tasks if one.id == task)
        self._progress.update(
            task, phase=phase, total=total, completed=fraction or 0.0, visible=not done, reported=reported
        )
        if done:
            self._progress.stop_task(task)
        self._show_waiting()

    def _show_waiting(self) -> None:
        left = len(self._tasks) - len(self._began)
        self._progress.update(self._waiting, description=f"{left} waiting", visible=left > 0)


class _Bar(BarColumn):
    """A bar where the length is known, else nothing: one that pulses informs no one."""

    def render(self, task: Task) -> Text:  # type: ignore[override]
        """See `BarColumn.render`."""
        return Text("") if task.total is None else super().render(task)  # type: ignore[return-value]


class _Elapsed(ProgressColumn):
    """The time since a job began; waiting jobs have none."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn.render`."""
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text("" if elapsed is None else duration_text(elapsed))


class _Left(ProgressColumn):
    """The time left, by the part that was done when it was last reported, counted down from then."""

    def render(self, task: Task) -> Text:
        """Nothing where it is unknown."""
        fraction, reported = task.completed if task.total else 0.0, task.fields.get("reported")
        if task.elapsed is None or reported is None or not _SHOWN_FRACTION <= fraction < 1:
            return Text("")
        left = seconds_left(fraction, reported, task.elapsed)
        return Text(f"{duration_text(left)} left")


def seconds_left(fraction: float, reported_s: float, elapsed_s: float) -> float:
    """After `elapsed_s`, when `fraction` was done after `reported_s`."""
    return max(0.0, reported_s / fraction - elapsed_s)


def duration_text(seconds: float) -> str:
    """`0:42`, or `1:02:03`."""
    minutes, rest = divmod(round(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def listening(report: Callable[[BenchReport], None] = lambda report: None) -> Iterator[Listener]:
    """A listener that shows notes and, on a terminal, bars; all on standard error.

    `report` receives each report so far.
    """
    with _progress() as progress:
        bars = ProgressBars(progress)
        yield Listener(progress=bars.update, plans=bars.plan, report=report, note=note)


@contextmanager
def phases(doing: str) -> Iterator[Callable[[str], None]]:
    """Work of unknown length: its phase and the time since it began, on a terminal; receives phases."""
    with _progress() as progress:
        bars = ProgressBars(progress)
        bars.plan([doing])
        bars.update(0, "", None)

        def enter(phase: str) -> None:
            if is_verbose():
                note(phase)
            else:
                LOG.info("%s", phase)
            bars.update(0, phase, None)

        yield enter


@contextmanager
def listening_to_sweep(*, is_of_one: bool = True) -> Iterator[Listener]:
    """A listener that shows a sweep's points: in a live table on a terminal, otherwise one line each.

    Those of several models are one line each everywhere, with the model's name.
    """
    screen = console(stderr=True)
    if verbosity() == QUIET:
        yield Listener()
        return
    if not is_live(screen):
        yield Listener(note=note, sweep=_NewPoints(is_of_one=is_of_one).print_changed)
        return
    progress = _columns()
    bars = ProgressBars(progress)
    with Live(progress, console=screen, transient=True, redirect_stdout=False) as live:
        yield Listener(
            progress=bars.update,
            plans=bars.plan,
            note=note,
            sweep=(lambda report: live.update(Group(View("", [points_table(report)]), progress)))
            if is_of_one
            else _NewPoints(is_of_one=False).print_changed,
        )


class _NewPoints:
    """Prints each point once, and again if it is measured again."""

    def __init__(self, *, is_of_one: bool) -> None:
        self._printed: dict[str, SweepPoint] = {}
        self._is_of_one = is_of_one

    def print_changed(self, report: SweepReport) -> None:
        """Print points that are new or have changed."""
        for point in report.points:
            if self._printed.get(point.key) != point:
                self._printed[point.key] = point
                model = "" if self._is_of_one else f"{report.model}: "
                say(f"trtopt: {model}{point_line(point)}", err=True)


def _columns(*, disable: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        _Bar(),
        _Elapsed(),
        _Left(),
        TextColumn("{task.fields[phase]}", markup=False),
        console=console(stderr=True),
        transient=True,
        redirect_stdout=False,  # a result that goes into a file stays out of the display
        disable=disable,
    )


def _progress() -> Progress:
    return _columns(disable=not is_live(console(stderr=True)) or verbosity() == QUIET)
