"""The listener for a workflow's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trtopt.records import BenchReport, SweepReport
from trtopt.workers.supervisor import OnProgress


@dataclass(frozen=True, repr=False)
class Listener:
    """Receives plans (the labels of the jobs to come), their progress by index, notes, and reports so far."""

    progress: OnProgress = lambda index, phase, fraction: None
    note: Callable[[str], None] = lambda text: None
    plans: Callable[[Sequence[str]], None] = lambda labels: None
    report: Callable[[BenchReport], None] = lambda report: None
    sweep: Callable[[SweepReport], None] = lambda report: None

    def notes(self, texts: Iterable[str]) -> None:
        """Send each note."""
        for text in texts:
            self.note(text)


SILENT = Listener()


def notify(notes: list[str], listener: Listener, text: str) -> None:
    """Send it now, and add it to the result's notes."""
    notes.append(text)
    listener.note(text)
