"""Tuning: the most promising candidate first, raced against the best so far, until the budget ends.

The folder is a build folder at any moment, of the best engine so far, with the ledger in it. A better engine
and the ledger's entry on it take their place in one step, so that a run can be killed at any moment and
continued: what the ledger lists is not measured again.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from trtopt.builder.build_routes import single_options
from trtopt.builder.shapes import fixed_batch, shapes_at
from trtopt.data import open_data
from trtopt.data.source import fingerprint_of
from trtopt.device.affinity import present_cores
from trtopt.device.backends import choose_for_running, open_builder
from trtopt.device.building import EngineBuilder
from trtopt.errors import ArtifactError, BoundError, DataError, OutputError, TrtoptError, UsageError
from trtopt.executors.api import Executor, run_jobs_of
from trtopt.executors.choice import open_executor
from trtopt.executors.local import THIS_HOST
from trtopt.files.atomic import cannot_write, scratch_beside, scratch_folder, write_atomically
from trtopt.files.build_folder import folder_in_progress
from trtopt.files.locks import lock
from trtopt.files.manifests import read_manifest, write_manifest
from trtopt.files.replace_folder import remove_abandoned
from trtopt.measure.contracts import DEFAULT, contract_named
from trtopt.measure.statistics.comparison import RunSpread, Verdict
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import WHERE, Recipe, io_request
from trtopt.records import (
    Ledger,
    LedgerEntry,
    OnnxArtifact,
    TuneBaseline,
    Tuned,
    TuneScore,
    TuneTerms,
    TuningChoice,
    to_json,
)
from trtopt.records.checking import CheckedSubject
from trtopt.records.tuning import TuneVerdict
from trtopt.records.typed_io import TypedTensor
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workers.protocol import RoutesJob, RoutesListed
from trtopt.workflows.bench.interleaved import Setting, loaded
from trtopt.workflows.bench.resolve_engines import resolved
from trtopt.workflows.build.engines import check_opset
from trtopt.workflows.build.kept_model import with_typed_io
from trtopt.workflows.build.rebuild import check_folder
from trtopt.workflows.compare.run_spread import measured_run_spread
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.precision.check import Checker
from trtopt.workflows.profile.profile import PROFILE_FILE, profile
from trtopt.workflows.profile.request import ProfileRequest
from trtopt.workflows.same_terms import check_same_terms
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.evidence import evidence_of
from trtopt.workflows.tune.kinds.kind import Situation
from trtopt.workflows.tune.kinds.table import KINDS
from trtopt.workflows.tune.ledger import (
    LEDGER,
    history_of,
    read_ledger,
    save_ledger,
    score_of,
    store_ledger,
    stored_ledgers,
)
from trtopt.workflows.tune.make import Maker
from trtopt.workflows.tune.objective import measure_for
from trtopt.workflows.tune.prediction import build_spread_of, predict, predicted_cost_s, spread_of
from trtopt.workflows.tune.queue import Queued, first_of, next_of
from trtopt.workflows.tune.race import Racer, baseline_of, race
from trtopt.workflows.tune.request import TuneRequest, batches_of, check_request, parse_budget
from trtopt.workflows.tune.samples import Samples, samples_of, write_quantised
from trtopt.workflows.tune.trials import Outcome, Trial, at_a_time

_LIMIT_TIMES, _LIMIT_LEAST_S = 10, 60.0
"""A candidate's build or measurement that takes so many times the baseline's, and so long, has failed."""
_PROFILE_S = 1.0
"""Of sampling for a profile, at most."""
_FOLDER_SUFFIX = ".tuned"
_VERDICTS: dict[Verdict, TuneVerdict] = {
    Verdict.FASTER: "accepted",
    Verdict.SAME: "same",
    Verdict.SLOWER: "slower",
    Verdict.UNDECIDED: "undecided",
}


def tune(
    model: str | Path, output: str | Path | None, request: TuneRequest, listener: Listener = SILENT
) -> Tuned:
    """Find a faster engine of a model within a budget; see `trtopt.tune`.

    Raises:
        UsageError: an option is wrong, or the budget is too small for the baseline; nothing is left then.
        BoundError: the baseline misses the accuracy bound.
        ArtifactError: the folder's ledger is of another model, machine, or on other terms.
        TrtoptError: what keeps the baseline from being built or measured.
    """
    source = Path(model)
    choice = choose_for_running(request.recipe.backend)
    check_request(request, choice.name)
    onnx = read_onnx(source)
    builder = open_builder(choice.name)
    listener.note(f"tuning with {builder.backend}: {choice.reason}")
    check_opset(onnx, builder)
    batches = batches_of(request, fixed_batch(onnx), onnx)
    terms = _terms(onnx, request, builder, batches)
    folder = (Path(output) if output is not None else Path(f"{source.stem}{_FOLDER_SUFFIX}")).resolve()
    with lock(folder, wait_s=0):
        remove_abandoned(folder)  # before anything is read: a killed run may have set the folder aside
        has_begun = _has_begun(folder, request.resume)
        limit_s = parse_budget(request.budget)
        with open_executor(request.recipe, builder, listener.note) as executor:
            executor.require_measuring()
            typed = with_typed_io(onnx, io_request(request.recipe), builder.backend)
            with samples_of(request.data, typed, folder, limit_s, listener) as samples:
                run = _Run(source, onnx, folder, request, terms, samples, builder, executor, listener)
                return run.to_the_end(run.continued() if has_begun else run.begun())


def score(backend: str = "auto", cache_dir: str | Path | None = None) -> TuneScore:
    """How good predictions were on this machine's device, over all its ledgers."""
    builder = open_builder(choose_for_running(backend).name)
    ledgers = stored_ledgers(builder.device, builder.backend.name, cache_dir)
    return score_of(ledgers, f"{builder.backend.name} on {builder.device.name}")


