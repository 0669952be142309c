"""`trtopt compare`: what A and B are decides how they are compared; the gap ledger of two contracts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from trtopt.data import open_data
from trtopt.errors import ArtifactError, UsageError
from trtopt.files.manifests import MANIFEST
from trtopt.measure.analysis.findings import doubts_of, is_on_host
from trtopt.measure.analysis.gap_ledger import Ends, ends_of, evaluate_gap, gap_variants, has_bare_loop
from trtopt.measure.analysis.outcomes import Comparisons, Gaps, Outcome
from trtopt.measure.analysis.result_comparison import distrust, machine_notes, paired_points, work_notes
from trtopt.measure.contracts import DEFAULT, DURATION_S, changed, contract_named
from trtopt.measure.loop.interleaved import LoadedEngine
from trtopt.measure.loop.rounds import notes_of, valid_rounds
from trtopt.options import declared_in
from trtopt.recipe import LOCAL, Recipe, batch_sizes, measured_on
from trtopt.records import BenchPoint, BenchReport, CompareReport, Contract, EngineArtifact, InterleavedRun
from trtopt.records.base import Result
from trtopt.requests.measure import CompareRequest
from trtopt.requests.recipe import input_sizes
from trtopt.workflows.bench.resolve_engines import check_trust, points, resolve_engines
from trtopt.workflows.compare.engines import compare_engines, compare_recipes
from trtopt.workflows.compare.result_files import compare_files, is_result_file, read_result
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.race import Setting, engine_at, heat, race, verdict_record

_SIZES = ("shapes", "axes")
"""Fields of the recipe that engines have a use for too, which are measured at the given lengths."""
_MEASURED = {"batch", "backend", "duration", "data", "timeout"}
_JUDGED = _MEASURED | {"threshold", "fail_on"}
_FLAGS = {
    "recipe": "the build options",
    "sizes": "--shape and --axis",
    "terms": "flags that change the terms",
}


class Kind(Enum):
    """What is compared, and the options that have a use for it."""

    FILES = ("result files", {"force", "batch", "assume_contract", "threshold", "fail_on"})
    ENGINES = ("engines", _JUDGED | {"contract", "terms", "control", "trust", "force", "sizes"})
    BUILDS = ("recipes", _JUDGED | {"contract", "terms", "builds", "recipe", "force", "sizes", "executor"})
    CONTRACTS = ("contracts", _MEASURED | {"across_contracts", "trust"})
    FILES_CONTRACTS = (
        "the contracts of result files",
        _MEASURED | {"force", "across_contracts", "trust"},
    )


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """A comparison: the outcome to show, and the record that `--json` writes."""

    outcome: Outcome
    report: CompareReport

    def record(self) -> CompareReport:
        """What `--json` writes."""
        return self.report

    @property
    def failure(self) -> str | None:
        """What broke a run in turns off in the middle; the outcome rests on what had finished by then."""
        broken = (run for run in self.report.runs if run.failure is not None)
        return next((f"batch {run.batch}: {run.failure}" for run in broken), None)


def compare(request: CompareRequest, listener: Listener = SILENT) -> Compared:
    """Judge B against the baseline A; see `trtopt.compare`."""
    first, second = Path(request.a), Path(request.b) if request.b is not None else None
    kind = _kind_of(first, second, request)
    setting = _setting(kind, request, listener)
    if request.fail_on is not None and second is None:
        raise UsageError("--fail-on: there is no B that could fail", "give B, or omit --fail-on")
    assumed = contract_named(request.assume_contract).name if request.assume_contract is not None else None
    runs: tuple[InterleavedRun, ...] = ()
    built: tuple[EngineArtifact, ...] = ()
    outcome: Outcome
    if kind is Kind.BUILDS:
        outcome, runs, built = compare_recipes(request, setting, listener)
    elif kind is Kind.ENGINES:
        outcome, runs = compare_engines(request, setting, listener)
    elif kind is Kind.CONTRACTS:
        ends = parse_contracts(request.across_contracts or "")
        outcome, runs = explain_engines(first, ends, setting, listener)
    else:
        assert second is not None
        if kind is Kind.FILES_CONTRACTS:
            reports = read_result(first), read_result(second)
            outcome, runs = explain_results(*reports, setting, force=request.force, listener=listener)
        else:
            outcome = compare_files(
                first,
                second,
                batch=setting.batch,
                assumed=assumed,
                threshold=request.threshold,
                limit=request.fail_on,
                force=request.force,
            )
    return Compared(outcome, _report(outcome, request.threshold, runs, built))


def _kind_of(a: Path, b: Path | None, request: CompareRequest) -> Kind:
    """What the two are, and what is asked of them."""
    files = [is_result_file(path) for path in (a, b) if path is not None]
    if request.across_contracts is not None and b is not None:
        if not all(files):
            raise UsageError(
                "--across-contracts with A and B explains what two result files differ by",
                "give two result files, or one build folder and --across-contracts trtexec-10,trtexec-11",
            )
        if request.across_contracts:
            raise UsageError(
                f"--across-contracts {request.across_contracts}: result files name their own contracts",
                "give --across-contracts no value between result files: write it last",
            )
        return Kind.FILES_CONTRACTS
    if files == [True] and request.across_contracts is not None:
        raise UsageError(
            f"{a}: a result file holds no engine to measure under other contracts",
            "give the build folder or the engine, or a second result file",
        )
    if any(files) and request.builds is not None:
        raise UsageError(
            "--builds: a result file cannot be built", "give ONNX files or build folders, or omit it"
        )
    if request.across_contracts is not None:
        return Kind.CONTRACTS
    if any(files) and not all(files):
        raise UsageError(
            "a result file and an engine cannot be compared: one was measured elsewhere or earlier",
            "give two result files, or two build folders or engines to measure them in turns",
        )
    if request.builds is not None:
        return Kind.BUILDS
    if files == [True]:
        raise UsageError(
            f"{a}: nothing to compare it with",
            "give a second result file; or the build folder with --control K to measure it against itself",
        )
    if b is None and request.control is None:
        raise UsageError(
            f"{a}: nothing to compare it with",
            "give B as well; or --control K to measure A against itself, --builds K to compare K builds of a "
            "model, --across-contracts C1,C2 to compare contracts",
        )
    if all(files):
        return Kind.FILES
    if b is not None and (models := [path for path in (a, b) if _is_model(path)]):
        raise UsageError(
            f"{models[0]}: is a model, and no two builds of a model are equally fast",
            "add --builds 4, which builds each model four times; or give two build folders",
        )
    return Kind.ENGINES


def _is_model(path: Path) -> bool:
    """Whether a path is an ONNX file and no engine of ONNX Runtime's, which looks like one."""
    return path.suffix == ".onnx" and not (path.parent / MANIFEST).is_file()


