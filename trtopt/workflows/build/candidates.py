"""Candidate graphs of one model: which forms of INT8 are worth one, and each made with its accuracy."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from trtopt.data import open_data
from trtopt.data.feeds import seeded_source
from trtopt.errors import ModelError, TrtoptError, UsageError
from trtopt.executors.api import THIS_HOST, Executor
from trtopt.files.atomic import scratch_beside
from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.engine import LoadedEngine
from trtopt.onnxio import model_file
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.prepare import prepare
from trtopt.onnxio.shape_inference import fix_inputs
from trtopt.precision.bounds import Bounds, violations
from trtopt.precision.calibrate import calibrate, table_beside, table_text
from trtopt.precision.compare import First
from trtopt.precision.fused_plugins import find_layers, reasons_in, write_plugins
from trtopt.precision.placement.draft import Edge, Plan, View
from trtopt.precision.placement.evidence import Expected, minor_differences
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.precision.placement.place import applicable
from trtopt.precision.qdq import Scales
from trtopt.precision.ranges import MAX
from trtopt.recipe import QUANTIZED, GraphPrecision
from trtopt.records import BuildPlan, Candidate, EngineArtifact, OnnxArtifact
from trtopt.records.precision import CalibrationTable, OutputDifference
from trtopt.requests.models import QuantizeOptions
from trtopt.rewrite.driver import rewrite
from trtopt.rewrite.rewrite import NO_SHAPES
from trtopt.rewrite.rules import RULES
from trtopt.targets import target_named
from trtopt.workflows.build.folder import in_folder
from trtopt.workflows.build.graph import apply_cast, apply_quantization
from trtopt.workflows.listener import SILENT
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.precision.quantize import job_of

_REMEMBERED = 16


@lru_cache(_REMEMBERED)
def planned_forms(
    model: Path, sha256: str, target: str, exclude: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Choices by form that the INT8 graph of a float one has a place for; none where there is none."""
    try:
        return applicable(View(_rewrite_to_quantize(model, target).proto), target_named(target), exclude)
    except TrtoptError:
        return {}


def _rewrite_to_quantize(
    model: Path, target: str, shapes: Mapping[str, Sequence[int | None]] = NO_SHAPES
) -> ModelFile:
    """The model as quantising would rewrite it, its inputs of these shapes."""
    file = prepare(model_file.load(model))
    rules = [rule for rule in RULES if rule.quantizes(target)]
    fix_inputs(file.proto.graph, shapes)
    return rewrite(file, rules, target_named(target)).model


@dataclass
class FormSearch:
    """The form that gained most a second in the closest case first; others where they may be faster.

    Of forms within 1 % of the first the most accurate goes before. `measured` are changes of latency against
    the baseline, None for what could not be built or used. A build counts against the `budget`; what misses a
    bound is not built.
    """

    expected: Sequence[Expected]
    budget: int
    measured: dict[Forms, float | None] = field(default_factory=dict)
    built: int = 0

    @property
    def has_budget(self) -> bool:
        """Whether another engine may be built."""
        return self.built < self.budget

    def next(self) -> Forms | None:
        """The form to build next; None if nothing is left that is worth it."""
        hopeful = self._hopeful()
        return hopeful[0].forms if hopeful and self.has_budget else None

    def untried(self) -> tuple[Expected, ...]:
        """What may be faster and the budget has no build for."""
        return () if self.has_budget else tuple(self._hopeful())

    def _hopeful(self) -> list[Expected]:
        changes = [change for change in self.measured.values() if change is not None]
        best = min(changes, default=None)
        hopes = {one: self._hope(one) for one in self.expected} | {one: one.hope for one in self._combine()}
        open_ones = [
            one
            for one, hope in hopes.items()
            if one.forms not in self.measured and (best is None or hope < best - THRESHOLD)
        ]
        open_ones.sort(key=lambda one: one.rate)
        near = [one for one in open_ones if one.rate <= open_ones[0].rate + THRESHOLD]
        first = max(near, key=lambda one: (round(one.sqnr_db, 1), -one.rate), default=None)
        return sorted(open_ones, key=lambda one: one is not first)

    def _hope(self, one: Expected) -> float:
        """The change at best: forms with the same main choices were off by as much on this GPU."""
        misses = [
            change - known.change
            for known in self.expected
            if (change := self.measured.get(known.forms)) is not None
            and minor_differences(known.forms, one.forms) is not None
        ]
        return one.hope_beside(fmean(misses)) if misses else one.hope

    def _combine(self) -> list[Expected]:
        """The two fastest in one, if both are faster than the baseline and nothing is known of it."""
        ahead = sorted(
            ((change, forms) for forms, change in self.measured.items() if change is not None and change < 0),
            key=lambda item: item[0],
        )
        if len(ahead) < 2:
            return []
        (best, first), (second, other) = ahead[:2]
        both = msgspec.structs.replace(other, **first.chosen)
        if any(one.forms == both for one in self.expected):
            return []
        return [Expected(both, best + second / 2, 0.0)]