def _has_begun(folder: Path, resume: bool) -> bool:
    """Whether there is a ledger to continue.

    Raises:
        OutputError: there is one, and it is not to be continued; or the folder holds something else.
    """
    if (folder / LEDGER).is_file():
        if not resume:
            raise OutputError(
                f"{folder}: holds a tuned build", "continue it with --resume, or choose another name with -o"
            )
        return True
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputError(
            f"{folder}: exists and has no {LEDGER}", "choose another name with -o, or remove it"
        )
    return False


def _terms(
    onnx: OnnxArtifact, request: TuneRequest, builder: EngineBuilder, batches: tuple[int, ...]
) -> TuneTerms:
    anywhere = {name: getattr(Recipe(), name) for name in WHERE}
    recipe = msgspec.structs.replace(request.recipe, batch=None, backend="auto", calib=None, **anywhere)
    return TuneTerms(
        model_sha256=onnx.sha256,
        backend=builder.backend,
        device=builder.device,
        objective=request.objective,
        rate=request.rate,
        contract=contract_named(request.contract or DEFAULT),
        batch=batches,
        recipe=msgspec.json.encode(recipe, order="deterministic").decode(),
        data=None if request.data is None else fingerprint_of(request.data),
        bounds=request.bounds.given,
        threshold=request.threshold,
        duration_s=request.duration,
    )


