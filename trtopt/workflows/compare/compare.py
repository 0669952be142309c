"""`trtopt compare`: what A and B are decides how they are compared; the gap ledger of two contracts."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec

from trtopt.data import open_data
from trtopt.errors import UsageError
from trtopt.measure.analysis.gap_ledger import evaluate_gap, gap_variants
from trtopt.measure.analysis.outcomes import Compared, Comparisons, Gaps, Outcome
from trtopt.measure.contracts import DURATION_S, TERMS, contract_for, contract_named
from trtopt.measure.loop.interleaved import notes_of, valid_rounds
from trtopt.recipe import WHERE
from trtopt.records import CompareReport
from trtopt.requests.measure import CompareRequest
from trtopt.workflows.bench.resolve_engines import check_own_run, check_trust, is_model, resolve_engines
from trtopt.workflows.compare.engines import compare_engines, compare_recipes
from trtopt.workflows.compare.result_files import compare_files, is_result_file
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.race import Setting, heat, race, verdict_record

_MEASURED = {"batch", "backend", "duration", "data", "timeout"}
_JUDGED = _MEASURED | {"threshold", "fail_on"}


class Kind(Enum):
    """What is compared, and the options that have a use for it."""

    FILES = ("result files", {"force", "batch", "threshold", "fail_on"})
    ENGINES = (
        "engines",
        _JUDGED | {"contract", "control", "trust", "upgrade", "force", "shapes", "axes", *TERMS},
    )
    BUILDS = ("recipes", _JUDGED | {"contract", "builds", "force", "shapes", "axes", *TERMS, *WHERE})
    CONTRACTS = ("contracts", _MEASURED | {"across_contracts", "trust"})


def compare(request: CompareRequest) -> Compared:
    """Compare B with the baseline A: faster, slower, same or undecided at each batch size.

    Returns:
        `outcome` with the verdicts, and `report`, the record that `trtopt compare --json` writes; of an
        upgrade `report.upgrade_verdict`, and `report.upgrade` on results, layers, memory and build time.

    Example:
        >>> compared = trtopt.compare("engines", "engines", batch=8, duration=0.1)
        >>> [row["batch"] for row in compared.rows()]
        [8]
        >>> verdict = compared.report.verdicts[0].verdict  # FASTER, SLOWER, SAME or UNDECIDED
    """
    first, second = Path(request.a), Path(request.b) if request.b is not None else None
    kind = _kind_of(first, second, request)
    what, useful = kind.value
    request.refuse_all_but(useful | {"a", "b"}, f"on a comparison of {what}")
    if request.data is not None:
        open_data(request.data)  # judged before anything is built
    if request.fail_on is not None and second is None:
        raise UsageError("--fail-on: there is no B that could fail", "give B, or omit --fail-on")
    if request.upgrade and second is None:
        raise UsageError("--upgrade: there is no B to upgrade to", f"give the newer folder after {first}")
    if second is not None and kind in (Kind.ENGINES, Kind.BUILDS):
        for path in (first, second):
            check_own_run(path, request.backend, request.trust)
    setting = Setting(
        contract=contract_for(request.contract, request.terms),
        duration=DURATION_S if request.duration is None else request.duration,
        data=None if request.data is None else str(request.data),
        timeout=request.timeout,
    )
    outcome: Outcome
    if kind is Kind.BUILDS:
        outcome = compare_recipes(request, setting)
    elif kind is Kind.ENGINES:
        outcome = compare_engines(request, setting)
    elif kind is Kind.CONTRACTS:
        outcome = explain_engines(first, request, setting)
    else:
        assert second is not None
        outcome = compare_files(first, second, request)
    judged = outcome if isinstance(outcome, Comparisons) else None
    report = CompareReport(
        created=now(),
        argv=command_line(),
        threshold=request.threshold,
        limit=judged.limit if judged is not None else None,
        runs=outcome.runs,
        built=judged.built if judged is not None else (),
        verdicts=tuple(verdict_record(row.batch, row.comparison) for row in (judged.rows if judged else ())),
        upgrade=judged.upgrade if judged is not None else None,
        upgrade_verdict=judged.upgrade_verdict if judged is not None else None,
        notes=outcome.notes,
    )
    return Compared(outcome, report)


def _kind_of(a: Path, b: Path | None, request: CompareRequest) -> Kind:
    """What the two are, and what is asked of them."""
    paths = [path for path in (a, b) if path is not None]
    files = [is_result_file(path) for path in paths]
    if request.across_contracts is not None:
        if any(files):
            raise UsageError(
                f"{paths[files.index(True)]}: a result file holds no engine to measure under other contracts",
                "give the build folder or the engine",
            )
        if b is not None:
            raise UsageError(
                "--across-contracts explains the contracts of one engine, and B is another", f"give {a} alone"
            )
        return Kind.CONTRACTS
    if any(files) and request.builds is not None:
        raise UsageError("--builds: a result file cannot be built", "give build folders, or omit it")
    if any(files) and not all(files):
        raise UsageError(
            f"a result file and an engine, which {paths[files.index(False)]} is by its name, cannot be "
            "compared: one was measured elsewhere or earlier",
            "give two result files, NAME.json each, or two build folders or engines to measure them in turns",
        )
    if request.builds is not None:
        if single := next((path for path in paths if path.is_file()), None):
            raise UsageError(
                f"{single}: --builds takes build folders, each of which is a recipe",
                f"build it first: trtopt build {single} -o FOLDER"
                if is_model(single)
                else "give the build folder that it lies in",
            )
        if b is None:
            raise UsageError(
                f"--builds {request.builds}: builds of two recipes are compared, and there is no B",
                f"give {a} twice to see how much builds of one recipe differ",
            )
        return Kind.BUILDS
    if files == [True]:
        raise UsageError(
            f"{a}: nothing to compare it with",
            "give a second result file; or the build folder with --control K to measure it against itself",
        )
    if b is None and request.control is None:
        raise UsageError(
            f"{a}: nothing to compare it with",
            "give B as well; or --control K to measure A against itself, --across-contracts C1,C2 to compare "
            "contracts",
        )
    if all(files):
        return Kind.FILES
    if b is not None and (models := [path for path in (a, b) if is_model(path)]):
        raise UsageError(
            f"{models[0]}: is a model, and no two builds of a model are equally fast",
            "build each, and compare the folders, with --builds 4 over four builds of each",
        )
    return Kind.ENGINES


# ── where the difference between two contracts comes from: the gap ledger of an engine ──────────────────────


def explain_engines(path: Path, request: CompareRequest, setting: Setting) -> Gaps:
    """The ledger between two contracts for every engine of a folder, or one engine, at every batch size."""
    text = request.across_contracts or ""
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise UsageError(
            f"--across-contracts {text!r}: not two contracts",
            "write, say, --across-contracts trtexec-10,trtexec-11",
        )
    start, end = map(contract_named, names)
    notes, variants = list[str](), tuple(gap_variants(start, end))
    check_trust(request.trust, [path])
    with resolve_engines(path, request, notes) as found:
        heats = []
        for engine in found.engines:
            one = heat(f"batch{engine.batch}", [engine], (), "contracts", setting)
            heats.append(msgspec.structs.replace(one, variants=variants, least_rounds=0))
        runs = race(heats, request.listener, setting.timeout)
    notes += notes_of(runs)
    environment = runs[0].environment
    return Gaps(
        start=start.name,
        end=end.name,
        subject=path.name,
        device=f"{environment.device.name} with {environment.backend}",
        gaps=tuple(evaluate_gap(run.batch, start, end, valid_rounds(run)) for run in runs),
        notes=tuple(dict.fromkeys(notes)),
        runs=tuple(runs),
    )
