"""The listener for a workflow's progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trtopt.processes import DONE as DONE, OnProgress
from trtopt.records import BenchReport, SweepReport


@dataclass(frozen=True, repr=False)
class Listener:
    """Receives plans (the labels of the jobs to come), their progress by index, notes, and reports so far.

    A sweep's comes with the number of points that it will have.
    """

    progress: OnProgress = lambda index, phase, fraction: None
    note: Callable[[str], None] = lambda text: None
    plans: Callable[[Sequence[str]], None] = lambda labels: None
    report: Callable[[BenchReport], None] = lambda report: None
    sweep: Callable[[SweepReport, int], None] = lambda report, total: None

    def __repr__(self) -> str:
        """As signatures show it."""
        return "SILENT" if self is SILENT else "Listener(…)"

    def of_job(self, place: int) -> Listener:
        """The listener of a single job, which is at `place` in the plan."""
        return replace(
            self,
            progress=lambda _, phase, fraction: self.progress(place, phase, fraction),
            plans=lambda labels: None,  # the plan of a part is the whole's
        )

    def for_threads(self) -> Listener:
        """The same for several threads: it hears one at a time."""
        guard = threading.Lock()

        def progress(index: int, phase: str, fraction: float | None) -> None:
            with guard:
                self.progress(index, phase, fraction)

        return replace(self, progress=progress)

    def phase(self, subject: str, phase: str) -> None:
        """Report work of unknown length, which is no planned job."""
        self.plans([subject])
        self.progress(0, phase, None)

    def notes(self, texts: Iterable[str]) -> None:
        """Send each note."""
        for text in texts:
            self.note(text)


SILENT = Listener()
