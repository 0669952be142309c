"""Tuning: the most promising candidate first, raced against the best so far, until the budget ends."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from trtopt.builder.shapes import shapes_at
from trtopt.device.ort.host import present_cores
from trtopt.errors import BoundError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import run_in_threads
from trtopt.files.atomic import scratch_beside
from trtopt.inspect.graph import read_graph
from trtopt.onnxio.model_file import load
from trtopt.records import Ledger, LedgerEntry, TuneBaseline, Tuned
from trtopt.requests.build import TuneRequest
from trtopt.workflows.listener import Listener
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.tune.evaluation import Evaluation, lowest_cosine
from trtopt.workflows.tune.kinds import KINDS, Change, Prediction, Situation
from trtopt.workflows.tune.setup import Setup, set_up
from trtopt.workflows.tune.tuned_folder import Built, history_of, kept_baseline

_LIMIT_TIMES = 10
"""A candidate's build or measurement that takes so many times the whole baseline's has failed."""


def tune(request: TuneRequest) -> Tuned:
    """Find a faster engine of a model within a budget of time: the most promising candidate first.

    Each candidate changes one thing of the best engine so far. Its gain is predicted from a prior of its kind
    that this machine's earlier ledgers correct; it is built, checked against the bounds and raced against the
    best so far, interleaved in one process. The folder is a build folder of the best at any moment, with
    `ledger.json` in it. A run that was killed can be resumed, and measures nothing twice.

    Returns:
        The folder, the accepted changes, and the ledger with every candidate.

    Raises:
        BoundError: the baseline misses an accuracy bound.

    Example:
        >>> tuned = trtopt.tune(
        ...     "model.onnx", "tuned", backend="onnxruntime", budget="5m", include=["builder-setting"],
        ...     duration=0.1,
        ... )
        >>> tuned.batch
        1
        >>> {row["kind"] for row in tuned.rows()}
        {'builder-setting'}
    """
    listener = request.listener
    with set_up(request) as setup, scratch_beside(setup.folder.path) as temporary:
        scratch = temporary / "work"  # the outer one is locked, and builds lock the folder that they are in
        scratch.mkdir()
        evaluation = Evaluation(setup)
        if setup.continues:
            ledger, incumbent = _continue(setup)
        else:
            ledger, incumbent = _begin(setup, evaluation, scratch / "baseline")
        if {"precision", "placement"} & {*request.kinds} and setup.data is None:
            setup.notes.append("INT8 was not tried: it needs samples to calibrate on; give --data DATA")
        kept_s = ledger.baseline.measure_s
        listener.note(f"{kept_s:.0f} s of the budget are kept for the final race against the baseline")
        while True:
            waiting = waiting_candidates(setup, ledger, incumbent)
            left_s = setup.left_for_candidates_s(ledger)
            chosen = next_of(waiting, left_s, setup.executor.at_once)
            if isinstance(chosen, str):
                break
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as work:
                try:
                    tried = try_candidates(setup, evaluation, chosen, ledger, incumbent, Path(work))
                except KeyboardInterrupt:
                    lost_s = ledger.lost_s + time.monotonic() - began_s
                    setup.folder.save(msgspec.structs.replace(ledger, lost_s=lost_s))
                    raise
                for entry, better in tried:
                    ledger = msgspec.structs.replace(ledger, entries=(*ledger.entries, entry))
                    listener.note(f"{entry.candidate}: {entry.verdict}: {entry.reason}")
                    if better is not None:
                        incumbent = setup.folder.replace(better, ledger)
                    else:
                        setup.folder.save(ledger)
        setup.folder.save(ledger)
        ledger = _race_result(setup, evaluation, ledger, incumbent)
        with_any = {one.kind for one in (*ledger.entries, *(queued.entry for queued in waiting))}
        barren = [
            f"--include {name}: nothing to try with this model, objective and backend"
            for name in request.include
            if name in request.kinds and name not in with_any
        ]
        return Tuned(
            folder=str(setup.folder.path),
            changes=ledger.accepted,
            batch=incumbent.batch,
            streams=incumbent.streams,
            ledger=ledger,
            stopped=chosen,
            notes=tuple(dict.fromkeys((*setup.notes, *barren))),
        )


def _begin(setup: Setup, evaluation: Evaluation, folder: Path) -> tuple[Ledger, Built]:
    """The baseline, made in `folder` and put in its place, with a ledger without entries."""
    began_s, limit_s = time.monotonic(), setup.limit_s(setup.budget_s)
    built = evaluation.build_baseline(folder, limit_s)
    build_s = time.monotonic() - began_s
    checked = evaluation.check(built, limit_s, setup.quiet)
    if checked.violations:
        model, data = setup.request.model, setup.request.data
        where = f"--backend {setup.builder.backend.name} --batch {built.batch}"
        on = "" if data is None else f" --data {data}"
        raise BoundError(
            f"the baseline misses the bound: {checked.violations[0].text}",
            f"loosen the bound, or see all outputs: trtopt build {model} -o baseline {where}; "
            f"trtopt check baseline --against {model}{on}",
        )
    cost = evaluation.measure(built, limit_s)
    total_s = time.monotonic() - began_s + setup.copied_s
    if total_s >= setup.budget_s:
        copied = f", {setup.copied_s:.0f} s of them to read {setup.request.data}" if setup.copied_s else ""
        raise UsageError(
            f"--budget {setup.request.budget}: building, checking and measuring the baseline took "
            f"{total_s:.0f} s{copied}",
            f"give --budget {max(1, round(total_s * 10 / 60))}m or more, or use `trtopt build`",
        )
    baseline = TuneBaseline(
        cost=cost,
        engine=kept_baseline(built),
        inputs=built.manifest.onnx.inputs,
        unit=setup.measure.unit,
        accuracy=lowest_cosine(checked),
        build_s=build_s,
        measure_s=total_s - build_s,
        total_s=total_s,
    )
    setup.request.listener.note(f"baseline: {cost:.4g} {baseline.unit}, in {total_s:.0f} s")
    ledger = Ledger(
        created=now(),
        argv=command_line(),
        model=Path(setup.request.model).name,
        terms=setup.terms,
        baseline=baseline,
        run_spread=setup.run_spread,
    )
    return ledger, setup.folder.replace(built, ledger)


def _continue(setup: Setup) -> tuple[Ledger, Built]:
    """Where an earlier run ended."""
    ledger, incumbent = setup.folder.read(setup.terms)
    setup.request.listener.note(f"continuing after {len(ledger.entries)} candidates")
    lost_s = ledger.lost_s + setup.copied_s
    return msgspec.structs.replace(ledger, run_spread=setup.run_spread, lost_s=lost_s), incumbent


def _race_result(setup: Setup, evaluation: Evaluation, ledger: Ledger, incumbent: Built) -> Ledger:
    """With the race of the result against the baseline, unless it was run or there is nothing to race."""
    if not ledger.accepted or ledger.raced is not None:
        return ledger
    setup.request.listener.note("racing the result against the baseline")
    began_s = time.monotonic()
    final = evaluation.final_race(incumbent, ledger, setup.limit_s(ledger.baseline.total_s))
    lost_s = ledger.lost_s + time.monotonic() - began_s
    ledger = msgspec.structs.replace(ledger, final=final, lost_s=lost_s)
    setup.folder.save(ledger)
    return ledger


def try_candidates(
    setup: Setup,
    evaluation: Evaluation,
    chosen: Sequence[Queued],
    ledger: Ledger,
    incumbent: Built,
    scratch: Path,
) -> list[tuple[LedgerEntry, Built | None]]:
    """Build, check and race candidates at once: the line of each, the last one's engine if it is better.

    Those behind a better one are worth nothing any more. Each of the others bears its share of the time.
    """
    began_s, limit_s = time.monotonic(), setup.limit_s(_LIMIT_TIMES * ledger.baseline.total_s)
    for one in chosen:
        why = f": {one.change.evidence}" if one.change.evidence else ""
        setup.request.listener.note(f"{one.change.name}: {one.entry.expected_gain:+.2%} expected{why}")

    def attempt(place: int, own: Listener) -> tuple[LedgerEntry, Built | None]:
        """A failure is its outcome."""
        change, entry = chosen[place].change, chosen[place].entry
        try:
            built = evaluation.build_candidate(incumbent, change, scratch / str(place), limit_s, own)
            entry = evaluation.race(entry, built, incumbent, limit_s, own)
        except OutputError:
            raise
        except TrtoptError as error:
            return msgspec.structs.replace(entry, reason=error.summary), None
        return entry, built if entry.verdict == "accepted" else None

    listeners = [setup.quiet]
    if len(chosen) > 1:
        setup.quiet.plans([one.change.name for one in chosen])
        together = setup.quiet.for_threads()
        listeners = [together.of_job(place) for place in range(len(chosen))]
    attempts = [partial(attempt, place, own) for place, own in enumerate(listeners)]
    outcomes = run_in_threads(setup.executor, attempts)
    if any(entry.verdict == "failed" for entry, _ in outcomes):
        setup.folder.check_undamaged("while it was tuned")  # or it is no fault of theirs
    better = next((place for place, (_, built) in enumerate(outcomes) if built), len(outcomes) - 1)
    share_s = (time.monotonic() - began_s) / (better + 1)
    return [
        (msgspec.structs.replace(entry, cost_s=share_s), built) for entry, built in outcomes[: better + 1]
    ]


# ── the order of candidates ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Queued:
    """A change, and its line in the ledger with what is predicted: it has failed until it is tried."""

    change: Change
    entry: LedgerEntry

    @property
    def gain_per_s(self) -> float:
        """What the queue is ordered by."""
        return self.entry.expected_gain / max(self.entry.predicted_cost_s, 1e-3)


GUESS_WEIGHT = 4.0
"""So many outcomes weigh as much as a first guess."""


def predict(candidate: str, guess: Prediction, history: Iterable[LedgerEntry]) -> Prediction:
    """The first guess, averaged with what became of candidates of the same setting."""
    setting = _setting_of(candidate)
    past = [one for one in history if one.verdict != "unchanged" and _setting_of(one.candidate) == setting]
    gains = [one.measured_gain or 0.0 for one in past if one.verdict == "accepted"]
    return Prediction(
        gain=(GUESS_WEIGHT * guess.gain + sum(gains)) / (GUESS_WEIGHT + len(gains)),
        probability=(GUESS_WEIGHT * guess.probability + len(gains)) / (GUESS_WEIGHT + len(past)),
    )


def _setting_of(candidate: str) -> str:
    """Such as `opt_level` of `opt_level=5`, `io` of `io image=fp16`, `build` of `build 2`."""
    return re.split("[ =]", candidate, maxsplit=1)[0]


def predicted_cost_s(guess_s: float, history: Iterable[LedgerEntry]) -> float:
    """Seconds of building and measuring, corrected by how far off such figures were."""
    past = [entry for entry in history if entry.predicted_cost_s > 0 and entry.verdict != "unchanged"]
    ratios = [entry.cost_s / entry.predicted_cost_s for entry in past]
    return guess_s * (GUESS_WEIGHT + sum(ratios)) / (GUESS_WEIGHT + len(ratios))


LEAST_EXPECTED = 0.0005
"""An expected gain below it does not pay for a build."""


def next_of(waiting: Sequence[Queued], left_s: float, count: int = 1) -> list[Queued] | str:
    """The candidates with the highest expected gain per second that fit into the seconds left, or why none.

    At most `count`; equal ones in the order in which they wait.
    """
    if not waiting:
        return "no candidate is left to try"
    paying = [one for one in waiting if one.entry.expected_gain >= LEAST_EXPECTED]
    if not paying:
        return f"no candidate is expected to gain {LEAST_EXPECTED:.2%}"
    fitting = [one for one in paying if one.entry.predicted_cost_s <= left_s]
    if not fitting:
        least, many = min(one.entry.predicted_cost_s for one in paying), len(paying)
        waits = "1 candidate waits that takes" if many == 1 else f"{many} candidates wait that take"
        return (
            f"the budget has {max(left_s, 0.0):.0f} s left, and {waits} from {least:.0f} s each: "
            f"continue with --resume and a larger --budget"
        )
    return sorted(fitting, key=lambda one: one.gain_per_s, reverse=True)[:count]


def waiting_candidates(setup: Setup, ledger: Ledger, incumbent: Built) -> list[Queued]:
    """The changes that the kinds propose for the incumbent and that have not been tried."""
    baseline, engine, manifest = ledger.baseline, incumbent.engine, incumbent.manifest
    graph = manifest.graph_of(engine)
    model = next(iter(manifest.intermediates), graph)
    shapes = shapes_at(manifest.onnx.inputs, engine.plan, incumbent.batch)
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
        data=setup.data,
        graph=read_graph(load(incumbent.folder / graph.path).proto, shapes),
        model=incumbent.folder / model.path,
        model_sha256=model.sha256,
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
                entry = LedgerEntry(
                    candidate=change.name,
                    kind=kind.name,
                    predicted_gain=prediction.gain,
                    probability=prediction.probability,
                    evidence=change.evidence,
                    predicted_cost_s=predicted_cost_s(seconds, past),
                    cost_s=0.0,
                    verdict="failed",
                    reason="",
                )
                found.append(Queued(change, entry))
    return found