def _setting(kind: Kind, request: CompareRequest, listener: Listener) -> Setting:
    """How to measure."""
    (what, useful), recipe = kind.value, request.recipe or Recipe()
    requested = {
        one.name
        for one in declared_in(CompareRequest)
        if one.name not in ("a", "b", "recipe", "listener")
        and getattr(request, one.name) not in (one.default, (), [], {})
    }
    given = set(recipe.given)
    requested |= ({"sizes"} if given.intersection(_SIZES) else set()) | (
        {"recipe"} if given.difference(_SIZES) else set()
    )
    requested |= {"executor"} if recipe.executor != LOCAL else set()
    for name in sorted(requested - useful):
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(f"{flag}: has no effect on a comparison of {what}", f"omit {flag}")
    if request.data is not None:
        open_data(request.data)  # judged before anything is built
    return Setting(
        batch=batch_sizes(request.batch),
        backend=request.backend,
        contract=changed(contract_named(request.contract or DEFAULT), request.terms or {}),
        duration=DURATION_S if request.duration is None else request.duration,
        data=measured_on(recipe, request.data, listener.note),
        timeout=request.timeout,
        trust=tuple(request.trust),
        force=request.force,
        sizes=input_sizes(recipe.shapes, recipe.axes),
    )


def _report(
    outcome: Outcome, threshold: float, runs: tuple[InterleavedRun, ...], built: tuple[EngineArtifact, ...]
) -> CompareReport:
    rows = outcome.rows if isinstance(outcome, Comparisons) else ()
    return CompareReport(
        created=now(),
        argv=command_line(),
        threshold=threshold,
        limit=outcome.limit if isinstance(outcome, Comparisons) else None,
        runs=runs,
        built=built,
        verdicts=tuple(verdict_record(row.batch, row.comparison) for row in rows),
        notes=outcome.notes,
    )


# ── where the difference between two contracts comes from: the gap ledger of an engine ──────────────────────


@dataclass(frozen=True)
class _Subject:
    """An engine at one batch size, and what result files say of both ends if there are any."""

    batch: int
    engine: LoadedEngine
    latency_ends: Ends | None = None
    per_query_ends: Ends | None = None


def parse_contracts(text: str) -> tuple[Contract, Contract]:
    """`trtexec-10,trtexec-11` as two contracts."""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(
            f"--across-contracts {text!r}: not two contracts",
            "write, say, --across-contracts trtexec-10,trtexec-11 (between result files, give it no value)",
        )
    return contract_named(names[0]), contract_named(names[1])


