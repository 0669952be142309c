"""How far a build has come: from IProgressMonitor, or on 8.6 from what the builder logs."""

from __future__ import annotations

import re
from typing import Any

from trtopt.device.api import LogSink, ProgressSink


class PhaseTree:
    """Turns nested phases of so many steps each into one fraction that never goes back.

    A phase's span is the step of its parent during which it started; the root's span is the whole.
    """

    def __init__(self, progress: ProgressSink) -> None:
        self._progress = progress
        self._phases: dict[str, tuple[float, float, int]] = {}  # name → (start, width, steps)
        self._furthest = 0.0
        self._at: dict[str, int] = {}

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase of `steps` steps begins inside `parent`'s present step."""
        if parent in self._phases:
            start, width, parent_steps = self._phases[parent]
            width /= max(1, parent_steps)
            start += width * self._at.get(parent, 0)
        else:
            start, width = 0.0, 1.0
        self._phases[phase] = (start, width, steps)
        self._at[phase] = 0
        self._tell(phase, start)

    def step(self, phase: str, index: int) -> None:
        """Step `index` (from 0) of a phase is done."""
        if phase in self._phases:
            start, width, steps = self._phases[phase]
            self._at[phase] = index + 1
            self._tell(phase, start + width * min(1.0, (index + 1) / max(1, steps)))

    def finish(self, phase: str) -> None:
        """A phase is done."""
        if phase in self._phases:
            start, width, _ = self._phases.pop(phase)
            self._tell(phase, start + width)

    def _tell(self, phase: str, fraction: float) -> None:
        self._furthest = max(self._furthest, min(1.0, fraction))
        self._progress(phase, self._furthest)


def make_monitor(trt: Any, progress: ProgressSink) -> Any:
    """An IProgressMonitor; it must outlive the build."""
    tree = PhaseTree(progress)

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # the base class is only known at run time
        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            tree.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            tree.step(phase_name, step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            tree.finish(phase_name)

    return Monitor()


_MILESTONES = (
    (re.compile(r"Applying generic optimizations"), "Optimizing graph"),
    (re.compile(r"Computing costs for|Autotuning format combination"), "Timing tactics"),
    (re.compile(r"Computing reformatting costs"), "Timing reformats"),
    (re.compile(r"Formats and tactics selection completed|Total Activation Memory"), "Generating engine"),
    (re.compile(r"Engine generation completed"), "Engine generated"),
)
_COMBINATION = "Autotuning format combination"


def progress_from_log(log: LogSink, progress: ProgressSink) -> LogSink:
    """A log sink that also derives phases from 8.6's messages. No fraction: how many tactics is unknown."""
    timed = 0

    def listen(severity: str, message: str) -> None:
        nonlocal timed
        log(severity, message)
        for pattern, phase in _MILESTONES:
            if pattern.search(message):
                timed += _COMBINATION in message
                progress(f"{phase} ({timed} combinations timed)" if timed else phase, None)
                return

    return listen
