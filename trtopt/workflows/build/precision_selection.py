"""Precision selection: precisions of one model are built and measured interleaved; the best is selected.

Few builds, as they take longest: one per float precision and batch size, and quantised engines up to the
recipe's budget. The form of INT8 that is expected to gain most comes first; another one, or the fastest
without the regions that lose, only where the measurement before leaves a question. The selection rests on a
last interleaved run of all candidates at that batch size.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from trtopt.builder.shapes import shapes_at
from trtopt.device.backends import precisions_on
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
from trtopt.inspect.explanation import difference, largest_costs
from trtopt.inspect.graph import Graph, read_graph
from trtopt.inspect.inspector import description_of
from trtopt.inspect.profile import profile_point
from trtopt.inspect.regions import find_regions, losing, region_times
from trtopt.measure.contracts import THRESHOLD, contract_for
from trtopt.measure.engine import BenchJob
from trtopt.measure.loop.interleaved import notes_of, valid_rounds
from trtopt.measure.statistics.comparison import Comparison, decide
from trtopt.measure.statistics.selection import Selection, TimedCandidate, select_engine
from trtopt.onnxio import model_file
from trtopt.precision.bounds import Bounds, bounds_in, verdict_alarms
from trtopt.precision.placement.evidence import ROWS, Expected, expected
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.recipe import BEST, GraphPrecision, Recipe
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
from trtopt.workflows.build.graph import PreparedGraph, request_for
from trtopt.workflows.race import (
    Setting,
    compare_turns,
    engine_at,
    fitting_data,
    heat,
    race,
    verdict_record,
)
from trtopt.workflows.workbench import Workbench, make_plans

BASELINE: GraphPrecision = "fp16"
"""What quantised engines must not be slower than."""
_BEST_BOUNDS = Bounds(min_cosine=0.99)
"""The default bound of `--precision best` for every output."""
_DURATION_S = 2.0
"""Seconds of sampling for each candidate at each batch size."""
_LAYERS_S = 0.3
_BREAK_S = 0.2
_MAKING = "making the graph and comparing its outputs"
_BESIDE = "candidates"


def select_precision(kept: PreparedGraph, recipe: Recipe, workbench: Workbench, folder: Path) -> Manifest:
    """Build and measure the candidates at every plan's batch size, and keep what was chosen in `folder`.

    `kept` is the float model, in `folder`. The recipe requests `best`, or a precision that is selected where
    it costs no time. Engines are in the order of its plans, graphs in theirs. An engine for a range of batch
    sizes is judged at the one that it is tuned for.
    """
    beside = folder / _BESIDE
    beside.mkdir()
    try:
        selection = _PrecisionSelection(kept, recipe, workbench, beside)
        selection.make_graphs()
        selection.try_forms()
        selection.leave_out_what_loses()
        selection.try_plugins()
        selection.run_in_turns()
        return selection.select(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _name_of(forms: Forms) -> str:
    return f"int8.{forms}" if forms != PLAIN else "int8"


def _abandon(coming: Iterable[Future[Entry]]) -> None:
    """Make no more graphs, and break off the one that is being made, which may take minutes."""
    running = [one for one in coming if not one.cancel()]
    while wait(running, _BREAK_S).not_done:
        interrupt_ort_process()  # it may start another, to go on in another way


@dataclass
class _Contest:
    """One plan's: its search among forms of INT8, the last turns, who loses where."""

    plan: BuildPlan
    search: FormSearch
    run: InterleavedRun | None = None
    regions: dict[str, tuple[RegionTime, ...]] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)
    """What candidates lose most by against the baseline, of those whose layers were timed."""
    plugins: Entry | None = None

    @property
    def last(self) -> InterleavedRun:
        """The last turns."""
        assert self.run is not None
        return self.run


