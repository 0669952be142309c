"""From two engines of one model, or their profiles, to why one is slower or faster than the other.

Remedies of the causes that make B slower can be tried: each is built, and takes turns with B and A.
"""

from __future__ import annotations

import dataclasses
import glob
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from trtopt.device.backends import open_builder
from trtopt.errors import ArtifactError, TrtoptError, UsageError
from trtopt.files.atomic import scratch_folder
from trtopt.files.bounded_reading import reading_as
from trtopt.files.manifests import MANIFEST, read_manifest, read_verified
from trtopt.inspect.explanation import differences
from trtopt.measure.contracts import contract_for
from trtopt.measure.engine import LoadedEngine
from trtopt.measure.loop.interleaved import valid_rounds
from trtopt.onnxio import model_file
from trtopt.precision.placement.forms import parse_forms
from trtopt.recipe import Recipe, batch_sizes
from trtopt.records import (
    Cause,
    EngineDifference,
    Explanation,
    OnnxArtifact,
    ProfileReport,
    QuantizeReport,
    Trial,
    read_versioned,
)
from trtopt.requests.measure import ExplainRequest, ProfileRequest
from trtopt.requests.models import QuantizeOptions
from trtopt.requests.shared import parse_budget
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.bench.resolve_engines import check_trust, find_engines, resolve_engines, runs_on
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.build.graph import QUANTIZED_FILE, apply_quantization, rewrite_into
from trtopt.workflows.compare.result_files import is_result_file
from trtopt.workflows.profile.profile import PROFILE_FILE, profile, read_profile
from trtopt.workflows.provenance import check_engines, command_line, now
from trtopt.workflows.race import (
    Setting,
    compare_turns,
    fitting_data,
    heat,
    race,
    short_turns,
    verdict_record,
)
from trtopt.workflows.workbench import Workbench

_ALL = "all"


def explain(request: ExplainRequest) -> Explanation:
    """Find why B's engines are slower or faster than A's: causes that add up to the change of the latency.

    Returns:
        For each batch size of both the causes, with the ONNX nodes and what may save B their cost, and the
        kernels or layers that were replaced.

    Example:
        >>> found = trtopt.explain("engines", "engines", batch=8, duration=0.1)
        >>> one = found.engines[0]
        >>> abs(sum(cause.cost_ms for cause in one.causes) - (one.b_ms - one.a_ms)) < 1e-6
        True
    """
    paths = [Path(one) for one in (request.a, request.b)]
    loaded = [path for path in paths if not _is_profiled(path) or (request.remedies and _has_engines(path))]
    check_trust(request.trust, loaded)
    if not request.remedies and request.budget != ExplainRequest.budget:
        raise UsageError("--budget: has no effect where nothing is tried", "add --try, or omit it")
    end = time.monotonic() + parse_budget(str(request.budget))
    if request.remedies and not _has_engines(paths[1]):
        raise UsageError(
            f"--try: {paths[1]} is no build folder and no engine in one, on which remedies could be built",
            "give the build folder of B; a profile.json in it is used",
        )
    if all(map(_is_profiled, paths)) and not request.remedies:
        where = "on saved profiles, which are not measured again"
        request.refuse_all_but({"a", "b", "batch"}, where)
    saved = {path: _read(path) for path in paths if _is_profiled(path)}
    a, b = (saved.get(path) or _measure(path, request) for path in paths)
    if not _nodes_of(a) & _nodes_of(b):
        problem = "is of another model" if _nodes_of(a) and _nodes_of(b) else "one of them has no layers"
        raise ArtifactError(
            f"{paths[1]}: shares no ONNX node with A: {problem}", "compare profiled engines of one model"
        )
    sizes = batch_sizes(request.batch)
    chosen = ([one for one in side.engines if sizes is None or one.batch in sizes] for side in (a, b))
    found = differences(*chosen)
    if not found:
        measured = (sorted({one.batch for one in side.engines if one.sum_ms}) for side in (a, b))
        in_a, in_b = (", ".join(map(str, side)) or "none" for side in measured)
        raise ArtifactError(
            f"no batch size was timed in both: A has batch {in_a}, B batch {in_b}",
            "profile both at one batch size: trtopt profile PATH --batch N -o FOLDER",
        )
    _check_chosen(request.remedies, found)
    if request.remedies:
        found = tuple(_try_remedies(one, request, end) for one in found)
    return Explanation(
        created=now(),
        argv=command_line(),
        a=str(request.a),
        b=str(request.b),
        device=b.environment.device.name,
        engines=found,
        notes=(*_notes(a, b, paths), *dict.fromkeys((*a.notes, *b.notes))),
    )


def _is_profiled(path: Path) -> bool:
    return is_result_file(path) or (path / PROFILE_FILE).is_file()