class _Run:
    """One tuning run; what it knows is in the ledger and in the folder."""

    def __init__(
        self,
        source: Path,
        onnx: OnnxArtifact,
        folder: Path,
        request: TuneRequest,
        terms: TuneTerms,
        samples: Samples,
        builder: EngineBuilder,
        executor: Executor,
        listener: Listener,
    ) -> None:
        self._executor = executor
        self._source, self._onnx, self._folder = source, onnx, folder
        self._request, self._terms, self._builder, self._listener = request, terms, builder, listener
        self._samples, self._data = samples, samples.data
        self._unlisted_s = 0.0
        self._budget_s = parse_budget(request.budget)
        self._measure = measure_for(request.objective, request.rate)
        self._checkers: dict[tuple[TypedTensor, ...], Checker] = {}
        self._quiet = replace(listener, note=lambda text: None)
        self._run_spread = measured_run_spread(builder.device)
        self._earlier = stored_ledgers(builder.device, builder.backend.name, request.cache_dir)
        self._notes: list[str] = []
        self._checking = threading.Lock()

    # ── where it begins ─────────────────────────────────────────────────────────────────────────────────

    def begun(self) -> tuple[Ledger, Built]:
        """The baseline, built, checked and measured, in its place with an empty ledger.

        Raises:
            UsageError: that took the whole budget.
            BoundError: it is not accurate enough.
            TrtoptError: what keeps it from being built or measured.
        """
        began_s = time.monotonic() - self._samples.seconds
        with self._scratch() as scratch:
            limit_s = self._request.timeout or max(self._budget_s, _LIMIT_LEAST_S)
            built = self._maker(limit_s, self._listener).baseline(scratch / "baseline", self._terms.batch[0])
            build_s = time.monotonic() - began_s - self._samples.seconds
            checked = self._checked(built, limit_s, self._quiet)
            if checked.violations:
                name = self._source
                raise BoundError(
                    f"the baseline misses the bound: {checked.violations[0].text}",
                    f"loosen the bound, or see all outputs: trtopt build {name} -o baseline; trtopt check "
                    f"baseline --against {name}",
                )
            racer, setting = self._racer(built), self._setting(built, limit_s)
            found = baseline_of(racer, self._measure, setting, self._executor, self._listener)
            self._profiled(built, limit_s)
            total_s = time.monotonic() - began_s
            if total_s >= self._budget_s:
                raise UsageError(
                    f"--budget {self._request.budget}: building, checking and measuring the baseline took "
                    f"{total_s:.0f} s{self._samples.share}",
                    f"give --budget {max(1, round(total_s * 10 / 60))}m or more, or use `trtopt build`",
                )
            baseline = TuneBaseline(
                cost=found.cost,
                copied=found.copied,
                unit=self._measure.unit,
                accuracy=_accuracy(checked),
                build_s=build_s,
                measure_s=total_s - build_s,
                total_s=total_s,
            )
            ledger = Ledger(
                created=now(),
                argv=command_line(),
                model=self._source.name,
                terms=self._terms,
                baseline=baseline,
                run_spread=self._run_spread,
            )
            self._listener.note(f"baseline: {found.cost:.4g} {baseline.unit}, in {total_s:.0f} s")
            return ledger, self._put_in_place(built, ledger)

    def continued(self) -> tuple[Ledger, Built]:
        """Where an earlier run ended.

        Raises:
            ArtifactError: the ledger cannot be read, or is on other terms.
        """
        ledger, manifest = read_ledger(self._folder / LEDGER), read_manifest(self._folder)
        check_same_terms(f"{self._folder}: is tuned", ledger.terms, self._terms)
        chosen = manifest.tuning
        if chosen is None:
            raise OutputError(
                f"{self._folder}: has a {LEDGER}, but its build is not a tuned one",
                "tune into another folder",
            )
        found = check_folder(self._folder)
        damaged = {*found.missing, *found.changed} - {LEDGER, PROFILE_FILE}  # which may be newer
        if damaged:
            raise ArtifactError(
                f"{self._folder}: {', '.join(sorted(damaged))}: missing or changed since the last run",
                "tune into another folder",
            )
        self._listener.note(f"continuing after {len(ledger.entries)} candidates")
        recipe = msgspec.json.decode(chosen.recipe, type=Recipe)
        ledger = msgspec.structs.replace(ledger, run_spread=self._run_spread)
        self._unlisted_s = self._samples.seconds
        return ledger, Built(self._folder, manifest, recipe, chosen.batch, chosen.streams, chosen.changes)

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────

    def to_the_end(self, found: tuple[Ledger, Built]) -> Tuned:
        """Try candidates until none is left that pays."""
        ledger, incumbent = found
        if "precision" in self._request.kinds and self._data is None:
            self._notes.append("INT8 was not tried: it needs samples to calibrate on; give --data DATA")
        stopped = ""
        while not stopped:
            with self._scratch() as scratch:
                ledger, incumbent, stopped = self._until_better(ledger, incumbent, scratch)
        save_ledger(self._folder, ledger, self._request.cache_dir)
        return Tuned(
            folder=str(self._folder),
            changes=incumbent.changes,
            batch=incumbent.batch,
            streams=incumbent.streams,
            ledger=ledger,
            stopped=stopped,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _queue(self, ledger: Ledger, incumbent: Built) -> list[Queued]:
        """What has not been tried, predicted from what is known by now."""
        history = history_of(self._earlier, ledger)
        situation = self._situation(ledger, incumbent, history)
        tried = situation.tried | {f"batch={self._terms.batch[0]}"}
        spread = spread_of(history, RunSpread.of(self._run_spread))
        waiting = []
        for kind in KINDS:
            if kind.name not in self._request.kinds:
                continue
            past = [entry for entry in history if entry.kind == kind.name]
            for change in kind.changes(situation):
                if change.name in tried or (change.makes_graph and incumbent.is_rewritten):
                    continue
                builds = kind.builds if change.builds is None else change.builds
                cost_s = predicted_cost_s(builds * ledger.baseline.build_s + ledger.baseline.measure_s, past)
                prior = change.prior or kind.prior
                waiting.append(Queued(change, predict(change.name, prior, kind.prior, past, spread), cost_s))
        return waiting

    def _situation(self, ledger: Ledger, incumbent: Built, history: Sequence[LedgerEntry]) -> Situation:
        engine = incumbent.engine
        return Situation(
            backend=self._builder.backend,
            device=self._builder.device,
            cores=len(present_cores()),
            batch=incumbent.batch,
            batches=self._terms.batch,
            streams=incumbent.streams,
            is_rate=self._measure.per_sample,
            is_loaded=self._measure.rate is not None,
            recipe=incumbent.recipe,
            selected=incumbent.selected,
            left=incumbent.left,
            data=self._data,
            threshold=self._terms.threshold,
            inputs=engine.inputs,
            outputs=engine.outputs,
            copied=ledger.baseline.copied,
            tried=frozenset(entry.candidate for entry in ledger.entries),
            build_options=self._build_options,
            build_spread=build_spread_of(history),
            evidence=evidence_of(incumbent),
        )

    @cached_property
    def _build_options(self) -> tuple[str, ...]:
        """Those of TensorRT 11; none where they cannot be listed."""
        backend = self._builder.backend
        if backend.name == ONNXRUNTIME or not target_of(backend).build_routes:
            return ()
        try:
            job = RoutesJob(backend=backend.name)
            found = run_jobs_of(THIS_HOST, [job], limit_s=_LIMIT_LEAST_S, on_progress=SILENT.progress)
            ((_, listed),) = found
        except TrtoptError as error:
            self._notes.append(f"build routes were not tried: {error.problem.splitlines()[0]}")
            return ()
        assert isinstance(listed, RoutesListed)
        return single_options(listed.listed)

    def _until_better(self, ledger: Ledger, incumbent: Built, scratch: Path) -> tuple[Ledger, Built, str]:
        """Try candidates until one is better, and the incumbent then; or why none is left.

        As many are tried ahead of their turn as the executor runs at a time. What was tried ahead is entered
        when its turn comes, and is worth nothing any more once another one was better.
        """
        tried: dict[str, Trial] = {}
        while True:
            waiting, left_s = self._queue(ledger, incumbent), self._left_s(ledger)
            chosen = next_of(waiting, left_s)
            if chosen.candidate is None:
                return ledger, incumbent, chosen.stopped
            name = chosen.candidate.change.name
            if name not in tried:
                rest = [one for one in waiting if one.change.name not in tried]
                chosen_ahead = first_of(rest, left_s, self._executor.at_once)
                found = self._tried(chosen_ahead, ledger, incumbent, scratch)
                tried |= {one.change.name: one for one in found}
            trial = tried.pop(name)
            is_better = trial.built is not None and trial.outcome.verdict == "accepted"
            cost_s = trial.cost_s + (sum(one.cost_s for one in tried.values()) if is_better else 0.0)
            entry = trial.outcome.entry(chosen.candidate, cost_s)
            ledger = msgspec.structs.replace(ledger, entries=(*ledger.entries, entry))
            self._listener.note(f"{name}: {entry.verdict}: {entry.reason}")
            if trial.built is not None and is_better:
                return ledger, self._put_in_place(trial.built, ledger), ""
            save_ledger(self._folder, ledger, self._request.cache_dir)
            shutil.rmtree(trial.folder, ignore_errors=True)

    def _tried(
        self, chosen: Sequence[Queued], ledger: Ledger, incumbent: Built, scratch: Path
    ) -> list[Trial]:
        """Candidates built, then checked and raced; each bears its share of the time that they took."""
        began_s, limit_s = time.monotonic(), self._limit_s(ledger)
        for one in chosen:
            why = f": {one.change.evidence}" if one.change.evidence else ""
            self._listener.note(f"{one.change.name}: {one.prediction.expected:+.2%} expected{why}")
        trials = [Trial(one.change, Path(tempfile.mkdtemp(dir=scratch))) for one in chosen]

        def build(trial: Trial, listener: Listener) -> None:
            trial.built = self._maker(limit_s, listener).make(
                incumbent, trial.change, trial.folder / "candidate"
            )

        def evaluate(trial: Trial, listener: Listener) -> None:
            if trial.built is not None:
                trial.outcome = self._raced(trial.built, incumbent, limit_s, listener)
                if trial.outcome.verdict == "accepted":
                    self._profiled(trial.built, limit_s)

        at_a_time(trials, build, self._executor, self._quiet)
        at_a_time(trials, evaluate, self._executor, self._quiet)
        share_s = (time.monotonic() - began_s) / len(trials)
        for trial in trials:
            trial.cost_s = share_s
        return trials

    def _raced(self, built: Built, incumbent: Built, limit_s: float, listener: Listener) -> Outcome:
        if _is_same(built, incumbent):
            return Outcome("unchanged", "the engine is the incumbent's")
        with self._checking:
            checked = self._checked(built, limit_s, listener)
        accuracy = _accuracy(checked)
        if checked.violations:
            return Outcome("inaccurate", checked.violations[0].text, accuracy=accuracy)
        comparison = race(
            self._racer(incumbent),
            self._racer(built),
            self._measure,
            self._setting(built, limit_s),
            self._terms.threshold,
            self._executor,
            listener,
        )
        reason = comparison.reasons[0].text if comparison.reasons else ""
        return Outcome(_VERDICTS[comparison.verdict], reason, comparison, accuracy)

    def _left_s(self, ledger: Ledger) -> float:
        """Seconds of the budget that are left."""
        return self._budget_s - ledger.spent_s - self._unlisted_s

    def _limit_s(self, ledger: Ledger) -> float:
        """Seconds that one build or measurement of a candidate may take."""
        return self._request.timeout or max(_LIMIT_TIMES * ledger.baseline.total_s, _LIMIT_LEAST_S)

    # ── its parts ───────────────────────────────────────────────────────────────────────────────────────

    def _maker(self, limit_s: float, listener: Listener) -> Maker:
        return Maker(
            source=self._source,
            recipe=self._request.recipe,
            builder=self._builder,
            bounds=self._request.bounds.given,
            data=self._data,
            data_name=self._samples.name,
            cache_dir=self._request.cache_dir,
            limit_s=limit_s,
            executor=self._executor,
            listener=listener,
        )

    def _profiled(self, built: Built, limit_s: float) -> None:
        """Write a profile of the engine into its folder; without one, a note says why."""
        request = ProfileRequest(
            batch=(built.batch,), duration=min(self._request.duration, _PROFILE_S), timeout=limit_s
        )
        try:
            report = profile(built.folder, request, self._quiet)
        except TrtoptError as error:
            self._notes.append(f"candidates are predicted without a profile: {error.problem.splitlines()[0]}")
        else:
            write_atomically(built.folder / PROFILE_FILE, to_json(report, indent=None))

    def _checked(self, built: Built, limit_s: float, listener: Listener) -> CheckedSubject:
        """Against the model with the build's inputs and outputs; quantised values for those of INT8."""
        there = resolved(built.folder, built.manifest, (built.engine,))
        if there.io not in self._checkers:
            checker = Checker(self._source, None, self._request.bounds, self._executor)
            checker.take_inputs_of(there.io)
            self._checkers[there.io] = checker
        with self._samples_for(built) as data:
            checker = self._checkers[there.io]
            return checker.engine(there, built.engine, built.batch, data, listener, limit_s)

    @contextmanager
    def _samples_for(self, built: Built) -> Iterator[str | None]:
        """The user's samples as the build takes them: floats become the values of INT8 inputs."""
        held = {one.name: one.model_dtype for one in built.manifest.io}
        scales = {
            one.name: one.scale for one in built.manifest.io if one.scale is not None and one.role == "input"
        }
        if self._data is None or not scales:
            yield self._data
            return
        given = [
            msgspec.structs.replace(spec, dtype=held[spec.name]) if spec.name in scales else spec
            for spec in built.manifest.onnx.inputs
        ]
        with scratch_folder() as scratch:
            write_quantised(self._data, given, scales, scratch)
            yield str(scratch)

    def _racer(self, built: Built) -> Racer:
        engine = loaded(built.folder, built.manifest.onnx.inputs, built.engine, built.batch)
        return Racer(engine, built.batch, built.streams)

    def _setting(self, built: Built, limit_s: float) -> Setting:
        """On the user's samples, if they have the engine's shapes; else on random input."""
        data = self._data
        if data is not None:
            inputs = built.manifest.onnx.inputs
            try:
                open_data(data).first_batch(inputs, shapes_at(inputs, built.engine.plan, built.batch))
            except DataError as error:
                self._notes.append(f"times are taken on random input: {error.problem}")
                data = None
        return Setting(None, None, self._terms.contract, self._request.duration, data, timeout=limit_s)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        with scratch_beside(self._folder) as temporary:
            inner = temporary / "work"  # the outer one is locked, and builds lock the folder that they are in
            inner.mkdir()
            yield inner

    def _put_in_place(self, built: Built, ledger: Ledger) -> Built:
        """Replace the folder by a build and the ledger at once.

        Raises:
            OutputError: it cannot be written.
        """
        with folder_in_progress(self._folder) as temporary:
            try:
                for path in sorted(built.folder.iterdir()):
                    path.rename(temporary / path.name)
            except OSError as error:
                raise cannot_write(self._folder, error) from None
            write_atomically(temporary / LEDGER, to_json(ledger))
            choice = TuningChoice(
                objective=self._terms.objective,
                batch=built.batch,
                streams=built.streams,
                changes=built.changes,
                recipe=msgspec.json.encode(built.recipe, order="deterministic").decode(),
                gain=ledger.gain,
                ledger=LEDGER,
            )
            manifest = write_manifest(temporary, msgspec.structs.replace(built.manifest, tuning=choice))
        store_ledger(ledger, self._request.cache_dir)
        return replace(built, folder=self._folder, manifest=manifest)


def _is_same(built: Built, incumbent: Built) -> bool:
    """Whether the same file is run on the same terms."""
    terms = [(one.engine.sha256, one.batch, one.streams) for one in (built, incumbent)]
    return terms[0] == terms[1]


def _accuracy(checked: CheckedSubject) -> float:
    return min(output.cosine for output in checked.outputs)
