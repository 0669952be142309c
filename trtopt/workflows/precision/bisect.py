"""From a model and an accuracy bound to the nodes that have to stay in higher precision."""

from __future__ import annotations

import glob
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import onnx

from trtopt.data import SampleSource, open_data
from trtopt.data.feeds import specs_of
from trtopt.data.source import needs_data
from trtopt.device.api import EngineBuilder
from trtopt.device.backends import BackendChoice, choose_for_running, open_builder
from trtopt.errors import BackendMissingError, BuildError, UsageError
from trtopt.files.atomic import scratch_folder
from trtopt.files.outputs import check_output
from trtopt.inspect.costs import node_flops
from trtopt.inspect.graph import read_graph
from trtopt.onnxio import model_file
from trtopt.onnxio.half_emulation import is_low
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import HOPELESS, Bounds, allowance_used
from trtopt.precision.calibrate import TABLE, QuantizationJob, table_beside
from trtopt.precision.casting.convert import cast_graph, check_worthwhile
from trtopt.precision.casting.decide import CastDecision, CastOptions
from trtopt.precision.existing_qdq import is_quantized
from trtopt.precision.observe import measure_peaks
from trtopt.precision.quantize import make_rest_half, peaks_for_rest, quantize_graph, write_pairs
from trtopt.precision.search import ALLOWED, FEWEST, Names, Trial, front, search
from trtopt.recipe import batch_sizes
from trtopt.records.precision import BisectReport, CalibrationTable, CheckedSubject, KeptSet, Sensitivity
from trtopt.requests.models import BisectRequest, QuantizeOptions
from trtopt.requests.recipe import make_recipe
from trtopt.targets import DEFAULT, ONNXRUNTIME, target_of
from trtopt.workflows.bench.resolve_engines import engines_at
from trtopt.workflows.build.build import build_recipe
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.precision.quantize import job_of, rewrite_in_fp32, save
from trtopt.workflows.provenance import command_line, now

JudgeModel = Callable[[ModelFile, Path], tuple[CheckedSubject, ...]]
"""How far a model lies from the reference; the folder is empty and for this one model."""
Variants: TypeAlias = "CastVariants | QuantizedVariants"


