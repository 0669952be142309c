"""Precision selection: precisions of one model are built and measured interleaved; the best is selected.

Few builds, as they take longest: one per float precision and batch size, and up to `budget` of quantised
engines. The form of INT8 that is expected to gain most comes first; another one, or the fastest without the
regions that lose, only where the measurement before leaves a question. The selection rests on a last
interleaved run of all candidates at that batch size.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from trtopt.builder.shapes import shapes_at
from trtopt.device.ort.reference import interrupt_ort_process
from trtopt.errors import (
    BuildError,
    DeviceError,
    ModelError,
    TimingCacheError,
    TrtoptError,
    UnsupportedOpError,
    UsageError,
)
from trtopt.executors.api import run_jobs_of
from trtopt.inspect.graph import Graph, read_graph
from trtopt.inspect.inspector import description_of
from trtopt.inspect.profile import profile_point
from trtopt.inspect.regions import find_regions, losing, region_times
from trtopt.measure.contracts import THRESHOLD, contract_for
from trtopt.measure.engine import BenchJob
from trtopt.measure.loop.interleaved import notes_of, pooled_ms, valid_rounds
from trtopt.measure.statistics.comparison import Comparison
from trtopt.measure.statistics.selection import Selection, TimedCandidate, select_engine
from trtopt.onnxio import model_file
from trtopt.precision.bounds import Bounds, verdict_alarms
from trtopt.precision.placement.evidence import ROWS, Expected, expected
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.records import (
    BatchVerdict,
    BuildPlan,
    CandidateTime,
    EngineArtifact,
    EngineProfile,
    InterleavedRun,
    Manifest,
    OnnxArtifact,
    PrecisionVerdict,
    RegionTime,
)
from trtopt.requests.models import QuantizeOptions
from trtopt.targets import NOT_TENSORRT, ONNXRUNTIME
from trtopt.workflows.build.candidates import (
    AS_GIVEN,
    Candidates,
    Entry,
    FormSearch,
    move_into,
    planned_forms,
)
from trtopt.workflows.build.folder import in_folder
from trtopt.workflows.build.graph import Precision, PreparedGraph
from trtopt.workflows.race import (
    Setting,
    compare_turns,
    engine_at,
    fitting_data,
    heat,
    race,
    verdict_record,
)
from trtopt.workflows.workbench import Workbench

_DURATION_S = 2.0
"""Seconds of sampling for each candidate at each batch size."""
_LAYERS_S = 0.3
_BREAK_S = 0.2
_MAKING = "making the graph and comparing its outputs"
_BESIDE = "candidates"


@dataclass(frozen=True)
class SelectionTerms:
    """The candidates and the bounds that they must meet.

    `precisions` are in the order of preference, floats before what is quantised: the first that keeps the
    bounds is what others must beat. `requested` is the user's request: `best`, or a precision that is
    selected where it costs no time. `request.forms` None: those of INT8 that are worth it on this `gpu`, as
    far as `budget` quantised engines at each batch size go.
    """

    requested: str
    precisions: tuple[Precision, ...]
    request: QuantizeOptions
    bounds: Bounds
    gpu: str
    budget: int


def select_precision(
    kept: PreparedGraph,
    plans: Sequence[BuildPlan],
    folder: Path,
    workbench: Workbench,
    terms: SelectionTerms,
) -> Manifest:
    """Build and measure the candidates at every plan's batch size, and keep what was chosen in `folder`.

    `kept` is the float model, in `folder`. Engines are in the order of the plans, graphs in theirs.
    An engine for a range of batch sizes is judged at the one that it is tuned for.
    """
    beside = folder / _BESIDE
    beside.mkdir()
    try:
        selection = _PrecisionSelection(kept.onnx, plans, beside, workbench, terms)
        selection.prepare()
        first = selection.try_forms()
        selection.leave_out_what_loses(first)
        last = selection.run_in_turns(known=first)
        return selection.select(last, kept, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _name_of(forms: Forms) -> str:
    return f"int8.{forms}" if forms != PLAIN else "int8"


def _abandon(coming: Iterable[Future[Entry]]) -> None:
    """Make no more graphs, and break off the one that is being made, which may take minutes."""
    running = [one for one in coming if not one.cancel()]
    while wait(running, _BREAK_S).not_done:
        interrupt_ort_process()  # it may start another, to go on in another way


class _PrecisionSelection:
    """One precision selection in progress."""

    def __init__(
        self,
        base: OnnxArtifact,
        plans: Sequence[BuildPlan],
        folder: Path,
        workbench: Workbench,
        terms: SelectionTerms,
    ) -> None:
        self._base, self._plans, self._terms = base, plans, terms
        self._workbench, self._listener = workbench, workbench.listener
        self._candidates = Candidates(base, folder, plans[0].backend, terms.request, terms.bounds)
        data = self._fitting_data()
        self._setting = Setting(contract_for(None), _DURATION_S, data)
        self._regions: dict[str, dict[str, tuple[RegionTime, ...]]] = {plan.label: {} for plan in plans}
        self._searches: dict[str, FormSearch] = {}
        self._made: dict[Forms, Entry] = {}
        self._failures: list[TrtoptError] = []
        self.entries: list[Entry] = []

    def _fitting_data(self) -> str | None:
        """The user's data, if it has the shapes that engines are tuned for; else they run on random input."""
        inputs = self._base.inputs
        shapes = (shapes_at(inputs, plan, plan.batch.opt[0]) for plan in self._plans)
        return fitting_data(self._terms.request.data, inputs, shapes, self._listener.note)

    @property
    def _baseline(self) -> Entry:
        return next(entry for entry in self.entries if not entry.is_quantized and not entry.broken)

    def prepare(self) -> None:
        """Make and evaluate all graphs but INT8's; with the unchanged model if no other float is left."""
        for precision in self._terms.precisions:
            if precision != "int8":
                own = partial(self._candidates.make, precision)
                self._listener.note(f"{precision}: {_MAKING}")
                self._make(precision, own, is_required=precision == self._terms.requested)
        self.entries.sort(key=lambda entry: entry.is_quantized)
        if all(entry.broken for entry in self.entries if not entry.is_quantized):
            self.entries.insert(0, self._candidates.make(AS_GIVEN))
        self._searches = self._searches_of(self._terms.precisions)

    def _make(self, name: str, make: Callable[[], Entry], *, is_required: bool) -> Entry | None:
        """Make and evaluate a graph; None, with a note, where one that is not required cannot be made."""
        try:
            entry = make()
        except (ModelError, UsageError) as error:
            if is_required:
                raise
            self._listener.note(f"{name} is left out: {error.problem}")
            return None
        self.entries.append(entry)
        self._report_if_broken(entry)
        return entry

    # ── forms of INT8 ───────────────────────────────────────────────────────────────────────────────────

    def _searches_of(self, precisions: Sequence[Precision]) -> dict[str, FormSearch]:
        """One for each plan; none where INT8 is no candidate."""
        if "int8" not in precisions:
            return {}
        request, backend = self._terms.request, self._plans[0].backend
        if (forms := request.graph_forms) is not None:
            only = (Expected(forms, 0.0, 0.0),)
            return {plan.label: FormSearch(only, self._terms.budget) for plan in self._plans}
        # on a processor forms gain nothing
        source, target = Path(self._base.path), request.target
        is_gpu = backend.name != ONNXRUNTIME
        places = planned_forms(source, self._base.sha256, target, tuple(request.exclude)) if is_gpu else {}
        if places and all(row.target != target for row in ROWS):
            self._listener.note(f"the order of INT8's forms is not measured on TensorRT {target}")
        return {
            plan.label: FormSearch(
                expected(places, plan.batch.opt[0], self._terms.gpu, target), self._terms.budget
            )
            for plan in self._plans
        }

    def try_forms(self) -> dict[str, InterleavedRun]:
        """Build and measure, at every plan, forms of INT8 as long as one may be faster than what is there."""
        runs: dict[str, InterleavedRun] = {}
        made = [entry for entry in self.entries if not entry.broken]
        while True:
            wanted: dict[Forms, list[BuildPlan]] = {}
            for plan in self._plans:
                search = self._searches.get(plan.label)
                if search is not None and (forms := search.next()) is not None:
                    wanted.setdefault(forms, []).append(plan)
            self._build_and_try(made, wanted)
            made = []
            runs = self.run_in_turns(known=runs)
            self._learn(runs)
            if not wanted:
                self._note_untried()
                return runs

    def _build_and_try(self, made: Sequence[Entry], wanted: Mapping[Forms, Sequence[BuildPlan]]) -> None:
        """Build what is made, then forms; the graph of each form is made while the one before is built."""
        with ThreadPoolExecutor(1, "graphs") as graphs:
            coming = {
                forms: graphs.submit(self._candidates.make_int8, _name_of(forms), forms)
                for forms in wanted
                if forms not in self._made
            }
            try:
                self._listener.notes(f"{_name_of(forms)}: {_MAKING}" for forms in coming)
                self.build(made, self._plans)
                for forms, plans in wanted.items():
                    self._try_form(forms, coming.get(forms), plans)
            except BaseException:
                _abandon(coming.values())
                raise

    def _try_form(self, forms: Forms, coming: Future[Entry] | None, plans: Sequence[BuildPlan]) -> None:
        """Build one, unless it cannot be made, or misses a bound."""
        entry = self._made.get(forms) if coming is None else self._await_form(forms, coming)
        searches = [self._searches[plan.label] for plan in plans]
        for search in searches:
            search.measured[forms] = None
        if entry is None or entry.broken:
            return
        try:
            self.build([entry], plans)
        except TimingCacheError:  # which the user holds to
            raise
        except (BuildError, UnsupportedOpError) as error:
            self._listener.note(f"{entry.name} is left out: it cannot be built: {error.problem}")
            self._failures.append(error)
            self.entries.remove(entry)
            for search in self._searches.values():
                search.measured.setdefault(forms, None)
            return
        for search in searches:
            search.built += 1

    def _await_form(self, forms: Forms, coming: Future[Entry]) -> Entry | None:
        """INT8 in a form; None where it cannot be made, if that was not requested or others were."""
        is_required = self._terms.requested == "int8" and not self._made
        entry = self._make(_name_of(forms), coming.result, is_required=is_required)
        if entry is not None:
            self._made[forms] = entry
        return entry

    def _learn(self, runs: dict[str, InterleavedRun]) -> None:
        """Tell each search how its forms compare with the baseline."""
        for plan in self._plans:
            ms = {turns.name: pooled_ms(turns) for turns in valid_rounds(runs[plan.label]).turns}
            for forms, entry in self._made.items():
                if entry.name in ms:
                    change = ms[entry.name] / ms[self._baseline.name] - 1
                    self._searches[plan.label].measured[forms] = change

    def _note_untried(self) -> None:
        for label, search in self._searches.items():
            if untried := search.untried():
                names = "; ".join(
                    f"{str(one.forms) or 'no form'} ({one.change:+.1%} elsewhere)" for one in untried
                )
                self._listener.note(
                    f"{label}: not tried: {names}; --selection-budget {len(untried) + search.budget}"
                )
        broken = [entry for entry in self._made.values() if entry.broken]
        if broken and len(broken) == len(self._made):
            nearest = max(broken, key=lambda entry: entry.sqnr_db)
            self._listener.note(
                f"no form of INT8 meets the bounds; {nearest.name} comes nearest: {nearest.broken[0]}"
            )
        if self._failures and not any(entry.engines for entry in self._made.values()):
            raise self._failures[0]

    def _report_if_broken(self, entry: Entry) -> None:
        if entry.broken:
            self._listener.note(f"{entry.name} is left out: {', '.join(entry.broken)}")

    def build(self, entries: Iterable[Entry], plans: Sequence[BuildPlan]) -> None:
        """Build an engine of each entry for each plan."""
        for entry in entries:
            self._listener.note(f"building {entry.name}")
            own = [msgspec.structs.replace(plan, onnx_sha256=entry.onnx.sha256) for plan in plans]
            engines = self._workbench.build((entry.onnx,), own, entry.folder)
            entry.engines.update({engine.plan.label: engine for engine in engines})

    def _entries_of(self, plan: BuildPlan) -> list[Entry]:
        """The candidates with an engine for a plan, the baseline first."""
        others = [one for one in self.entries if plan.label in one.engines and one is not self._baseline]
        return [self._baseline, *others]

    # ── measuring ───────────────────────────────────────────────────────────────────────────────────────

    def run_in_turns(self, known: dict[str, InterleavedRun] | None = None) -> dict[str, InterleavedRun]:
        """One interleaved run per plan, by label; a run that had all candidates already is not repeated."""
        runs = dict(known or {})
        stale = [
            plan
            for plan in self._plans
            if plan.label not in runs or len(runs[plan.label].turns) < len(self._entries_of(plan))
        ]
        heats = []
        for plan in stale:
            entries, size = self._entries_of(plan), plan.batch.opt[0]
            engines = [
                engine_at(one.folder, self._base.inputs, one.engines[plan.label], size) for one in entries
            ]
            names, label = [one.name for one in entries], f"{plan.label}: {len(entries)} in turns"
            heats.append(heat(label, engines, names, "precisions", size, self._setting))
        found = race(heats, self._listener, executor=self._workbench.executor) if heats else []
        for run in found:
            if run.failure is not None:
                raise DeviceError(
                    f"batch {run.batch}: {run.failure}, while precisions were being measured",
                    "see whether nvidia-smi shows a healthy GPU; --no-verdict builds without measuring",
                )
        return runs | {plan.label: run for plan, run in zip(stale, found, strict=True)}

    def _report_times(self, plan: BuildPlan, run: InterleavedRun) -> None:
        """Report the first result early: the layer pass takes as long again, and the user may stop there."""
        times = [
            f"{one.candidate} {one.latency_ms:.3f} ms"
            + (f" ({one.against_baseline.verdict})" if one.against_baseline else "")
            for one in self._verdict(plan, run).times
        ]
        self._listener.note(f"{plan.label}, before layers are profiled: {', '.join(times)}")

    def _profiles(self, plan: BuildPlan, entries: Sequence[Entry]) -> list[tuple[EngineProfile, Graph]]:
        """Each one's layers with their times, and its graph at the plan's shapes."""
        size = plan.batch.opt[0]
        jobs = [
            BenchJob(
                engine=engine_at(entry.folder, self._base.inputs, entry.engines[plan.label], size),
                batch=size,
                data=self._setting.data,
                contract=self._setting.contract,
                warmup_s=_LAYERS_S,
                duration_s=_LAYERS_S,
                layers=True,
                memory=False,
            )
            for entry in entries
        ]
        self._listener.plans([f"{plan.label}: layers of {entry.name}" for entry in entries])
        found: dict[int, tuple[EngineProfile, Graph]] = {}
        for index, result in run_jobs_of(self._workbench.executor, jobs, on_progress=self._listener.progress):
            point = result.point
            proto = model_file.load(Path(entries[index].onnx.path)).proto
            graph = read_graph(proto, point.latency.shapes)
            by_tensors = plan.backend.name == "onnxruntime"
            found[index] = (
                profile_point(point, description_of(point, []), graph, None, by_tensors=by_tensors),
                graph,
            )
        return [found[index] for index in range(len(jobs))]

    # ── regions ─────────────────────────────────────────────────────────────────────────────────────────

    def leave_out_what_loses(self, runs: dict[str, InterleavedRun]) -> None:
        """For every plan with a build left: find the regions that lose, and build the fastest without them.

        The fastest of each precision, for forms share what loses.
        """
        made: dict[tuple[str, tuple[str, ...]], list[BuildPlan]] = {}
        for plan in self._plans:
            search = self._searches.get(plan.label)
            if search is not None and not search.has_budget:
                continue
            entries = self._fastest(plan, runs[plan.label])
            if not entries:
                continue
            self._report_times(plan, runs[plan.label])
            (floats, _), *others = self._profiles(plan, [self._baseline, *entries])
            for entry, (profile, graph) in zip(entries, others, strict=True):
                regions = find_regions(graph)
                times = region_times(regions, floats, profile, THRESHOLD)
                self._regions[plan.label][entry.name] = times
                if left := losing(times, profile.sum_ms, THRESHOLD):
                    made.setdefault((entry.name, left), []).append(plan)
        for number, ((name, left), plans) in enumerate(made.items(), 1):
            self._listener.note(f"{name}: {len(left)} nodes lose at {', '.join(one.label for one in plans)}")
            whole = next(entry for entry in self.entries if entry.name == name)
            try:
                entry = self._candidates.reduce(whole, left, number)
            except (ModelError, UsageError) as error:  # what is left may be nothing that can be quantised
                self._listener.note(f"{name} stays whole: {error.problem}")
                continue
            self.entries.append(entry)
            self._report_if_broken(entry)
            if not entry.broken:
                self.build([entry], plans)

    def _fastest(self, plan: BuildPlan, run: InterleavedRun) -> list[Entry]:
        """Of each precision that is quantised."""
        ms = {turns.name: pooled_ms(turns) for turns in valid_rounds(run).turns}
        entries = [entry for entry in self._entries_of(plan) if entry.is_quantized]
        fastest: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda entry: ms[entry.name]):
            fastest.setdefault(entry.candidate.precision, entry)
        return list(fastest.values())

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────

    def select(self, runs: dict[str, InterleavedRun], kept: PreparedGraph, folder: Path) -> Manifest:
        """Select for every plan, and move the selected files into `folder`."""
        verdicts = [self._verdict(plan, runs[plan.label]) for plan in self._plans]
        by_name = {entry.name: entry for entry in self.entries}
        graphs: dict[str, OnnxArtifact] = {}
        engines: dict[str, EngineArtifact] = {}
        for name in dict.fromkeys(one.chosen for one in verdicts):
            labels = [one.engine for one in verdicts if one.chosen == name]
            graphs[name], own = move_into(by_name[name], labels, folder)
            engines |= dict(zip(labels, own, strict=True))
        environment = runs[self._plans[0].label].environment
        contracts = dict.fromkeys(turns.contract.name for run in runs.values() for turns in run.turns)
        verdict = PrecisionVerdict(
            requested=self._terms.requested,
            baseline=self._baseline.name,
            threshold=THRESHOLD,
            device=f"{environment.device.name} with {environment.backend}",
            contract=" and ".join(contracts),
            data=str(self._terms.request.data or "random data"),
            bounds=self._terms.bounds.given,
            candidates=tuple(entry.candidate for entry in self.entries),
            batches=tuple(verdicts),
            notes=tuple(notes_of(list(runs.values()))),
        )
        first, *others = graphs.values()
        return msgspec.structs.replace(
            kept.manifest(tuple(engines[plan.label] for plan in self._plans)),
            onnx=first,
            graphs=tuple(others),
            intermediates=() if self._base.sha256 == first.sha256 else (in_folder(self._base),),
            verdict=verdict,
            alarms=verdict_alarms(verdict),
        )

    def _verdict(self, plan: BuildPlan, run: InterleavedRun) -> BatchVerdict:
        kept = valid_rounds(run)
        compared = {
            turns.name: compare_turns(kept, number) for number, turns in enumerate(kept.turns) if number
        }
        ms = {turns.name: pooled_ms(turns) for turns in kept.turns}
        choice = self._choice(ms, compared)
        built = {entry.name: entry.engines[plan.label] for entry in self._entries_of(plan)}
        return BatchVerdict(
            engine=plan.label,
            batch=run.batch,
            chosen=choice.name,
            reason=choice.reason + (f"; {NOT_TENSORRT}" if plan.backend.name == ONNXRUNTIME else ""),
            times=tuple(
                CandidateTime(
                    candidate=name,
                    latency_ms=value,
                    build_seconds=built[name].build_seconds,
                    against_baseline=verdict_record(run.batch, compared[name]) if name in compared else None,
                )
                for name, value in ms.items()
            ),
            regions=self._regions[plan.label],
        )

    def _choice(self, ms: dict[str, float], compared: dict[str, Comparison]) -> Selection:
        candidates_timed = [
            TimedCandidate(
                entry.name,
                ms.get(entry.name),
                compared.get(entry.name),
                requested=entry.candidate.precision == self._terms.requested,
                broken=entry.broken,
                sqnr_db=entry.sqnr_db,
            )
            for entry in self.entries
            if entry is not self._baseline and (entry.broken or entry.name in compared)
        ]
        return select_engine(self._baseline.name, candidates_timed)
