"""Tuning: the most promising candidate first, raced against the best so far, until the budget ends."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from trtopt.device.ort.host import present_cores
from trtopt.errors import BoundError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import run_in_threads
from trtopt.files.atomic import scratch_beside
from trtopt.records import Ledger, TuneBaseline, Tuned
from trtopt.requests.build import TuneRequest
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.tune.candidates import (
    Change,
    Queued,
    Situation,
    evidence_of,
    predict,
    predicted_cost_s,
)
from trtopt.workflows.tune.evaluation import Evaluation, Outcome, lowest_cosine
from trtopt.workflows.tune.kinds import KINDS
from trtopt.workflows.tune.setup import Setup, set_up
from trtopt.workflows.tune.tuned_folder import Built, history_of, kept_baseline

_LIMIT_TIMES = 10
"""A candidate's build or measurement that takes so many times the whole baseline's has failed."""


def tune(request: TuneRequest, listener: Listener = SILENT) -> Tuned:
    """Find a faster engine of a model within a budget; see `trtopt.tune`."""
    with set_up(request, listener) as setup, scratch_beside(setup.folder.path) as temporary:
        scratch = temporary / "work"  # the outer one is locked, and builds lock the folder that they are in
        scratch.mkdir()
        evaluation = Evaluation(setup)
        if setup.continues:
            ledger, incumbent = _continue(setup)
        else:
            ledger, incumbent = _begin(setup, evaluation, scratch / "baseline")
        trials = Trials(setup, evaluation, scratch)
        if {"precision", "placement"} & {*request.kinds} and setup.samples.data is None:
            setup.notes.append("INT8 was not tried: it needs samples to calibrate on; give --data DATA")
        kept_s = ledger.baseline.measure_s
        listener.note(f"{kept_s:.0f} s of the budget are kept for the final race against the baseline")
        while True:
            waiting = waiting_candidates(setup, ledger, incumbent)
            left_s = setup.left_for_candidates_s(ledger)
            chosen = next_of(waiting, left_s)
            if isinstance(chosen, str):
                break
            began_s = time.monotonic()
            try:
                trial = trials.of(chosen, waiting, left_s, ledger, incumbent)
            except KeyboardInterrupt:
                lost_s = ledger.lost_s + time.monotonic() - began_s
                setup.folder.save(msgspec.structs.replace(ledger, lost_s=lost_s))
                raise
            entry = trial.outcome.entry(chosen, trial.cost_s)
            ledger = msgspec.structs.replace(ledger, entries=(*ledger.entries, entry))
            listener.note(f"{entry.candidate}: {entry.verdict}: {entry.reason}")
            if trial.better is not None:
                incumbent = setup.folder.replace(trial.better, ledger)
            else:
                setup.folder.save(ledger)
        setup.folder.save(ledger)
        ledger = _race_result(setup, evaluation, ledger, incumbent)
        with_any = {entry.kind for entry in ledger.entries} | {one.kind for one in waiting}
        barren = [
            f"--include {name}: nothing to try with this model, objective and backend"
            for name in request.include
            if name in request.kinds and name not in with_any
        ]
        return Tuned(
            folder=str(setup.folder.path),
            changes=incumbent.changes,
            batch=incumbent.batch,
            streams=incumbent.streams,
            ledger=ledger,
            stopped=chosen,
            notes=tuple(dict.fromkeys((*setup.notes, *barren))),
        )


def _begin(setup: Setup, evaluation: Evaluation, folder: Path) -> tuple[Ledger, Built]:
    """The baseline, made in `folder` and put in its place, with a ledger without entries."""
    samples, name = setup.samples, setup.source
    began_s, limit_s = time.monotonic(), setup.limit_s(setup.budget_s)
    built = evaluation.maker(limit_s, setup.listener).baseline(folder, setup.terms.batch[0])
    build_s = time.monotonic() - began_s
    checked = evaluation.check(built, limit_s, setup.quiet)
    if checked.violations:
        where = f"--backend {setup.builder.backend.name} --batch {built.batch}"
        on = "" if samples.name is None else f" --data {samples.name}"
        raise BoundError(
            f"the baseline misses the bound: {checked.violations[0].text}",
            f"loosen the bound, or see all outputs: trtopt build {name} -o baseline {where}; "
            f"trtopt check baseline --against {name}{on}",
        )
    cost, copied = evaluation.measure(built, limit_s)
    evaluation.profile(built, limit_s)
    total_s = time.monotonic() - began_s + samples.seconds
    if total_s >= setup.budget_s:
        raise UsageError(
            f"--budget {setup.request.budget}: building, checking and measuring the baseline took "
            f"{total_s:.0f} s{samples.share}",
            f"give --budget {max(1, round(total_s * 10 / 60))}m or more, or use `trtopt build`",
        )
    baseline = TuneBaseline(
        cost=cost,
        copied=copied,
        engine=kept_baseline(built),
        inputs=built.manifest.onnx.inputs,
        unit=setup.measure.unit,
        accuracy=lowest_cosine(checked),
        build_s=build_s,
        measure_s=total_s - build_s,
        total_s=total_s,
    )
    setup.listener.note(f"baseline: {cost:.4g} {baseline.unit}, in {total_s:.0f} s")
    ledger = Ledger(
        created=now(),
        argv=command_line(),
        model=setup.source.name,
        terms=setup.terms,
        baseline=baseline,
        run_spread=setup.run_spread,
    )
    return ledger, setup.folder.replace(built, ledger)


def _continue(setup: Setup) -> tuple[Ledger, Built]:
    """Where an earlier run ended."""
    ledger, incumbent = setup.folder.read(setup.terms)
    setup.listener.note(f"continuing after {len(ledger.entries)} candidates")
    lost_s = ledger.lost_s + setup.samples.seconds
    return msgspec.structs.replace(ledger, run_spread=setup.run_spread, lost_s=lost_s), incumbent


def _race_result(setup: Setup, evaluation: Evaluation, ledger: Ledger, incumbent: Built) -> Ledger:
    """With the race of the result against the baseline, unless it was run or there is nothing to race."""
    if not ledger.accepted or ledger.raced is not None or ledger.baseline.engine is None:
        return ledger
    setup.listener.note("racing the result against the baseline")
    began_s = time.monotonic()
    final = evaluation.final_race(incumbent, ledger, setup.limit_s(ledger.baseline.total_s))
    lost_s = ledger.lost_s + time.monotonic() - began_s
    ledger = msgspec.structs.replace(ledger, final=final, lost_s=lost_s)
    setup.folder.save(ledger)
    return ledger


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
        """Build, check and race candidates; each bears its share of the time that they took."""
        began_s = time.monotonic()
        limit_s = self._setup.limit_s(_LIMIT_TIMES * ledger.baseline.total_s)
        for one in chosen:
            why = f": {one.change.evidence}" if one.change.evidence else ""
            self._setup.listener.note(f"{one.change.name}: {one.prediction.expected:+.2%} expected{why}")
        trials = [Trial(one.change, Path(tempfile.mkdtemp(dir=self._scratch))) for one in chosen]

        def attempt(trial: Trial, own: Listener) -> None:
            """A failure is its outcome."""
            try:
                maker = self._evaluation.maker(limit_s, own)
                trial.built = maker.make(incumbent, trial.change, trial.folder / "candidate")
                trial.outcome = self._evaluation.race(trial.built, incumbent, limit_s, own)
                if trial.better is not None:
                    self._evaluation.profile(trial.better, limit_s)
            except OutputError:
                raise
            except TrtoptError as error:
                trial.outcome = Outcome("failed", error.summary)

        listener = self._setup.quiet
        if len(trials) == 1:
            attempt(trials[0], listener)
        else:
            listener.plans([trial.change.name for trial in trials])
            together = listener.for_threads()
            attempts = [partial(attempt, one, together.of_job(place)) for place, one in enumerate(trials)]
            run_in_threads(self._setup.executor, attempts)
        if any(trial.outcome.verdict == "failed" for trial in trials):
            self._setup.folder.check_undamaged("while it was tuned")  # or it is no fault of theirs
        share_s = (time.monotonic() - began_s) / len(trials)
        for trial in trials:
            trial.cost_s = share_s
            self._ahead[trial.change.name] = trial


LEAST_EXPECTED = 0.0005
"""An expected gain below it does not pay for a build."""


def next_of(waiting: Sequence[Queued], left_s: float) -> Queued | str:
    """The candidate with the highest expected gain per second that fits into the seconds left, or why none.

    Equal ones in the order in which they wait.
    """
    if not waiting:
        return "no candidate is left to try"
    paying = [one for one in waiting if one.prediction.expected >= LEAST_EXPECTED]
    if not paying:
        return f"no candidate is expected to gain {LEAST_EXPECTED:.2%}"
    fitting = [one for one in paying if one.cost_s <= left_s]
    if not fitting:
        least, count = min(one.cost_s for one in paying), len(paying)
        waits = "1 candidate waits that takes" if count == 1 else f"{count} candidates wait that take"
        return (
            f"the budget has {max(left_s, 0.0):.0f} s left, and {waits} from {least:.0f} s each: "
            f"continue with --resume and a larger --budget"
        )
    return max(fitting, key=lambda one: one.gain_per_s)


def first_of(waiting: Sequence[Queued], left_s: float, count: int) -> list[Queued]:
    """The candidates that would be next one after the other, at most `count`."""
    found: list[Queued] = []
    while len(found) < count:
        following = next_of([one for one in waiting if one not in found], left_s)
        if isinstance(following, str):
            break
        found.append(following)
    return found


def waiting_candidates(setup: Setup, ledger: Ledger, incumbent: Built) -> list[Queued]:
    """The changes that the kinds propose for the incumbent and that have not been tried."""
    baseline, engine = ledger.baseline, incumbent.engine
    situation = Situation(
        backend=setup.builder.backend,
        device=setup.builder.device,
        cores=len(present_cores()),
        batch=incumbent.batch,
        batches=setup.terms.batch,
        streams=incumbent.streams,
        is_rate=setup.measure.per_sample,
        recipe=incumbent.recipe,
        selected=incumbent.selected,
        data=setup.samples.data,
        inputs=engine.inputs,
        outputs=engine.outputs,
        copied=baseline.copied,
        evidence=evidence_of(incumbent),
    )
    history = history_of(setup.earlier, ledger)
    tried = {entry.candidate for entry in ledger.entries} | {f"batch={setup.terms.batch[0]}"}
    build_s = max(baseline.build_s, engine.build_seconds)
    found = []
    for kind in (one for one in KINDS if one.name in setup.request.kinds):
        past = [entry for entry in history if entry.kind == kind.name]
        for change in kind.changes(situation):
            if change.name not in tried:
                builds = kind.builds if change.builds is None else change.builds
                seconds = builds * build_s + change.measurements * baseline.measure_s
                prediction = predict(change.name, change.guess or kind.guess, past)
                found.append(Queued(kind.name, change, prediction, predicted_cost_s(seconds, past)))
    return found