def explain_engines(
    path: Path, ends: tuple[Contract, Contract], setting: Setting, listener: Listener
) -> tuple[Gaps, tuple[InterleavedRun, ...]]:
    """The ledger between two contracts for every engine of a folder, or one engine, at every batch size."""
    notes: list[str] = []
    check_trust(setting.trust, [path])
    with resolve_engines(path, setting.batch, setting.backend, notes, listener, setting.trust) as found:
        subjects = [
            _Subject(size, engine_at(found.folder, found.inputs, engine, size))
            for engine, size in points(found.engines, setting.batch)
        ]
        return _explain(path.name, subjects, ends, setting, notes, listener)


def explain_results(
    a: BenchReport, b: BenchReport, setting: Setting, *, force: bool, listener: Listener
) -> tuple[Gaps, tuple[InterleavedRun, ...]]:
    """The ledger between two result files of one engine under unlike contracts.

    The ends are the files' figures; the steps between them are measured here, on the engine that both name.
    """
    notes = machine_notes(a, b, force) + work_notes(a, b, force)
    pairs = paired_points(a, b, setting.batch)
    contracts = [(_contract(first), _contract(second)) for first, second in pairs]
    names = list(dict.fromkeys(f"{start.name} and {end.name}" for start, end in contracts))
    if len(set(contracts)) != 1:
        raise UsageError(
            f"the files hold several pairs of contracts: {', '.join(names)}",
            "give result files that were measured under one contract each",
        )
    if contracts[0][0] == contracts[0][1]:
        raise UsageError(
            f"both files were measured under {contracts[0][0].name}: there is no difference to explain",
            "omit --across-contracts, or give a file that was measured under another contract",
        )
    notes += [note for pair in pairs for note in _marks(*pair, on_host=is_on_host(a))]
    with ExitStack() as resources:
        subjects = [
            _subject_of(first, second, setting, notes, listener, resources) for first, second in pairs
        ]
        gaps, runs = _explain("the files' engine", subjects, contracts[0], setting, notes, listener)
    return gaps, runs


def _marks(a: BenchPoint, b: BenchPoint, *, on_host: bool) -> list[str]:
    """What speaks against the figures whose difference is to be explained."""
    sides = ([doubt.text for doubt in doubts_of(point, on_host=on_host)] for point in (a, b))
    return [f"batch {a.batch}: {text}" for text in distrust(*sides)]


def _contract(point: BenchPoint) -> Contract:
    """The terms in full: a latency pass has no queue."""
    return (point.throughput or point.latency).contract


def _subject_of(
    a: BenchPoint, b: BenchPoint, setting: Setting, notes: list[str], listener: Listener, resources: ExitStack
) -> _Subject:
    ours, theirs = a.latency.engine, b.latency.engine
    if ours.sha256 != theirs.sha256:
        raise UsageError(
            f"batch {a.batch}: the files measured two engines, so contracts are not all that differs",
            "measure one engine under both contracts",
        )
    path = Path(ours.path)
    if not path.exists():
        raise ArtifactError(
            f"{path}: the engine that both files measured is not there, and the ledger's steps need it",
            "compare where it is, or give a build folder and --across-contracts "
            f"{_contract(a).name},{_contract(b).name}",
        )
    check_trust(setting.trust, [path])
    wanted = resolve_engines(path, (a.batch,), setting.backend, notes, listener, setting.trust)
    found = resources.enter_context(wanted)
    if found.engines[0].sha256 != ours.sha256:
        raise ArtifactError(
            f"{path}: is another engine than the files measured", "measure again, or restore that engine"
        )
    return _Subject(a.batch, engine_at(found.folder, found.inputs, found.engines[0], a.batch), *ends_of(a, b))


def _explain(
    name: str,
    subjects: list[_Subject],
    ends: tuple[Contract, Contract],
    setting: Setting,
    notes: list[str],
    listener: Listener,
) -> tuple[Gaps, tuple[InterleavedRun, ...]]:
    variants = gap_variants(*ends)
    heats = [
        heat(
            f"batch{subject.batch}",
            [subject.engine],
            (),
            "contracts",
            subject.batch,
            setting,
            variants=variants,
            least_rounds=0,
        )
        for subject in subjects
    ]
    runs = race(heats, listener, setting.timeout)
    notes += notes_of(runs)
    if not has_bare_loop(ends[1]):
        notes.append(
            f"no bare loop is measured under {ends[1].name}: it would need events, for copies or waits"
        )
    pairs = list(zip(subjects, runs, strict=False))  # a device that failed leaves fewer runs
    environment = runs[0].environment
    gaps = Gaps(
        start=ends[0].name,
        end=ends[1].name,
        subject=name,
        device=f"{environment.device.name} with {environment.backend}",
        gaps=tuple(
            evaluate_gap(
                subject.batch, *ends, valid_rounds(run), subject.latency_ends, subject.per_query_ends
            )
            for subject, run in pairs
        ),
        notes=tuple(dict.fromkeys(notes)),
    )
    return gaps, tuple(runs)