_COMPARED = 64
"""How many samples a candidate's outputs are compared on."""

AS_GIVEN: Final = "fp32"


@dataclass(frozen=True)
class Entry:
    """A candidate with its graph, its folder and the engines that have been built of it, by label."""

    candidate: Candidate
    onnx: OnnxArtifact
    folder: Path
    request: QuantizeOptions | None
    engines: dict[str, LoadedEngine]

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def is_quantized(self) -> bool:
        """Whether it has Q/DQ."""
        return self.candidate.precision in QUANTIZED

    @property
    def broken(self) -> tuple[str, ...]:
        """The bounds that it misses, as text."""
        return tuple(one.text for one in self.candidate.violations)

    @property
    def sqnr_db(self) -> float:
        """Of the output that errs most; infinite where none errs."""
        ratios = [one.sqnr_db for one in self.candidate.differences if one.sqnr_db is not None]
        return min(ratios, default=inf)


class Candidates:
    """Makes them from one model, whose outputs are computed once for all that are quantised.

    What keeps one from being made is raised as `prepare_graph` raises it.
    """

    def __init__(
        self,
        base: OnnxArtifact,
        folder: Path,
        request: QuantizeOptions,
        bounds: Bounds,
        executor: Executor = THIS_HOST,
    ) -> None:
        self._base, self._folder, self._request, self._bounds = base, folder, request, bounds
        self._int8: list[Entry] = []
        self._plugin_ranges: CalibrationTable | None = None
        self._checker = Checker(base, None, bounds, executor)

    def make(self, precision: GraphPrecision) -> Entry:
        """The model in a precision; `fp32` is the unchanged model."""
        folder = self._folder / precision
        folder.mkdir()
        if precision == AS_GIVEN:
            return self._entry(precision, precision, self._base, folder, None)
        if precision == "fp16" or precision == "bf16":  # spelled out for the type checker
            made = apply_cast(self._base, precision, self._request.data, self._request.target, folder)
            return self._entry(precision, precision, made.onnx, folder, None, differences=made.differences)
        return self._quantize(precision, replace(self._request, precision=precision, forms=None))

    def make_int8(self, name: str, forms: Forms) -> Entry:
        """The model in INT8 in a form, on the ranges of an earlier one that is smoothed alike."""
        request = replace(self._request, precision="int8", forms=str(forms))
        alike = (
            one
            for one in self._int8
            if one.request and _is_smoothed_as(one.request.graph_forms or PLAIN, forms)
        )
        self._int8.append(entry := self._quantize(name, request, next(alike, None)))
        return entry

    def make_plugins(self, name: str, plan: BuildPlan, note: Callable[[str], None]) -> Entry:
        """The model with encoder layers as fused plugins, at a plan's only shapes; what stays float is noted.

        ONNX Runtime has no such operators: an engine shows how accurate it is, see `judge_engine`.
        """
        folder = self._folder / name
        folder.mkdir()
        if not all(shapes.is_fixed for shapes in plan.shapes.values()):
            raise UsageError(
                "--fused-plugins: the plugins are for one shape, no range", "omit it, or give fixed lengths"
            )
        shapes = {key: one.min for key, one in plan.shapes.items()}
        source = Path(self._base.path)
        out = folder / f"{source.stem}.{name}{source.suffix}"
        with scratch_beside(out) as scratch:
            file = _rewrite_to_quantize(source, self._request.target, shapes)
            layers, declined = find_layers(file, self._request.exclude)
            if declined:
                note(f"{name}: {len(layers)} layers as plugins, {len(declined)} not: {reasons_in(declined)}")
            table = self._ranges_of(tuple(tensor for layer in layers for tensor in layer.tensors))
            amax = {tensor: row.chosen for tensor, row in table.tensors.items()}
            made = write_plugins(replace(file, spool=scratch), layers, amax)
            model_file.save(made, out, (table_beside(out), table_text(table)))
        # its inputs leave the batch open to whoever reads the manifest, as those of the other candidates do
        known = {"inputs": self._base.inputs, "outputs": self._base.outputs, "parent": self._base.sha256}
        onnx = msgspec.structs.replace(read_onnx(out), **known)
        return self._entry(name, "int8", onnx, folder, None, tuple(declined))

    def _ranges_of(self, tensors: tuple[str, ...]) -> CalibrationTable:
        """The largest |x| of tensors, which are the same at every batch size."""
        model, data = self._checker.model, self._request.data
        graph = model.proto.graph
        made = {name for node in graph.node for name in node.output} | {one.name for one in graph.input}
        if lacking := [name for name in tensors if name not in made]:
            raise ModelError(f"{lacking[0]!r} has no range: rewriting renamed it", "omit --fused-plugins")
        if self._plugin_ranges is None or not self._plugin_ranges.tensors.keys() >= set(tensors):
            assert data is not None  # the request was refused without
            edges = tuple(Edge(name, "", 0) for name in tensors)
            job = replace(job_of(self._request), source=open_data(data), model_sha256=self._base.sha256)
            self._plugin_ranges = calibrate(model, Plan(edges, (), (), {}, ()), job, Scales({}), MAX)
        return self._plugin_ranges

    def judge_engine(self, entry: Entry, engine: LoadedEngine) -> Entry:
        """The entry with its engine's differences from the model; without the engine if it misses a bound."""
        data, left, batches = self._request.data, entry.candidate.left, -(-_COMPARED // engine.batch)
        found = self._checker.engine(engine, data, SILENT, batches=batches).outputs
        judged = self._entry(entry.name, "int8", entry.onnx, entry.folder, None, left, found)
        return judged if judged.broken else replace(judged, engines=entry.engines)

    def reduce(self, entry: Entry, left: Sequence[str], number: int) -> Entry:
        """A quantised candidate with some nodes left in float, on the ranges that are there already."""
        assert entry.request is not None
        excluded = (*entry.request.exclude, *map(glob.escape, left))
        request = replace(entry.request, exclude=excluded)
        return self._quantize(f"{entry.name}.part{number}", request, entry, tuple(left))

    def _quantize(
        self, name: str, request: QuantizeOptions, known: Entry | None = None, left: tuple[str, ...] = ()
    ) -> Entry:
        """By a request, on the ranges of a `known` one."""
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        ranges = None if known is None else table_beside(Path(known.onnx.path))
        if ranges is not None and ranges.is_file() and request.data is not None:
            request = replace(request, table=ranges)  # it lists what is smoothed
        onnx = apply_quantization(self._base, request, name, folder).onnx
        source = open_data(request.data) if request.data is not None else seeded_source(self._checker.model)
        made = model_file.load(Path(onnx.path))
        differences = self._checker.model_file(name, made, First(source, _COMPARED)).outputs
        return self._entry(name, request.precision, onnx, folder, request, left, differences)

    def _entry(
        self,
        name: str,
        precision: str,
        onnx: OnnxArtifact,
        folder: Path,
        request: QuantizeOptions | None,
        left: tuple[str, ...] = (),
        differences: tuple[OutputDifference, ...] = (),
    ) -> Entry:
        candidate = Candidate(
            name=name,
            precision=precision,
            onnx_sha256=onnx.sha256,
            differences=differences,
            violations=violations(differences, self._bounds) if differences else (),
            left=left,
        )
        return Entry(candidate, onnx, folder, request, {})


def _is_smoothed_as(one: Forms, other: Forms) -> bool:
    """Whether both have the same factors: a table lists them."""
    if one.smoothing == other.smoothing == "off":
        return True
    return one.smoothing == other.smoothing and (one.residual == "none") == (other.residual == "none")


def move_into(entry: Entry, labels: Sequence[str], folder: Path) -> tuple[OnnxArtifact, list[EngineArtifact]]:
    """Bring a candidate's graph, its traces and the engines of these labels into the build folder.

    If another candidate has left a trace there, the candidate's name goes into the file's name.
    """
    engines = [entry.engines[label].artifact for label in labels]
    kept = {name for one in engines for name in one.files}
    built = {name for one in entry.engines.values() for name in one.artifact.files}
    for file in sorted(entry.folder.iterdir()):
        if file.name in built - kept:
            continue
        place = folder / file.name
        if place.exists():
            place = folder / f"{file.stem}.{entry.name}{file.suffix}"
        file.rename(place)
    return in_folder(entry.onnx), engines