class _PrecisionSelection:
    """One precision selection in progress."""

    def __init__(self, kept: PreparedGraph, recipe: Recipe, workbench: Workbench, folder: Path) -> None:
        self._kept, self._base, self._recipe = kept, kept.onnx, recipe
        self._workbench, self._listener = workbench, workbench.listener
        backend, bounds = workbench.builder.backend, bounds_in(recipe.bounds)
        self._bounds = bounds if bounds.any or recipe.precision != BEST else _BEST_BOUNDS
        self._request = request_for(self._base, recipe, backend)
        plans = make_plans(self._base, recipe, backend)
        self._candidates = Candidates(self._base, folder, self._request, self._bounds, workbench.executor)
        shapes = [shapes_at(self._base.inputs, plan, plan.batch.opt[0]) for plan in plans]
        data = fitting_data(self._request.data, self._base.inputs, shapes, self._listener.note)
        self._setting = Setting(contract_for(None), _DURATION_S, data)
        self._made: dict[Forms, Entry] = {}
        self._failures: list[TrtoptError] = []
        self._unmeasured: list[str] = []
        # without expectations, until INT8 is a candidate
        self.contests = [_Contest(plan, FormSearch((), recipe.selection_budget)) for plan in plans]
        self.entries: list[Entry] = []

    @property
    def _baseline(self) -> Entry:
        return next(entry for entry in self.entries if not entry.is_quantized and not entry.broken)

    def make_graphs(self) -> None:
        """Make and evaluate all graphs but INT8's; with the unchanged model if no other float is left.

        Those of fused plugins come first: a model without a place for them is refused before minutes go by.
        """
        for one in self.contests if self._recipe.fused_plugins else ():
            name = f"int8.plugins.{one.plan.label}"
            self._listener.note(f"{name}: making the graph")
            one.plugins = self._candidates.make_plugins(name, one.plan, self._listener.note)
        for precision in self._precisions():
            if precision == "int8":
                self._expect_of_forms()
                continue
            own = partial(self._candidates.make, precision)
            self._listener.note(f"{precision}: {_MAKING}")
            self._make(precision, own, is_required=precision == self._recipe.precision)
        self.entries.sort(key=lambda entry: entry.is_quantized)
        if all(entry.broken for entry in self.entries if not entry.is_quantized):
            self.entries.insert(0, self._candidates.make(AS_GIVEN))

    def _precisions(self) -> tuple[GraphPrecision, ...]:
        """By preference, floats first: the first that keeps the bounds is what others must beat."""
        builder = self._workbench.builder
        if self._recipe.precision == BEST:
            return cast("tuple[GraphPrecision, ...]", precisions_on(builder.backend, builder.device))
        return BASELINE, cast("GraphPrecision", self._recipe.precision)

    def _make(self, name: str, make: Callable[[], Entry], *, is_required: bool) -> Entry | None:
        """Make and evaluate a graph; None, with a note, where one that is not required cannot be made."""
        try:
            entry = make()
        except (ModelError, UsageError) as error:
            if is_required:
                raise
            self._listener.note(f"{name} is left out: {error.problem}")
            return None
        self._enter(entry)
        return entry

    # ── forms of INT8 ───────────────────────────────────────────────────────────────────────────────────

    def _expect_of_forms(self) -> None:
        """What each plan's search may build: the requested form, or those that the graph has a place for."""
        request, gpu = self._request, self._workbench.builder.device.name
        if (forms := request.graph_forms) is not None:
            for one in self.contests:
                one.search.expected = (Expected(forms, 0.0, 0.0),)
            return
        # on a processor forms gain nothing
        source, target = Path(self._base.path), request.target
        is_gpu = self.contests[0].plan.backend.name != ONNXRUNTIME
        places = planned_forms(source, self._base.sha256, target, tuple(request.exclude)) if is_gpu else {}
        if places and all(row.target != target for row in ROWS):
            self._listener.note(f"the order of INT8's forms is not measured on TensorRT {target}")
        for one in self.contests:
            one.search.expected = expected(places, one.plan.batch.opt[0], gpu, target)

    def try_forms(self) -> None:
        """Build and measure, at every plan, forms of INT8 as long as one may be faster than what is there."""
        made = [entry for entry in self.entries if not entry.broken]
        while True:
            wanted: dict[Forms, list[_Contest]] = {}
            for one in self.contests:
                if (forms := one.search.next()) is not None:
                    wanted.setdefault(forms, []).append(one)
            self._build_and_try(made, wanted)
            made = []
            self.run_in_turns()
            if not wanted:
                self._note_untried()
                return

    def _build_and_try(self, made: Sequence[Entry], wanted: Mapping[Forms, Sequence[_Contest]]) -> None:
        """Build what is made, then forms; the graph of each form is made while the one before is built."""
        with ThreadPoolExecutor(1, "graphs") as graphs:
            coming = {
                forms: graphs.submit(self._candidates.make_int8, _name_of(forms), forms)
                for forms in wanted
                if forms not in self._made
            }
            try:
                self._listener.notes(f"{_name_of(forms)}: {_MAKING}" for forms in coming)
                self._build(made, self.contests)
                for forms, contests in wanted.items():
                    self._try_form(forms, coming.get(forms), contests)
            except BaseException:
                _abandon(coming.values())
                raise

    def _try_form(self, forms: Forms, coming: Future[Entry] | None, contests: Sequence[_Contest]) -> None:
        """Build one, unless it cannot be made, or misses a bound."""
        entry = self._made.get(forms) if coming is None else self._await_form(forms, coming)
        for contest in contests:
            contest.search.measured[forms] = None
        if entry is None or entry.broken:
            return
        try:
            self._build([entry], contests)
        except TimingCacheError:  # which the user holds to
            raise
        except (BuildError, UnsupportedOpError) as error:
            self._listener.note(f"{entry.name} is left out: it cannot be built: {error.problem}")
            self._failures.append(error)
            self.entries.remove(entry)
            for one in self.contests:
                one.search.measured.setdefault(forms, None)
            return
        for contest in contests:
            contest.search.built += 1

    def _await_form(self, forms: Forms, coming: Future[Entry]) -> Entry | None:
        """INT8 in a form; None where it cannot be made, if that was not requested or others were."""
        is_required = self._recipe.precision == "int8" and not self._made
        entry = self._make(_name_of(forms), coming.result, is_required=is_required)
        if entry is not None:
            self._made[forms] = entry
        return entry

    def _note_untried(self) -> None:
        for one in self.contests:
            if untried := one.search.untried():
                names = "; ".join(
                    f"{str(known.forms) or 'no form'} ({known.change:+.1%} elsewhere)" for known in untried
                )
                self._listener.note(
                    f"{one.plan.label}: not tried: {names}; "
                    f"--selection-budget {len(untried) + one.search.budget}"
                )
        broken = [entry for entry in self._made.values() if entry.broken]
        if broken and len(broken) == len(self._made):
            nearest = max(broken, key=lambda entry: entry.sqnr_db)
            self._listener.note(
                f"no form of INT8 meets the bounds; {nearest.name} comes nearest: {nearest.broken[0]}"
            )
        if self._failures and not any(entry.engines for entry in self._made.values()):
            raise self._failures[0]

    def _enter(self, entry: Entry) -> bool:
        """Enter a candidate; whether it keeps the bounds, and so is worth an engine."""
        self.entries.append(entry)
        if entry.broken:
            self._listener.note(f"{entry.name} is left out: {', '.join(entry.broken)}")
        return not entry.broken

    def _build(self, entries: Iterable[Entry], contests: Sequence[_Contest]) -> None:
        """Build an engine of each entry for each plan."""
        for entry in entries:
            self._listener.note(f"building {entry.name}")
            own = [msgspec.structs.replace(one.plan, onnx_sha256=entry.onnx.sha256) for one in contests]
            engines = self._workbench.build((entry.onnx,), own, entry.folder)
            for engine in engines:
                plan, inputs = engine.plan, self._base.inputs
                entry.engines[plan.label] = engine_at(entry.folder, inputs, engine, plan.batch.opt[0])

    def _entries_of(self, plan: BuildPlan) -> list[Entry]:
        """The candidates with an engine for a plan, the baseline first."""
        others = [one for one in self.entries if plan.label in one.engines and one is not self._baseline]
        return [self._baseline, *others]

    # ── measuring ───────────────────────────────────────────────────────────────────────────────────────

    def run_in_turns(self) -> None:
        """An interleaved run for each plan, unless its last one had all candidates; searches learn of it."""
        stale = [
            one
            for one in self.contests
            if one.run is None or len(one.run.turns) < len(self._entries_of(one.plan))
        ]
        heats = []
        for one in stale:
            entries = self._entries_of(one.plan)
            engines = [entry.engines[one.plan.label] for entry in entries]
            names, label = [entry.name for entry in entries], f"{one.plan.label}: {len(entries)} in turns"
            heats.append(heat(label, engines, names, "precisions", self._setting))
        found = race(heats, self._listener, executor=self._workbench.executor) if heats else []
        for run in found:
            if run.failure is not None:
                raise DeviceError(
                    f"batch {run.batch}: {run.failure}, while precisions were being measured",
                    "see whether nvidia-smi shows a healthy GPU; --no-verdict builds without measuring",
                )
        for one, run in zip(stale, found, strict=True):
            one.run, ms = run, valid_rounds(run).ms
            for forms, entry in self._made.items():
                if entry.name in ms:
                    one.search.measured[forms] = ms[entry.name] / ms[self._baseline.name] - 1

    def _report_times(self, contest: _Contest) -> None:
        """Report the first result early: the layer pass takes as long again, and the user may stop there."""
        times = [
            f"{one.candidate} {one.latency_ms:.3f} ms"
            + (f" ({one.against_baseline.verdict})" if one.against_baseline else "")
            for one in self._verdict(contest).times
        ]
        self._listener.note(f"{contest.plan.label}, before layers are profiled: {', '.join(times)}")

    def _profiles(self, plan: BuildPlan, entries: Sequence[Entry]) -> list[tuple[EngineProfile, Graph]]:
        """Each one's layers with their times, and its graph at the plan's shapes."""
        jobs = [
            BenchJob(
                engine=entry.engines[plan.label],
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
            by_tensors = plan.backend.name == ONNXRUNTIME
            profile = profile_point(point, description_of(point, []), graph, None, by_tensors=by_tensors)
            found[index] = profile, graph
        return [found[index] for index in range(len(jobs))]

    # ── regions ─────────────────────────────────────────────────────────────────────────────────────────

    def leave_out_what_loses(self) -> None:
        """For every plan with a build left: find the regions that lose, and build the fastest without them.

        The fastest of each precision, for forms share what loses.
        """
        made: dict[tuple[str, tuple[str, ...]], list[_Contest]] = {}
        for contest in self.contests:
            if not contest.search.has_budget:
                continue
            entries = self._fastest(contest)
            if not entries:
                continue
            self._report_times(contest)
            (floats, _), *others = self._profiles(contest.plan, [self._baseline, *entries])
            for entry, (profile, graph) in zip(entries, others, strict=True):
                regions = find_regions(graph)
                times = region_times(regions, floats, profile, THRESHOLD)
                contest.regions[entry.name] = times
                contest.losses[entry.name] = largest_costs(difference(floats, profile))
                if left := losing(times, profile.sum_ms, THRESHOLD):
                    made.setdefault((entry.name, left), []).append(contest)
        for number, ((name, left), contests) in enumerate(made.items(), 1):
            labels = ", ".join(one.plan.label for one in contests)
            self._listener.note(f"{name}: {len(left)} nodes lose at {labels}")
            whole = next(entry for entry in self.entries if entry.name == name)
            try:
                entry = self._candidates.reduce(whole, left, number)
            except (ModelError, UsageError) as error:  # what is left may be nothing that can be quantised
                self._listener.note(f"{name} stays whole: {error.problem}")
                continue
            if self._enter(entry):
                self._build([entry], contests)

    def _fastest(self, contest: _Contest) -> list[Entry]:
        """Of each precision that is quantised."""
        ms = valid_rounds(contest.last).ms
        entries = [entry for entry in self._entries_of(contest.plan) if entry.is_quantized]
        fastest: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda entry: ms[entry.name]):
            fastest.setdefault(entry.candidate.precision, entry)
        return list(fastest.values())

    # ── plugins ─────────────────────────────────────────────────────────────────────────────────────────

    def try_plugins(self) -> None:
        """Build the graphs of fused plugins, and judge their engines' outputs."""
        for contest in self.contests:
            plan, entry = contest.plan, contest.plugins
            if entry is None:
                continue
            try:
                self._build([entry], [contest])
                judged = self._candidates.judge_engine(entry, entry.engines[plan.label])
            except TimingCacheError:
                raise
            except (BuildError, ModelError, DeviceError) as error:
                self._unmeasured.append(f"{entry.name} is left out: {error.problem}")
                self._listener.note(self._unmeasured[-1])
                continue
            self._enter(judged)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────

    def select(self, folder: Path) -> Manifest:
        """Select for every plan, and move the selected files into `folder`."""
        verdicts, runs = [self._verdict(one) for one in self.contests], [one.last for one in self.contests]
        by_name = {entry.name: entry for entry in self.entries}
        graphs: dict[str, OnnxArtifact] = {}
        engines: dict[str, EngineArtifact] = {}
        for name in dict.fromkeys(one.chosen for one in verdicts):
            labels = [one.engine for one in verdicts if one.chosen == name]
            graphs[name], own = move_into(by_name[name], labels, folder)
            engines |= dict(zip(labels, own, strict=True))
        verdict = PrecisionVerdict(
            requested=str(self._recipe.precision),
            baseline=self._baseline.name,
            threshold=THRESHOLD,
            device=f"{runs[0].environment.device.name} with {runs[0].environment.backend}",
            contract=" and ".join(dict.fromkeys(turns.contract.name for run in runs for turns in run.turns)),
            data=str(self._request.data or "random data"),
            bounds=self._bounds.given,
            candidates=tuple(entry.candidate for entry in self.entries),
            batches=tuple(verdicts),
            notes=(*notes_of(runs), *self._unmeasured),
        )
        first, *others = graphs.values()
        return msgspec.structs.replace(
            self._kept.manifest(tuple(engines[one.plan.label] for one in self.contests)),
            onnx=first,
            graphs=tuple(others),
            intermediates=() if self._base.sha256 == first.sha256 else (in_folder(self._base),),
            verdict=verdict,
            alarms=verdict_alarms(verdict),
        )

    def _verdict(self, contest: _Contest) -> BatchVerdict:
        plan, run = contest.plan, contest.last
        rounds = valid_rounds(run)
        ms = rounds.ms
        compared = {name: compare_turns(rounds, number) for number, name in enumerate(ms) if number}
        choice = self._choice(ms, compared)
        where = NOT_TENSORRT if plan.backend.name == ONNXRUNTIME else ""
        built = {entry.name: entry.engines[plan.label].artifact for entry in self._entries_of(plan)}
        return BatchVerdict(
            engine=plan.label,
            batch=run.batch,
            chosen=choice.name,
            reason="; ".join(filter(None, (choice.reason, self._why_refused(contest, choice.name), where))),
            times=tuple(
                CandidateTime(
                    candidate=name,
                    latency_ms=value,
                    build_seconds=built[name].build_seconds,
                    against_baseline=verdict_record(run.batch, compared[name]) if name in compared else None,
                )
                for name, value in ms.items()
            ),
            regions=contest.regions,
        )

    def _why_refused(self, contest: _Contest, chosen: str) -> str:
        """Why no quantised candidate was selected, by the layers of one; or which command shows it."""
        quantized = self._fastest(contest)
        if chosen != self._baseline.name or not quantized:
            return ""
        if known := next(((name, lost) for name, lost in contest.losses.items() if lost), None):
            return f"{known[0]} loses {known[1]}"
        other = f"{quantized[0].candidate.precision} --no-verdict"
        return f"trtopt explain A B shows why, of builds with --precision {chosen} and {other}"

    def _choice(self, ms: dict[str, float], compared: dict[str, Comparison]) -> Selection:
        candidates_timed = [
            TimedCandidate(
                entry.name,
                ms.get(entry.name, math.inf),
                compared.get(entry.name, decide(None, THRESHOLD)),
                requested=entry.candidate.precision == self._recipe.precision,
                broken=entry.broken,
                sqnr_db=entry.sqnr_db,
            )
            for entry in self.entries
            if entry is not self._baseline and (entry.broken or entry.name in compared)
        ]
        return select_engine(self._baseline.name, candidates_timed)