@dataclass
class Trials:
    """Evaluates at most so many sets of kept nodes; `subjects` is what was measured of each."""

    variants: Variants
    judge: JudgeModel
    bounds: Bounds
    scratch: Path
    most: int
    listener: Listener = SILENT
    subjects: dict[Names, tuple[CheckedSubject, ...]] = field(default_factory=dict)
    _unbuilt: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how it went."""
        if not self._unbuilt:
            return tuple(self._notes)
        count = f"{len(self._unbuilt)} of the sets could not be built and count as missing the bounds"
        return (*self._notes, f"{count}: {self._unbuilt[0]}")

    def error(self, kept: Names) -> float:
        """What the model with these nodes kept uses of the bounds; all, where no engine can be built."""
        count = len(self.subjects) + len(self._unbuilt) + 1
        text = f"evaluation {count} of at most {self.most}: {len(kept)} nodes kept"
        self.listener.progress(0, text, count / self.most)
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:  # its weights live as long as it does
            made = self.variants.variant(kept, Path(folder))
            try:
                self.subjects[kept] = self.judge(made.model, Path(folder))
            except BuildError as error:
                if len(self.subjects) < FEWEST:
                    raise
                self._unbuilt.append(error.problem)
                return HOPELESS
        return self.used(self.subjects[kept])

    def used(self, subjects: Sequence[CheckedSubject]) -> float:
        """How much of what the bounds allow the worst of them uses."""
        return max(allowance_used(item.outputs, self.bounds) for item in subjects)

    def final(self, kept: Names, spool: Path) -> tuple[Variant, tuple[CheckedSubject, ...]]:
        """The resulting model with these nodes kept, and its measurements."""
        made = self.variants.tidied(kept, spool)
        if made is not None:
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                subjects = self.judge(made.model, Path(folder))
            if self.used(subjects) <= ALLOWED:
                return made, subjects
            self._notes.append(
                "nodes alone between kept ones are cast, unlike trtopt cast: in FP32 the bounds are missed"
            )
        return self.variants.variant(kept, spool), self.subjects[kept]


def bisect(request: BisectRequest) -> BisectReport:
    """Find the fewest nodes to keep in higher precision so that the bounds are met.

    Returns:
        The verdict, the nodes to keep with their patterns, the front of sets, and every node's sensitivity.

    Example:
        >>> report = trtopt.bisect(
        ...     "model.onnx", precision="fp16", data="data.npz", min_cosine=0.9,
        ...     backend="onnxruntime",
        ... )
        >>> report.verdict
        'nothing to keep'
    """
    began = time.perf_counter()
    source, target = Path(request.model), Path(request.output) if request.output is not None else None
    _check(source, target, request)
    checker = Checker(read_onnx(source), None, request.bounds)
    evaluator = evaluator_for(checker, request)
    listener = request.listener
    listener.note(f"evaluating with {evaluator.backend}: {evaluator.reason}")
    with scratch_folder() as scratch:
        variants, file = _variants(source, checker, request, evaluator.target, scratch)
        shares, notes = _shares(file, variants.nodes, _data_of(request))
        most = request.max_evaluations
        trials = Trials(variants, evaluator.judge, request.bounds, scratch, most, listener)
        listener.plans(["bisect"])
        found = search(shares, trials.error, most)
        best = found.best or next(trial for trial in found.trials if len(trial.kept) == len(shares))
        subjects, table = trials.subjects[best.kept], None
        if found.best is not None:
            made, subjects = trials.final(best.kept, scratch)
            best = replace(best, error=trials.used(subjects))
            table = save(made.model, made.table, target) if target is not None else None

    def in_order(names: Names) -> tuple[str, ...]:
        """Names in the order of the graph."""
        return tuple(name for name in variants.nodes if name in names)

    def kept_set(trial: Trial) -> KeptSet:
        return KeptSet(error=trial.error, cost=min(1.0, trial.cost), nodes=in_order(trial.kept))

    return BisectReport(
        created=now(),
        argv=command_line(),
        model=str(source),
        model_sha256=checker.artifact.sha256,
        out=str(target) if target is not None and found.best is not None else None,
        table_file=str(table) if table is not None else None,
        precision=request.precision,
        target=evaluator.target,
        backend=evaluator.backend,
        data=_data_of(request),
        bounds=request.bounds.given,
        candidates=variants.nodes,
        verdict="not met" if found.best is None else "found" if best.kept else "nothing to keep",
        best=kept_set(best),
        patterns=tuple(map(pattern_for, in_order(best.kept))),
        minimal=found.minimal,
        subjects=subjects,
        sensitivities=tuple(Sensitivity(nodes=in_order(group), error=error) for group, error in found.alone),
        front=tuple(map(kept_set, front(found.trials))),
        evaluations=len(found.trials),
        most_evaluations=request.max_evaluations,
        notes=(*variants.notes, *notes, *trials.notes),
        seconds=round(time.perf_counter() - began, 3),
    )


def _data_of(request: BisectRequest) -> str:
    """What accuracy is evaluated on."""
    return str(request.data or request.calib)


def _check(source: Path, target: Path | None, request: BisectRequest) -> None:
    """The request's own contradictions, before any work."""
    if not request.bounds.any:
        raise UsageError(
            "no accuracy bound is given",
            "give --min-sqnr, --min-cosine, --max-error or --min-top1, as trtopt check",
        )
    if request.data is None and request.calib is None:
        raise needs_data("bisect", "to measure accuracy")
    if request.precision in ("fp16", "bf16"):
        for flag, value in (("--table", request.table), ("--method", request.method)):
            if value is not None:
                raise UsageError(f"{flag} is for int8 and fp8: casts need no scales", "omit it")
    if target is not None:
        model_file.check_changed_to(target, source)
        if request.precision in ("int8", "fp8"):
            check_output(table_beside(target), TABLE)