def _read(path: Path) -> ProfileReport:
    """A saved profile; one in a build folder must be of its engines."""
    report = read_profile(path)
    if (path / MANIFEST).is_file():
        remedy = f"remove {path / PROFILE_FILE}, or write it again: trtopt profile {path} -o {path}"
        check_engines(report, read_manifest(path), path / PROFILE_FILE, path, remedy)
    return report


def _measure(path: Path, request: ExplainRequest) -> ProfileReport:
    trust = tuple(_trusted(request.trust, path))
    on_gpu = runs_on(path, request.backend, trust) != ONNXRUNTIME
    own = {"kernels": request.kernels and on_gpu, "trust": trust}
    return profile(ProfileRequest(path, **request.values_for(ProfileRequest) | own))


def _trusted(names: Sequence[str], path: Path) -> Iterator[str]:
    """Those that are of this path's engines and plugins; the others are the other one's."""
    for name in names:
        with suppress(UsageError):
            check_trust([name], [path])
            yield name


def _nodes_of(report: ProfileReport) -> set[str]:
    return {name for engine in report.engines for layer in engine.layers for name in layer.onnx_nodes}


def _notes(a: ProfileReport, b: ProfileReport, paths: Sequence[Path]) -> Iterator[str]:
    """What speaks against the sums."""
    own, others = map(_nodes_of, (a, b))
    built = (path for path in paths if (path / MANIFEST).is_file())
    sources = {read_manifest(path).source_sha256 for path in built}
    if len(sources) > 1 or 2 * len(own & others) < min(len(own), len(others)):
        files = "are built from two ONNX files and " * (len(sources) > 1)
        shared = f"{len(own & others)} ONNX nodes of {len(own)} and {len(others)}"
        yield f"A and B {files}share {shared}: they may be of two models"
    first, second = (one.environment.device for one in (a, b))
    if first.name != second.name:
        yield f"profiled on unlike devices: A on {first.name}, B on {second.name}"
    for name, side in (("A", a), ("B", b)):
        if any(engine.kernels and engine.kernels.dropped for engine in side.engines):
            yield f"the tracer missed kernels of {name}, which sums lack: profile a smaller batch, or again"
    on_gpu = first.kind == second.kind == "gpu"
    if on_gpu and not all(engine.kernels for one in (a, b) for engine in one.engines):
        yield "by layers alone, as not both have kernels: trtopt profile --kernels records what runs inside"


# ── remedies, tried ─────────────────────────────────────────────────────────────────────────────────────


def _try_remedies(found: EngineDifference, request: ExplainRequest, end: float) -> EngineDifference:
    """The difference with what became of the chosen causes' remedies, the costliest first.

    None is begun after `end`, on the monotonic clock. A takes part in the turns if its engine is there.
    """
    trials, sides, notes = list[Trial](), dict[str, LoadedEngine](), list[str]()
    at_size = dataclasses.replace(request, batch=found.batch)
    with scratch_folder() as scratch, ExitStack() as opened:
        for name, path in (("B", Path(request.b)), ("A", Path(request.a))):
            if _has_engines(path):
                wanted = resolve_engines(path, at_size, notes)
                (sides[name],) = opened.enter_context(wanted).engines
        subject, built = _Subject(sides["B"], request, scratch), dict[str, LoadedEngine]()
        by_option: dict[tuple[str, tuple[str, ...]], list[Cause]] = {}
        for cause in found.causes:
            is_named = any(word in cause.cause for word in request.remedies)
            if cause.cost_ms > 0 and (is_named or (_ALL in request.remedies and cause.remedy)):
                by_option.setdefault(subject.option_of(cause), []).append(cause)  # causes may share one
        for (name, values), causes in by_option.items():
            more = f" and {len(values) - 1} more" if len(values) > 1 else ""
            trial = Trial(
                option=f"--{name.replace('_', '-')} {values[0]}{more}" if name else "",
                causes=tuple(cause.cause for cause in causes),
                predicted_ms=sum(cause.cost_ms for cause in causes),
            )
            try:
                if time.monotonic() > end:
                    raise UsageError(f"--budget {request.budget} was spent before", "give more")
                request.listener.note(f"trying {trial.option or trial.causes[0]}")
                built[trial.option] = subject.build(name, values, causes[0], scratch / str(len(trials)))
            except TrtoptError as error:
                trial = replace(trial, reason=error.problem)
            trials.append(trial)
        if built:
            trials = _race(found.batch, {**sides, **built}, trials, request)
        return replace(found, trials=tuple(trials))


def _check_chosen(words: Sequence[str], found: Sequence[EngineDifference]) -> None:
    """Every word names a cause that costs B time."""
    costly = {cause.cause for one in found for cause in one.causes if cause.cost_ms > 0}
    for word in words:
        if word != _ALL and not any(word and word in name for name in costly):
            raise UsageError(
                f"--try {word}: no cause of that name costs B time",
                f"choose a part of one of: {'; '.join(sorted(costly)) or 'none does'}",
            )


