"""Tuning: the most promising candidate first, raced against the best so far, until the budget ends."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from trtopt.device.backends import choose_for_running, open_builder
from trtopt.files.atomic import scratch_beside
from trtopt.records import Ledger, Tuned, TuneScore
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.tune.baseline import built_baseline
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.candidates import Candidates
from trtopt.workflows.tune.evaluation import Evaluation
from trtopt.workflows.tune.ledger import score_of, stored_ledgers
from trtopt.workflows.tune.queue import next_of
from trtopt.workflows.tune.request import TuneRequest
from trtopt.workflows.tune.setup import Setup, set_up
from trtopt.workflows.tune.trials import Trials


def tune(
    model: str | Path, output: str | Path | None, request: TuneRequest, listener: Listener = SILENT
) -> Tuned:
    """Find a faster engine of a model within a budget; see `trtopt.tune`."""
    with set_up(model, output, request, listener) as setup, scratch_beside(setup.folder.path) as temporary:
        scratch = temporary / "work"  # the outer one is locked, and builds lock the folder that they are in
        scratch.mkdir()
        evaluation = Evaluation(setup)
        ledger, incumbent = _continued(setup) if setup.continues else _begun(setup, evaluation, scratch)
        candidates, trials = Candidates(setup), Trials(setup, evaluation, scratch)
        while True:
            waiting, left_s = candidates.waiting(ledger, incumbent), setup.left_for_candidates_s(ledger)
            chosen = next_of(waiting, left_s)
            if chosen.candidate is None:
                break
            began_s = time.monotonic()
            try:
                trial = trials.of(chosen.candidate, waiting, left_s, ledger, incumbent)
            except KeyboardInterrupt:
                lost_s = ledger.lost_s + time.monotonic() - began_s
                setup.folder.save(msgspec.structs.replace(ledger, lost_s=lost_s))
                raise
            entry = trial.outcome.entry(chosen.candidate, trial.cost_s)
            ledger = msgspec.structs.replace(ledger, entries=(*ledger.entries, entry))
            listener.note(f"{entry.candidate}: {entry.verdict}: {entry.reason}")
            if trial.better is not None:
                incumbent = setup.folder.replace(trial.better, ledger)
            else:
                setup.folder.save(ledger)
        setup.folder.save(ledger)
        ledger = _raced(setup, evaluation, ledger, incumbent)
        candidates.note_barren_kinds()
        return Tuned(
            folder=str(setup.folder.path),
            changes=incumbent.changes,
            batch=incumbent.batch,
            streams=incumbent.streams,
            ledger=ledger,
            stopped=chosen.stopped,
            notes=tuple(dict.fromkeys(setup.notes)),
        )


def _begun(setup: Setup, evaluation: Evaluation, scratch: Path) -> tuple[Ledger, Built]:
    """The baseline in its place, with a ledger without entries."""
    ledger, built = built_baseline(setup, evaluation, scratch / "baseline")
    return ledger, setup.folder.replace(built, ledger)


def _continued(setup: Setup) -> tuple[Ledger, Built]:
    """Where an earlier run ended."""
    ledger, incumbent = setup.folder.read(setup.terms)
    setup.listener.note(f"continuing after {len(ledger.entries)} candidates")
    lost_s = ledger.lost_s + setup.samples.seconds
    return msgspec.structs.replace(ledger, run_spread=setup.run_spread, lost_s=lost_s), incumbent


def _raced(setup: Setup, evaluation: Evaluation, ledger: Ledger, incumbent: Built) -> Ledger:
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


def score(backend: str = "auto", cache_dir: str | Path | None = None) -> TuneScore:
    """How good predictions were on this machine's device, over all its ledgers."""
    builder = open_builder(choose_for_running(backend).name)
    ledgers = stored_ledgers(builder.device, builder.backend.name, cache_dir)
    return score_of(ledgers, f"{builder.backend.name} on {builder.device.name}")
