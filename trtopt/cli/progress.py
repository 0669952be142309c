"""Live progress on standard error, and none off a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from trtopt.cli.console import console, is_live, is_verbose, note, say, verbosity
from trtopt.cli.outputs import QUIET
from trtopt.logs import LOG
from trtopt.records import BenchReport, SweepPoint, SweepReport
from trtopt.report.sweep import point_line, points_table
from trtopt.report.view import View
from trtopt.workflows.listener import DONE, Listener

_MINUTE = 60
_SHOWN_FRACTION = 0.02
"""Before so much is done, a time left would be a guess."""


class ProgressBars(Progress):
    """One bar per running job, one line for those that wait; finished ones are counted, and gone.

    The points of a sweep are in a table above the bars, or printed, each once and again when it is measured
    again.
    """

    def __init__(self, screen: Console, *, disable: bool = False) -> None:
        self._points: SweepReport | None = None  # rich asks for the display at once
        super().__init__(
            _Text(lambda task: task.description),
            _Bar(),
            _Text(_elapsed),
            _Text(_left),
            _Text(lambda task: str(task.fields["phase"])),
            console=screen,
            transient=True,
            redirect_stdout=False,  # a result that goes into a file stays out of the display
            disable=disable,
        )
        self._jobs: list[TaskID] = []
        self._began: set[int] = set()
        self._waiting = self.add_task("", total=None, phase="", start=False, visible=False)
        self._printed: dict[tuple[str, str], SweepPoint] = {}

    def get_renderables(self) -> Iterable[RenderableType]:
        """See `Progress.get_renderables`."""
        if self._points is not None:
            yield View("", [points_table(self._points)])
        yield from super().get_renderables()

    def plan(self, labels: Sequence[str]) -> None:
        """Start a new list of jobs; earlier bars are removed."""
        for job in self._jobs:
            self.remove_task(job)
        self._began = set()
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
        self._began.add(index)
        self.start_task(job)
        total = None if fraction is None else 1.0
        done = phase == DONE
        reported = next(one.elapsed for one in self.tasks if one.id == job)
        self.update(
            job, phase=phase, total=total, completed=fraction or 0.0, visible=not done, reported=reported
        )
        if done:
            self.stop_task(job)
        self._show_waiting()

    def show_points(self, report: SweepReport) -> None:
        """Show the points of a sweep so far in a table."""
        self._points = report
        self.refresh()

    def print_points(self, report: SweepReport, *, with_model: bool) -> None:
        """Print points that are new or have changed."""
        for point in report.points:
            if self._printed.get((report.model, point.key)) != point:
                self._printed[report.model, point.key] = point
                say(f"trtopt: {f'{report.model}: ' if with_model else ''}{point_line(point)}", err=True)

    def _show_waiting(self) -> None:
        left = len(self._jobs) - len(self._began)
        self.update(self._waiting, description=f"{left} waiting", visible=left > 0)


class _Bar(BarColumn):
    """A bar where the length is known, else nothing: one that pulses informs no one."""

    def render(self, task: Task) -> Text:  # type: ignore[override]
        """See `BarColumn.render`."""
        return Text("") if task.total is None else super().render(task)  # type: ignore[return-value]


class _Text(ProgressColumn):
    """Text, whose names are no markup."""

    def __init__(self, text: Callable[[Task], str]) -> None:
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        """See `ProgressColumn.render`."""
        return Text(self._text(task))


def _elapsed(task: Task) -> str:
    """The time since a job began; waiting jobs have none."""
    elapsed = task.finished_time if task.finished else task.elapsed
    return "" if elapsed is None else duration_text(elapsed)


def _left(task: Task) -> str:
    """The time left, by the part that was done when it was last reported; nothing where it is unknown."""
    fraction, reported = task.completed if task.total else 0.0, task.fields.get("reported")
    if task.elapsed is None or reported is None or not _SHOWN_FRACTION <= fraction < 1:
        return ""
    return f"{duration_text(seconds_left(fraction, reported, task.elapsed))} left"


def seconds_left(fraction: float, reported_s: float, elapsed_s: float) -> float:
    """After `elapsed_s`, when `fraction` was done after `reported_s`: counted down from then."""
    return max(0.0, reported_s / fraction - elapsed_s)


def duration_text(seconds: float) -> str:
    """`0:42`, or `1:02:03`."""
    minutes, rest = divmod(round(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def listening(
    report: Callable[[BenchReport], None] = lambda report: None, *, models: int = 1
) -> Iterator[Listener]:
    """A listener that shows notes and, on a terminal, bars; all on standard error.

    `report` receives each report so far. The points of a sweep of one model stand in a live table on a
    terminal; elsewhere, and of several models, they are a line each.
    """
    screen = console(stderr=True)
    is_quiet = verbosity() == QUIET
    with ProgressBars(screen, disable=is_quiet or not is_live(screen)) as bars:

        def sweep(report: SweepReport) -> None:
            if models == 1 and not bars.disable:
                bars.show_points(report)
            elif not is_quiet:
                bars.print_points(report, with_model=models > 1)

        yield Listener(progress=bars.show, plans=bars.plan, report=report, note=note, sweep=sweep)


@contextmanager
def phases(doing: str) -> Iterator[Callable[[str], None]]:
    """Work of unknown length: its phase and the time since it began, on a terminal; receives phases."""
    with listening() as listener:
        listener.phase(doing, "")

        def enter(phase: str) -> None:
            if is_verbose():
                note(phase)
            else:
                LOG.info("%s", phase)
            listener.progress(0, phase, None)

        yield enter