def _variants(
    source: Path, checker: Checker, request: BisectRequest, target: str, scratch: Path
) -> tuple[Variants, ModelFile]:
    """The models to try, and the one that they are made of, whose nodes are those that can be kept."""
    samples = open_data(str(request.calib or request.data))
    if request.precision == "fp16" or request.precision == "bf16":  # spelled out for the type checker
        if is_low(checker.model.proto):
            raise UsageError(
                f"{source} already has 16-bit types, so it has no error against itself",
                "give the FP32 model that it was made from",
            )
        keep, include = tuple(request.exclude), tuple(request.include)
        cast_options = CastOptions(request.precision, target, keep=keep, include=include)
        cast_options.check(checker.model.proto)
        request.listener.note("measuring values")
        return CastVariants(checker.model, samples, cast_options, scratch), checker.model
    own = {"target": target, "data": request.calib}
    job = job_of(QuantizeOptions(**request.values_for(QuantizeOptions) | own))
    if is_quantized(checker.model.proto):
        raise UsageError(
            f"{source} already contains Q/DQ, so it has no error against itself",
            "give the float model; trtopt check --layers compares the two",
        )
    request.listener.note("rewriting the graph")
    file, _ = rewrite_in_fp32(source, scratch, target)
    request.listener.note("placing Q/DQ and calibrating")
    job = replace(job, source=samples, model_sha256=checker.artifact.sha256)
    return QuantizedVariants(file, samples, job, target), file


def _shares(file: ModelFile, nodes: Sequence[str], data: str) -> tuple[dict[str, float], list[str]]:
    """Each node's share of the candidates' floating-point operations, at the data's shapes; and a remark."""
    first = next(open_data(data).batches(specs_of(file.proto), 1))
    graph = read_graph(file.proto, {name: array.shape for name, array in first.items()})
    counts = {
        name: node_flops(graph, graph.by_name[name]) if name in graph.by_name else None for name in nodes
    }
    total = sum(count or 0 for count in counts.values())
    if not total:
        return dict.fromkeys(nodes, 1 / max(len(nodes), 1)), [
            "no operations are known: all nodes cost the same"
        ]
    unknown = [name for name, count in counts.items() if count is None]
    reported = [f"the operations of {len(unknown)} nodes are not known: they cost nothing"] if unknown else []
    return {name: (count or 0) / total for name, count in counts.items()}, reported


# What judges the models of a bisection: ONNX Runtime as they are, or TensorRT by engines built of them.


@dataclass(frozen=True)
class Evaluator:
    """What judges models, for which target they are written, and why it was chosen."""

    backend: str
    target: str
    reason: str
    judge: JudgeModel


def evaluator_for(checker: Checker, request: BisectRequest) -> Evaluator:
    """Engines where a GPU and TensorRT are here, or where the request asks for them; else ONNX Runtime.

    ONNX Runtime emulates 16-bit arithmetic.
    """
    choice = choose_for_running(request.backend)
    if choice.name != ONNXRUNTIME:
        try:
            builder = open_builder(choice.name)
        except BackendMissingError as error:
            if request.backend != "auto":
                raise
            choice = BackendChoice(ONNXRUNTIME, error.problem)
        else:
            own = target_of(builder.backend).name
            if request.target not in (None, own):
                raise UsageError(
                    f"--target {request.target}: the engines are built by {builder.backend}, "
                    f"whose target is {own}",
                    "omit --target, or evaluate without engines: --backend onnxruntime",
                )
            if make_recipe(request.profile, {}).precision is not None:
                raise UsageError(
                    f"--recipe {request.profile} names a precision", "take it out: --precision says which"
                )
            judge = partial(judge_engines, checker, builder, request)
            return Evaluator(str(builder.backend), own, choice.reason, judge)
    if request.batch is not None or request.profile is not None or request.timeout is not None:
        raise UsageError(
            f"--batch, --recipe and --timeout are for engines, and none are built: {choice.reason}",
            "omit them",
        )
    data = _data_of(request)
    return Evaluator(
        ONNXRUNTIME,
        request.target or DEFAULT,
        choice.reason,
        lambda model, _: (checker.model_file("emulated", model, open_data(data)),),
    )


def judge_engines(
    checker: Checker, builder: EngineBuilder, request: BisectRequest, model: ModelFile, folder: Path
) -> tuple[CheckedSubject, ...]:
    """By running the engines that are built of a model unchanged; all builds share one timing cache."""
    source, built = folder / "variant.onnx", folder / "engines"
    model_file.save(model, source)
    recipe = make_recipe(
        request.profile,
        {
            "batch": batch_sizes(request.batch) or None,
            "backend": builder.backend.name,
            "rewrite": "none",
            "timing_cache": str(folder.parent / "timing.cache") if builder.uses_timing_cache else None,
        },
    )
    manifest = build_recipe(source, built, recipe)
    engines = engines_at(built, manifest.onnx.inputs, manifest.engines)
    return tuple(checker.engines(engines, _data_of(request), SILENT, request.timeout))