def _has_engines(path: Path) -> bool:
    """Whether it is a build folder or an engine in one."""
    folder = path if path.is_dir() else path.parent
    return (folder / MANIFEST).is_file() and bool(find_engines(path)[2])


class _Subject:
    """B's engine, its graph, and the report on how trtopt made INT8 of that, if it did."""

    def __init__(self, engine: LoadedEngine, request: ExplainRequest, scratch: Path) -> None:
        self._engine, self._request, self._scratch = engine, request, scratch
        folder, manifest, _ = find_engines(Path(request.b))
        assert manifest is not None
        own = (*manifest.graphs, *manifest.intermediates)
        graphs = verified_graphs(folder, replace(manifest, graphs=own))
        self._graph = next(one for one in graphs if one.sha256 == engine.artifact.plan.onnx_sha256)
        self._report = None
        for file in (one for one in manifest.files if one.startswith(Path(QUANTIZED_FILE).stem)):
            with reading_as("a report on quantisation", folder / file, "build again"):
                report = read_versioned(read_verified(folder / file, manifest.files[file]), QuantizeReport)
            floats = [one for one in graphs if Path(one.path).name == report.source]
            if floats and (report.out, report.precision) == (Path(self._graph.path).name, "int8"):
                self._report, self._floats = report, floats[0]

    def option_of(self, cause: Cause) -> tuple[str, tuple[str, ...]]:
        """The first option that B's graph can be made with; without a name where there is none."""
        fields = ("add_rule",) if self._report is None else ("forms", "exclude")
        name = next((one for one in fields if one in cause.options), "")
        return name, cause.options.get(name, (cause.cause,))

    def build(self, name: str, values: tuple[str, ...], cause: Cause, folder: Path) -> LoadedEngine:
        """B with that option more, on B's plan."""
        if not name:
            why = "its remedy is for another graph than B's" if cause.options else "no option of a build does"
            raise UsageError(why if cause.remedy else "no remedy is known", "try another cause")
        folder.mkdir()
        graph, old = self._changed(name, values, folder), self._engine
        ours, theirs = (model_file.load(Path(one.path)).proto.graph.node for one in (self._graph, graph))
        if list(ours) == list(theirs):  # scales differ on other data
            raise UsageError("it changes nothing in B's graph", "try another cause")
        builder = open_builder(old.artifact.plan.backend.name)
        bench = Workbench(builder=builder, listener=self._request.listener, limit_s=self._request.timeout)
        plan = replace(old.artifact.plan, onnx_sha256=graph.sha256)
        (engine,) = bench.with_caches(Recipe(), self._scratch, None).build((graph,), (plan,), folder)
        return replace(old, path=str(folder / engine.path), artifact=engine)

    def _changed(self, name: str, values: tuple[str, ...], folder: Path) -> OnnxArtifact:
        """B's graph rewritten, or its float one quantised again; without data on random ranges."""
        report, data = self._report, self._request.data
        if report is None:
            recipe = Recipe(rewrite="none", add_rule=values)
            backend = self._engine.artifact.plan.backend
            return rewrite_into(folder, self._graph, recipe, backend, self._request.listener).onnx
        forms = str(parse_forms(",".join((report.forms, *(values if name == "forms" else ())))))
        if name == "forms" and forms == report.forms:
            return self._graph
        options = QuantizeOptions(
            precision="int8",
            target=report.target,
            data=data,
            random_data=data is None,
            forms=forms,
            exclude=(*report.exclude, *(map(glob.escape, values) if name == "exclude" else ())),
        )
        return apply_quantization(self._floats, options, None, folder).onnx


def _race(
    size: int,
    engines: Mapping[str, LoadedEngine],
    trials: Sequence[Trial],
    request: ExplainRequest,
) -> list[Trial]:
    """With what was measured in turns in one process, of B first."""
    first, names = engines["B"], [*engines]
    data = fitting_data(request.data, first.artifact.inputs, [first.shapes], request.listener.note)
    setting = Setting(contract_for(None), request.duration, data, timeout=request.timeout)
    label, rounds = f"batch{size}: {', '.join(names)}", short_turns(request.duration)
    turns = heat(label, [*engines.values()], names, "tuning", setting, rounds)
    try:
        (run,) = race([turns], request.listener, request.timeout)
        failure = run.failure
    except TrtoptError as error:  # the causes are known all the same
        failure = error.problem
    if failure is not None:
        return [replace(one, reason=one.reason or failure) for one in trials]
    kept = valid_rounds(run)
    ms = kept.ms
    measured = []
    for one in trials:
        if one.option in engines:
            verdict = verdict_record(size, compare_turns(kept, names.index(one.option)))
            one = replace(one, ms=ms[one.option], a_ms=ms.get("A"), b_ms=ms["B"], against_b=verdict)
        measured.append(one)
    return measured
