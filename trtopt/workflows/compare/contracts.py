"""Where the difference between two contracts comes from: the gap ledger of an engine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trtopt.errors import ArtifactError, UsageError
from trtopt.measure.analysis.findings import doubts_of, is_on_host
from trtopt.measure.analysis.gap_ledger import Ends, ends_of, evaluate_gap, gap_variants, has_bare_loop
from trtopt.measure.analysis.outcomes import Gaps
from trtopt.measure.analysis.result_comparison import distrust, machine_notes, paired_points, work_notes
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop.interleaved import LoadedEngine
from trtopt.measure.loop.rounds import notes_of, valid_rounds
from trtopt.records import BenchPoint, BenchReport, Contract, InterleavedRun
from trtopt.workflows.bench.resolve_engines import check_trust, points, resolve_engines
from trtopt.workflows.listener import Listener
from trtopt.workflows.race import Setting, heat, loaded, race


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
            _Subject(size, loaded(found.folder, found.inputs, engine, size))
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
    return _Subject(a.batch, loaded(found.folder, found.inputs, found.engines[0], a.batch), *ends_of(a, b))


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
