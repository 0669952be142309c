"""Candidates under trial: one after the other on this host, at the same time on a cluster."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trtopt.errors import OutputError, TrtoptError
from trtopt.executors.api import Executor
from trtopt.executors.threads import run_in_threads
from trtopt.records import Ledger
from trtopt.workflows.listener import Listener
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.evaluation import Evaluation
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.outcome import Outcome
from trtopt.workflows.tune.queue import Queued, first_of
from trtopt.workflows.tune.setup import Setup

_LIMIT_TIMES = 10
"""A candidate's build or measurement that takes so many times the whole baseline's has failed."""


@dataclass
class Trial:
    """A candidate that is being tried in a folder of its own; it has failed until it is evaluated."""

    change: Change
    folder: Path
    built: Built | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome("failed", ""))
    cost_s: float = 0.0

    @property
    def better(self) -> Built | None:
        """The engine, if it is to be the incumbent."""
        return self.built if self.outcome.verdict == "accepted" else None


class Trials:
    """Tries candidates, as many ahead of their turn as the executor runs at a time.

    What was tried ahead waits for its turn, and is worth nothing any more once another one was better.
    """

    def __init__(self, setup: Setup, evaluation: Evaluation, scratch: Path) -> None:
        self._setup, self._evaluation, self._scratch = setup, evaluation, scratch
        self._ahead: dict[str, Trial] = {}

    def of(
        self, chosen: Queued, waiting: Sequence[Queued], left_s: float, ledger: Ledger, incumbent: Built
    ) -> Trial:
        """The trial of the candidate whose turn it is; of its folder only a better engine is left."""
        name = chosen.change.name
        if name not in self._ahead:
            rest = [one for one in waiting if one.change.name not in self._ahead]
            found = first_of(rest, left_s, self._setup.executor.at_once)
            self._try(found, ledger, incumbent)
        trial = self._ahead.pop(name)
        if trial.better is None:
            shutil.rmtree(trial.folder, ignore_errors=True)
            return trial
        for other in self._ahead.values():
            trial.cost_s += other.cost_s
            shutil.rmtree(other.folder, ignore_errors=True)
        self._ahead.clear()
        return trial

    def _try(self, chosen: Sequence[Queued], ledger: Ledger, incumbent: Built) -> None:
        """Build candidates, then check and race them; each bears its share of the time that they took."""
        began_s = time.monotonic()
        limit_s = self._setup.limit_s(_LIMIT_TIMES * ledger.baseline.total_s)
        for one in chosen:
            why = f": {one.change.evidence}" if one.change.evidence else ""
            self._setup.listener.note(f"{one.change.name}: {one.prediction.expected:+.2%} expected{why}")
        trials = [Trial(one.change, Path(tempfile.mkdtemp(dir=self._scratch))) for one in chosen]

        def build(trial: Trial, own: Listener) -> None:
            folder = trial.folder / "candidate"
            trial.built = self._evaluation.build(incumbent, trial.change, folder, limit_s, own)

        def evaluate(trial: Trial, own: Listener) -> None:
            if trial.built is not None:
                trial.outcome = self._evaluation.race(trial.built, incumbent, limit_s, own)
                if trial.better is not None:
                    self._evaluation.profile(trial.better, limit_s)

        _at_a_time(trials, build, self._setup.executor, self._setup.quiet)
        _at_a_time(trials, evaluate, self._setup.executor, self._setup.quiet)
        if any(trial.outcome.verdict == "failed" for trial in trials):
            self._setup.folder.check_undamaged("while it was tuned")  # or it is no fault of theirs
        share_s = (time.monotonic() - began_s) / len(trials)
        for trial in trials:
            trial.cost_s = share_s
            self._ahead[trial.change.name] = trial


def _at_a_time(
    trials: Sequence[Trial],
    step: Callable[[Trial, Listener], None],
    executor: Executor,
    listener: Listener,
) -> None:
    """Take a step with all trials, as many at a time as the executor runs; a failure is a trial's outcome."""

    def guarded(trial: Trial, own: Listener) -> None:
        try:
            step(trial, own)
        except OutputError:
            raise
        except TrtoptError as error:
            trial.outcome = Outcome("failed", error.problem.splitlines()[0])

    if len(trials) == 1:
        guarded(trials[0], listener)
        return
    listener.plans([trial.change.name for trial in trials])
    together = listener.for_threads()
    run_in_threads(
        executor, [partial(guarded, one, together.of_job(place)) for place, one in enumerate(trials)]
    )
