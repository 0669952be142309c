"""Remedies of the causes that make B slower: each is built, and takes turns with B and A."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

from msgspec.structs import replace

from trtopt.device.backends import open_builder
from trtopt.errors import DeviceError, TrtoptError, UsageError
from trtopt.files.atomic import scratch_folder
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.measure.contracts import contract_for
from trtopt.measure.engine import LoadedEngine
from trtopt.measure.loop.interleaved import pooled_ms, valid_rounds
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds
from trtopt.precision.placement.forms import parse_forms
from trtopt.recipe import Recipe
from trtopt.records import Cause, EngineDifference, OnnxArtifact, QuantizeReport, Trial, read_versioned
from trtopt.records.precision import Candidate
from trtopt.requests.measure import ExplainRequest
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.bench.resolve_engines import find_engines, points
from trtopt.workflows.build.candidates import Candidates, Entry
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.build.graph import rewrite_into
from trtopt.workflows.listener import Listener
from trtopt.workflows.race import (
    Setting,
    compare_turns,
    engine_at,
    fitting_data,
    heat,
    race,
    short_turns,
    verdict_record,
)
from trtopt.workflows.workbench import Workbench

ALL = "all"


def check_chosen(words: Sequence[str], found: Sequence[EngineDifference]) -> None:
    """Every word names a cause that costs B time."""
    costly = {cause.cause for one in found for cause in one.causes if cause.cost_ms > 0}
    for word in words:
        if word != ALL and not any(word in name for name in costly):
            raise UsageError(
                f"--try {word}: no cause of that name costs B time",
                f"choose a part of one of: {'; '.join(sorted(costly)) or 'none does'}",
            )


def try_remedies(
    found: EngineDifference,
    paths: tuple[Path | None, Path],
    request: ExplainRequest,
    end: float,
    listener: Listener,
) -> EngineDifference:
    """The difference with what became of the chosen causes' remedies, the costliest first.

    `paths` have A's engine, if it is there, and B's. None is begun after `end`, on the monotonic clock.
    """
    costly = [one for one in found.causes if one.cost_ms > 0]
    chosen = [one for one in costly if any(word in one.cause for word in request.remedies)]
    if ALL in request.remedies:
        chosen = [one for one in costly if one.remedy]
    with scratch_folder() as scratch:
        trials = _Trials(paths[1], found.batch, request, scratch, listener)
        for cause in chosen:
            trials.plan(cause)
        for number, one in enumerate(trials.planned):
            if time.monotonic() > end and not one.reason:
                one.reason = f"--budget {request.budget} was spent before"
            trials.build(number)
        return replace(found, trials=trials.measure(paths[0]))


@dataclass
class _Planned:
    """An option to try, and what became of it."""

    name: str
    values: tuple[str, ...]
    causes: list[Cause]
    reason: str = ""
    engine: LoadedEngine | None = None
    sqnr_db: float | None = None

    @property
    def option(self) -> str:
        """As `trtopt build` takes it; of several values the first."""
        more = f" and {len(self.values) - 1} more" if len(self.values) > 1 else ""
        return f"--{self.name.replace('_', '-')} {self.values[0]}{more}" if self.name else ""

    @property
    def trial(self) -> Trial:
        """Without what was measured."""
        return Trial(
            option=self.option,
            causes=tuple(cause.cause for cause in self.causes),
            predicted_ms=sum(cause.cost_ms for cause in self.causes),
            sqnr_db=None if self.sqnr_db == inf else self.sqnr_db,
            reason=self.reason,
        )


class _Trials:
    """Engines of B with an option more, on B's plan."""

    def __init__(
        self, path: Path, batch: int, request: ExplainRequest, scratch: Path, listener: Listener
    ) -> None:
        self._folder, manifest, engines = find_engines(path)
        assert manifest is not None
        ((self._engine, self._batch),) = points(engines, (batch,))
        self._manifest, self._request, self._scratch, self._listener = manifest, request, scratch, listener
        sha256 = self._engine.plan.onnx_sha256
        self._graph = next(one for one in verified_graphs(self._folder, manifest) if one.sha256 == sha256)
        self._quantized = self._report()
        bench = Workbench(
            builder=open_builder(self._engine.plan.backend.name), listener=listener, limit_s=request.timeout
        )
        self._workbench = bench.with_caches(Recipe(), scratch, None)
        self.planned: list[_Planned] = []

    def _report(self) -> QuantizeReport | None:
        """How trtopt quantised B's graph; None where it did not in this build."""
        for file in sorted(self._folder.glob("quantize*.json")):
            with reading_as("a report on quantisation", file, "build again"):
                report = read_versioned(read_bounded(file), QuantizeReport)
            if (report.out, report.precision) == (Path(self._graph.path).name, "int8"):
                return report
        return None

    def plan(self, cause: Cause) -> None:
        """The first option of a cause that B's graph can be made with; causes may share one."""
        fields = ("add_rule",) if self._quantized is None else ("forms", "exclude")
        name = next((one for one in fields if one in cause.options), "")
        values = cause.options.get(name, ())
        for one in self.planned:
            if name and (one.name, one.values) == (name, values):
                one.causes.append(cause)
                return
        self.planned.append(one := _Planned(name, values, [cause]))
        if not name:
            one.reason = _why_not(cause)

    def build(self, number: int) -> None:
        """Build one, unless something speaks against it."""
        one, folder = self.planned[number], self._scratch / str(number)
        if one.reason:
            return
        folder.mkdir()
        self._listener.note(f"trying {one.option}")
        try:
            graph = self._changed(one, folder)
            if graph.sha256 == self._graph.sha256:
                one.reason = "it changes nothing in B's graph"
                return
            plan = replace(self._engine.plan, onnx_sha256=graph.sha256)
            (engine,) = self._workbench.build((graph,), (plan,), folder)
        except TrtoptError as error:
            one.reason = error.problem
        else:
            one.engine = engine_at(folder, graph.inputs, engine, self._batch, self._request.sizes)

    def _changed(self, one: _Planned, folder: Path) -> OnnxArtifact:
        """B's graph rewritten; or quantised again, on B's ranges where there is data for others, too."""
        if one.name == "add_rule":
            recipe, backend = Recipe(rewrite="none", add_rule=one.values), self._engine.plan.backend
            source = Path(self._graph.path)
            return rewrite_into(folder, self._graph, source, recipe, backend, self._listener).onnx
        candidates, b = self._candidates
        if one.name == "exclude":
            entry = candidates.reduce(b, one.values, 1)
        else:
            assert b.request is not None
            forms = parse_forms(",".join((b.request.forms or "", *one.values)))
            if forms == b.request.graph_forms:
                return self._graph
            entry = candidates.make_int8(f"int8.{forms}", forms)
        one.sqnr_db = entry.sqnr_db if self._request.data is not None else None
        return entry.onnx

    @cached_property
    def _candidates(self) -> tuple[Candidates, Entry]:
        """What makes INT8 graphs of B's float model, and B's own."""
        report, data = self._quantized, self._request.data
        assert report is not None
        options = QuantizeOptions(
            precision="int8",
            target=report.target,
            data=data,
            random_data=data is None,
            forms=report.forms,
            exclude=report.exclude,
        )
        base = read_onnx(self._folder / self._manifest.intermediates[0].path)
        made = Candidates(base, self._scratch, self._engine.plan.backend, options, Bounds())
        own = Candidate(name="int8", precision="int8", onnx_sha256=self._graph.sha256)
        made.know(b := Entry(own, self._graph, self._folder, options, {}))
        return made, b

    def measure(self, a: Path | None) -> tuple[Trial, ...]:
        """What was built in turns with B and A, in one process."""
        size, request = self._batch, self._request
        engines = {
            "B": engine_at(self._folder, self._graph.inputs, self._engine, size, request.sizes),
            **{one.option: one.engine for one in self.planned if one.engine is not None},
        }
        if len(engines) == 1:
            return tuple(one.trial for one in self.planned)
        if a is not None:
            folder, manifest, own = find_engines(a)
            assert manifest is not None
            ((engine, _),) = points(own, (size,))
            inputs = manifest.graph_of(engine).inputs
            engines["A"] = engine_at(folder, inputs, engine, size, request.sizes)
        shapes = engines["B"].shapes
        data = fitting_data(request.data, self._graph.inputs, [shapes], self._listener.note)
        setting = Setting(contract_for(None), request.duration, data, timeout=request.timeout)
        names, rounds = [*engines], short_turns(request.duration)
        label = f"batch{size}: B and {len(engines) - 1} others in turns"
        turns = heat(label, [*engines.values()], names, "tuning", size, setting, rounds)
        (run,) = race([turns], self._listener, request.timeout)
        if run.failure is not None:
            raise DeviceError(run.failure, "check the GPU with nvidia-smi; without --try nothing is built")
        kept = valid_rounds(run)
        ms = {one.name: pooled_ms(one) for one in kept.turns}
        return tuple(
            replace(
                one.trial,
                ms=ms[one.option],
                a_ms=ms.get("A"),
                b_ms=ms["B"],
                against_b=verdict_record(size, compare_turns(kept, names.index(one.option))),
            )
            if one.engine is not None
            else one.trial
            for one in self.planned
        )


def _why_not(cause: Cause) -> str:
    if not cause.remedy:
        return "no remedy is known"
    if cause.options:
        return "it needs an INT8 graph that `trtopt build` made, or one of another kind than B's"
    return "it is no option of a build"