# The models that a bisection tries: a precision written into a graph, but for the nodes that are kept.
#
# Values are measured, and ranges calibrated, once; each variant is decided and written from them.


@dataclass(frozen=True)
class Variant:
    """A model with some nodes kept in higher precision, and the calibration table of the others."""

    model: ModelFile
    table: CalibrationTable | None = None


def pattern_for(node: str) -> str:
    """The pattern that fits this node alone, even if it bears the name of an operator."""
    return f"[{node[0]}]{node[1:]}" if onnx.defs.has(node) else glob.escape(node)


class CastVariants:
    """FP16 or BF16 but for what the options and the search keep in FP32.

    `nodes` are those that are low where nothing is kept, in the order of the graph.
    """

    notes: tuple[str, ...] = ()

    def __init__(
        self, model: ModelFile, samples: SampleSource, cast_options: CastOptions, spool: Path
    ) -> None:
        """Run `samples` through the prepared model once."""
        self._model, self._cast_options = model, cast_options
        self._ranges, _ = measure_peaks(model, samples)
        decision = self._cast(cast_options, spool)[1]
        check_worthwhile(model, decision, cast_options.precision)
        self.nodes = tuple(decision.places)

    def variant(self, kept: frozenset[str], spool: Path) -> Variant:
        """The model with the nodes in `kept` in FP32 and all other candidates in 16 bits.

        Isolated nodes between FP32 ones are cast too, to measure their error. Large new weights go to files
        in `spool`.
        """
        only = frozenset(self.nodes) - kept
        return Variant(self._cast(replace(self._cast_options, only=only), spool)[0])

    def tidied(self, kept: frozenset[str], spool: Path) -> Variant | None:
        """The model as users get it who keep these nodes, if that is another: isolated nodes stay FP32."""
        keep = (*self._cast_options.keep, *map(pattern_for, sorted(kept)))
        made, decision = self._cast(replace(self._cast_options, keep=keep), spool)
        return None if len(decision.places) + len(kept) == len(self.nodes) else Variant(made)

    def _cast(self, cast_options: CastOptions, spool: Path) -> tuple[ModelFile, CastDecision]:
        return cast_graph(replace(self._model, spool=spool), self._ranges, cast_options)


class QuantizedVariants:
    """INT8 or FP8 but for what the options and the search keep in the target's float type; as above."""

    def __init__(self, model: ModelFile, samples: SampleSource, job: QuantizationJob, target: str) -> None:
        """Place and calibrate once; `samples` show which nodes stay FP32 among FP16."""
        self._model, self._target = model, target
        made = quantize_graph(model, job)
        self.notes = tuple(made.notes)
        self._job = replace(job, method=None, table=made.table)
        plan = made.plan
        low = {edge.node for edge in plan.edges} | {weight.node for weight in plan.weights}
        low |= {item.node for item in plan.quantized}
        self.nodes = tuple(node.name for node in model.proto.graph.node if node.name in low)
        self._ranges: dict[str, float] = {}
        if job.qdq.strongly_typed:  # pairs bound what they let through; without them tensors may be larger
            quantized, plain = (peaks_for_rest(item, samples) for item in (made.model, model))
            self._ranges = quantized | {
                name: max(peak, quantized.get(name, 0.0)) for name, peak in plain.items()
            }

    def variant(self, kept: frozenset[str], spool: Path) -> Variant:
        """As above. Tensors that carry Q/DQ only now are calibrated now, by the same method."""
        job = replace(self._job, exclude=(*self._job.exclude, *map(pattern_for, sorted(kept))))
        made = write_pairs(replace(self._model, spool=spool), job)
        if self._job.table is not None and made.table is not None:  # what is calibrated now stays known
            rows = self._job.table.tensors | made.table.tensors
            self._job = replace(self._job, table=msgspec.structs.replace(self._job.table, tensors=rows))
        if self._job.qdq.strongly_typed:
            make_rest_half(made, self._target, self._ranges, is_real=True)
        return Variant(made.model, made.table)

    def tidied(self, kept: frozenset[str], spool: Path) -> Variant | None:
        """There is no other."""
        return None
