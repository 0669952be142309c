"""The pages of a folder, of two and of a sweep: an answer, then the views of all records by question."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from msgspec import structs

from trtopt.errors import UsageError
from trtopt.measure.analysis.findings import trust_of
from trtopt.measure.analysis.outcomes import Comparisons, compare_reports
from trtopt.measure.analysis.sweep_points import Choices, choices_of, knee
from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.summaries import figures_of
from trtopt.records import (
    BatchVerdict,
    BenchPoint,
    Collected,
    EngineDifference,
    Environment,
    Manifest,
    ModelDifference,
    ProfileReport,
    ResultFile,
    SweepReport,
    Trust,
)
from trtopt.report.bench import bench_view, distrust
from trtopt.report.build import build_view
from trtopt.report.comparison import comparison_view
from trtopt.report.explanation import difference_blocks
from trtopt.report.graph import difference_view
from trtopt.report.html.page import Figure, Mark, Page, Section
from trtopt.report.precision import check_view, verdict_view
from trtopt.report.profile import profile_view
from trtopt.report.sweep import at_lengths, bests_table, latency_name, sweep_view
from trtopt.report.tuning import gain_line, ledger_table, separate_runs_line
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    Lines,
    Note,
    Severity,
    Table,
    View,
    facts_of,
    facts_table,
    grouped,
    table,
    view_of,
)

_QUESTIONS = {
    "fast": "How fast is it?",
    "why": "Why is it not faster?",
    "accurate": "Is it accurate?",
    "made": "How was it made?",
}
_NARROWEST = ("float4", "int4", "float8", "int8", "bfloat16", "float16", "float32")
"""By the start of a type's name; integers that only count are no precision."""

_STEPS = 3
_LEVELS = ("good", "caution", "bad")
_Panels = dict[str, Sequence[Block]]


def report_page(collected: Collected, argv: Sequence[str] = ()) -> Page:
    """Everything of one folder; `argv` is the command that makes the page."""
    deployed, engines = deployment_of(collected), _engines(collected)
    labels = {
        file: f"{file}: {report.points[0].latency.contract.name}, {report.environment.backend.name}"
        for file, report in collected.results.items()
    }
    inside = _profiled(engines, deployed.point.batch if deployed is not None else None)
    opened = {"fast": labels[deployed.file] if deployed is not None else "", "why": inside}
    panels: dict[str, _Panels] = {
        "fast": {labels[file]: bench_view(report).page() for file, report in collected.results.items()},
        "why": {label: profile_view(report).page() for label, report in engines.items()},
        "accurate": _accuracy(collected),
        "made": _origin(collected, argv),
    }
    charts = [chart for id, label in opened.items() for chart in _charts(panels[id].get(label, ()))[:1]]
    figures, why = list[Figure](), list[str]()
    if deployed is not None:
        figures, why = list(_headline(deployed, collected)), list(_reasons(deployed, collected))
    elif inside and (engine := engines[inside].engines[0]).sum_ms:
        figures = [Figure(f"layers at batch {engine.batch}", f"{engine.sum_ms:.3f}", unit="ms")]
    sections = [Section(id, title, panels[id], opened.get(id, "")) for id, title in _QUESTIONS.items()]
    return Page(
        title=_model_name(collected),
        facts=_facts(collected),
        mark=_mark(collected),
        figures=figures,
        answer=[Lines(why), Lines(_warnings(collected), are_warnings=True)],
        steps=list(_steps(collected, deployed))[:_STEPS],
        charts=charts,
        sections=list(_filled(sections, charts)),
    )


def _filled(sections: Iterable[Section], above: Sequence[Chart] = ()) -> Iterator[Section]:
    """Those that have something to show besides the charts above."""
    for section in sections:
        shown = {n: [one for one in blocks if one not in above] for n, blocks in section.panels.items()}
        if panels := {label: blocks for label, blocks in shown.items() if blocks}:
            yield replace(section, panels=panels)


def _charts(blocks: Iterable[Block]) -> list[Chart]:
    return [block for block in blocks if isinstance(block, Chart)]


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Deployment:
    """The selected point, and `trusted`, one per batch size, among which it was selected.

    These are the trustworthy points, or all where none is; `is_part`: others are left out.
    """

    file: str
    point: BenchPoint
    trusted: Sequence[BenchPoint]
    is_part: bool


def deployment_of(collected: Collected) -> Deployment | None:
    """The batch size with the most throughput for its latency, of trustworthy points where there are any.

    Each batch size is taken from the first result file that has it, so that no two contracts are mixed
    without need. None: nothing was measured.
    """
    found: dict[int, tuple[str, BenchPoint, Trust]] = {}
    for file, point, trust in _points(collected):
        if point.latency.samples.start_ms and _rate(point):
            found.setdefault(point.batch, (file, point, trust))
    if not found:
        return None
    places = [found[batch] for batch in sorted(found)]
    trusted = [place for place in places if place[-1] is not Trust.NONE] or places
    points = [point for _, point, _ in trusted]
    file, point, _ = trusted[knee(list(map(_p50_ms, points)), list(map(_rate, points)))]
    return Deployment(file, point, points, len(trusted) < len(places))


def _points(collected: Collected) -> Iterator[tuple[str, BenchPoint, Trust]]:
    for file, report in collected.results.items():
        for point in report.points:
            yield file, point, trust_of(point, report.environment.device)


def _rate(point: BenchPoint) -> float:
    """Samples per second; 0 where they were not measured."""
    return figures_of(point)["samples/s"] or 0.0


def _p50_ms(point: BenchPoint) -> float:
    """The median latency; infinite where none was measured."""
    return figures_of(point)["p50 ms"] or math.inf


def _headline(deployed: Deployment, collected: Collected) -> Iterator[Figure]:
    point, first = deployed.point, deployed.trusted[0]
    figures = figures_of(point)
    label = "best on the CPU" if _ran_on_stand_in(collected) else "deploy"
    what = ", ".join(filter(None, (_precision(collected, point.batch), f"batch {point.batch}")))
    yield Figure(label, what, f"contract {point.latency.contract.name}; {deployed.file}")
    p99 = f"p99 {figures['p99 ms']:.3f} ms" if figures["p99 ms"] is not None else ""
    yield Figure("median latency", f"{_p50_ms(point):.3f}", p99, "ms")
    against = f"{_rate(point) / _rate(first):.2f} times batch {first.batch}" if first is not point else ""
    yield Figure("throughput", f"{_rate(point):,.0f}", against, "samples/s")


def _verdict(collected: Collected, batch: int) -> BatchVerdict | None:
    """The selection of a batch size's precision at build time."""
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    return next((one for one in verdict.batches if one.batch == batch), None) if verdict else None


def _precision(collected: Collected, batch: int) -> str:
    """What was selected, else the narrowest type of the graph that the engine was built from."""
    manifest, verdict = collected.manifest, _verdict(collected, batch)
    if manifest is None or verdict is not None:
        return "" if verdict is None else verdict.chosen
    engine = next((one for one in manifest.engines if one.plan.span_of(batch) is not None), None)
    types = manifest.onnx.types if engine is None else manifest.graph_of(engine).types
    return next((one for start in _NARROWEST for one in types if one.startswith(start)), "")


def _reasons(deployed: Deployment, collected: Collected) -> Iterator[str]:
    """Why that point, and which one answers soonest."""
    point, trusted = deployed.point, deployed.trusted
    if len(trusted) > 1:
        among = ", of what is trustworthy" if deployed.is_part else ""
        yield f"Batch {point.batch} has the most throughput for its median latency{among}."
    others = {
        "lowest latency": min(trusted, key=_p50_ms),
        "highest throughput": max(trusted, key=_rate),
    }
    for what, other in others.items():
        if other is not point:
            figures = f"{_p50_ms(other):.3f} ms, {_rate(other):,.0f} samples/s"
            yield f"For the {what}: batch {other.batch}, {figures}."
    if (verdict := _verdict(collected, point.batch)) is not None:
        yield f"Precision {verdict.chosen}: {verdict.reason}."


def _warnings(collected: Collected) -> list[str]:
    """What speaks against the figures and the engines, the worst first."""
    grave = [note for note in _notes(collected) if note.severity <= Severity.DOUBT]
    shown = [note for note in grave if note.text]  # what makes figures not trustworthy has reasons besides
    missed = (
        f"{subject.name}: {one.text}"
        for check in collected.checks.values()
        for subject in check.subjects
        for one in subject.violations
    )
    return [*distrust(collected.results.values()), *grouped(shown, in_full=True), *collected.notes, *missed]


def _steps(collected: Collected, deployed: Deployment | None) -> Iterator[str]:
    """What is not measured yet or not trustworthy, then the hints on what is; the worthiest first."""
    manifest, folder = collected.manifest, shlex.quote(collected.folder)
    model = shlex.quote(_model_file(collected) or "MODEL.onnx")
    source = model if manifest is None else folder
    stands_in = _ran_on_stand_in(collected)

    def into(file: str) -> str:
        return f"--json {shlex.quote(f'{collected.folder}/{file}')}"

    distrusted = [
        (file, point.latency.contract.name)
        for file, point, trust in _points(collected)
        if trust is Trust.NONE
    ]
    if deployed is None or stands_in:
        where = " on a machine with a GPU" if stands_in else ""
        file = "bench.json" if deployed is None else deployed.file
        yield f"Measure it{where}: trtopt bench {source} {into(file)}"
    elif distrusted:  # on the same terms into the same file: in another one, they would stay on the page
        file, contract = distrusted[0]
        terms = f"--contract {shlex.quote(contract)}"
        yield f"Measure again when nothing disturbs it: trtopt bench {source} {terms} {into(file)}"
    if not collected.profiles:
        yield f"Find where the time goes: trtopt profile {source} -o {folder}"
    yield from grouped(note for note in _notes(collected) if note.severity is Severity.HINT)
    if manifest is not None and manifest.verdict is None and not collected.checks:
        yield f"See whether it is accurate: trtopt check {folder} --against {model} {into('check.json')}"


def _notes(collected: Collected) -> Iterator[Note]:
    return (note for report in collected.reports.values() for note in view_of(report).notes)


def _mark(collected: Collected) -> Mark:
    """Whether the figures are trustworthy; every point of every result file counts."""
    found: dict[Trust, set[int]] = {}
    for _, point, trust in _points(collected):
        found.setdefault(trust, set()).add(point.batch)
    batches = {trust: ", ".join(map(str, sorted(sizes))) for trust, sizes in found.items()}
    mark = _mark_of(batches, lambda worst: f"{worst.value}: batch {batches[worst]}")
    if found and mark.level != "bad" and _ran_on_stand_in(collected):
        return Mark("caution", "measured on another backend than the engines are built for")
    return mark


def _mark_of(found: Collection[Trust], text_of: Callable[[Trust], str]) -> Mark:
    """By the worst of what was found, which `text_of` says in words."""
    worst = next((trust for trust in Trust if trust in found), None)
    if worst is None:
        return Mark("caution", "not measured")
    if worst is Trust.FULL:
        return Mark("good", worst.value)
    return Mark("bad" if worst is Trust.NONE else "caution", text_of(worst))


def _ran_on_stand_in(collected: Collected) -> bool:
    """Whether figures are of another backend than the folder's engines are built for."""
    if collected.manifest is None:
        return False
    built = collected.manifest.engines[0].plan.backend.name
    return any(report.environment.backend.name != built for report in collected.results.values())


def _facts(collected: Collected) -> list[str]:
    """Device, backend and date of the figures; of the build where there are none."""
    reports = list(collected.reports.values())
    lines = [f"{one.environment.device.name}, {one.environment.backend}" for one in reports]
    manifest = collected.manifest
    if manifest is not None and (not lines or _ran_on_stand_in(collected)):
        engine = manifest.engines[0]
        where = "without a GPU" if engine.device.kind == "none" else f"on {engine.device.name}"
        lines.append(f"engines built by {engine.plan.backend} {where}")
    dates = [report.created for report in reports] or ([manifest.created] if manifest is not None else [])
    return [*dict.fromkeys(lines), *([_date_text(max(dates))] if dates else [])]


def _model_file(collected: Collected) -> str | None:
    """The user's model, as the commands name it; None where none does."""
    lines = [collected.manifest.argv] if collected.manifest is not None else []
    lines += [report.argv for report in collected.reports.values()]
    return next((word for argv in lines for word in argv[1:] if word.endswith(".onnx")), None)


def _model_name(collected: Collected) -> str:
    """The model's name for a title: the file's without its ending, else the folder's."""
    file = _model_file(collected)
    return collected.name if file is None else PurePath(file).stem


def _date_text(created: str) -> str:
    """A record's time of day to the minute: `2026-01-31 12:00 UTC`."""
    return f"{created[:10]} {created[11:16]} UTC"


# ── the views of a folder's records ─────────────────────────────────────────────────────────────────────


def _engines(collected: Collected) -> dict[str, ProfileReport]:
    """A report on every profiled engine alone, by its name on the page."""
    return {
        f"batch {engine.batch}" + (f" ({file})" if len(collected.profiles) > 1 else ""): structs.replace(
            report, engines=(engine,)
        )
        for file, report in collected.profiles.items()
        for engine in report.engines
    }


def _profiled(engines: Mapping[str, ProfileReport], batch: int | None) -> str:
    """The engine of a batch size, else of the largest: there the device is busiest; empty where none is."""
    sizes = {label: report.engines[0].batch for label, report in engines.items()}
    return max(sizes, key=lambda label: (sizes[label] == batch, sizes[label]), default="")


def _difference_panels(differences: Iterable[EngineDifference]) -> dict[str, list[Block]]:
    """One for two engines, whatever the number of batch sizes at which they were profiled."""
    panels: dict[str, list[Block]] = {}
    for one in differences:
        panels.setdefault(f"{one.a} → {one.b}", []).extend(difference_blocks(one))
    return panels


def _accuracy(collected: Collected) -> _Panels:
    panels: _Panels = {file: check_view(check).page() for file, check in collected.checks.items()}
    if collected.manifest is not None and collected.manifest.verdict is not None:
        panels["precision selection"] = verdict_view(collected.manifest.verdict).page()
    return panels


def _origin(collected: Collected, argv: Sequence[str]) -> _Panels:
    """Commands, engines, tuning and machines; and what of the folder is not shown."""
    manifest, ledger = collected.manifest, collected.ledger
    made = {**({} if manifest is None else {"engines": manifest}), **collected.reports, **collected.checks}
    left_out = [f"not on this page: {file}, {reason}" for file, reason in collected.left_out.items()]
    panels: _Panels = {"commands": [_commands(made, argv), Lines(left_out)]}
    if manifest is not None:
        panels["build"] = build_view(manifest, collected.name).page()
    if ledger is not None:
        panels["tuning"] = [Lines([gain_line(ledger), separate_runs_line(ledger)]), ledger_table(ledger)]
    return panels | {"machine and versions": list(_machines(collected))}


def _commands(records: Mapping[str, ResultFile | Manifest], argv: Sequence[str]) -> Lines:
    """The commands as they were typed, for a shell, and what each made; the last one made this page."""
    typed = {f"{what}, {_date_text(one.created)}": one.argv for what, one in records.items()}
    commands = [(what, words) for what, words in (*typed.items(), ("this page", argv)) if words]
    return Lines([line for what, words in commands for line in (f"# {what}", _typed(words))], is_copied=True)


def _typed(argv: Sequence[str]) -> str:
    """A command line for a shell, however the program was started."""
    program, *rest = argv
    is_trtopt = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if is_trtopt else program, *rest])


def _machines(collected: Collected) -> Iterator[Table]:
    """Each machine, with the files that were made on it."""
    machines: dict[Environment, list[str]] = {}
    for file, report in collected.reports.items():
        machines.setdefault(report.environment, []).append(file)
    for environment, files in machines.items():
        yield facts_table(f"Where {', '.join(files)} was made", facts_of(environment))


# ── two folders ─────────────────────────────────────────────────────────────────────────────────────────


def pair_page(
    a: Collected, b: Collected, differences: Sequence[EngineDifference], argv: Sequence[str] = ()
) -> Page:
    """How B differs from A, the baseline, then all of both; `differences`: of engines that both profiled."""
    sides = {"A": a, "B": b}
    pages = {n: report_page(side) for n, side in sides.items()}
    compared, notes = _compared(a, b)
    view = View("", []) if compared is None else comparison_view(compared)
    sentences = [block for block in view.on("page", verbose=False) if isinstance(block, Lines)]
    warnings = [f"{n}: {line}" for n, side in sides.items() for line in _warnings(side)]
    differ = Section(
        "differ",
        "How do they differ?",
        {
            "verdicts": view.page(),
            "what differs": [_settings(a, b), _commands({}, argv)],
            **_difference_panels(differences),
        },
    )
    return Page(
        title=f"{', '.join(dict.fromkeys(page.title for page in pages.values()))}: "
        f"{a.name} (A) and {b.name} (B)",
        facts=[f"{n}: {', '.join(page.facts)}" for n, page in pages.items()],
        mark=Mark(
            max((page.mark.level for page in pages.values()), key=_LEVELS.index),
            "; ".join(f"{n} {page.mark.text}" for n, page in pages.items()),
        ),
        figures=[replace(one, name=f"{n}: {one.name}") for n, page in pages.items() for one in page.figures],
        answer=[*sentences, Lines([*notes, *warnings], are_warnings=True)],
        steps=list(_turns(a, b)) if compared is not None else [],
        charts=[replace(one, title=f"{n}: {one.title}") for n, page in pages.items() for one in page.charts],
        sections=list(_filled([differ, *_merged(pages)])),
    )


def models_page(found: ModelDifference) -> Page:
    """How two models differ."""
    view = difference_view(found)
    return Page(
        title=f"{PurePath(found.a).name} (A) and {PurePath(found.b).name} (B)",
        facts=[f"A: {found.a}", f"B: {found.b}"],
        mark=Mark("good", "the same") if found.is_same else Mark("caution", "they differ"),
        figures=[],
        answer=[Lines([view.headline])],
        sections=[Section("differ", "How do they differ?", {"differences": view.page()[1:]})],
    )


def _merged(pages: Mapping[str, Page]) -> Iterator[Section]:
    """Each section once, with the panels of both sides."""
    for id, title in _QUESTIONS.items():
        own = [(n, section) for n, page in pages.items() for section in page.sections if section.id == id]
        panels = {f"{n} {label}": blocks for n, section in own for label, blocks in section.panels.items()}
        opened = (f"{n} {section.opened}" for n, section in own if section.opened)
        yield Section(id, title, panels, next(opened, ""))


def _compared(a: Collected, b: Collected) -> tuple[Comparisons | None, list[str]]:
    """The verdicts, and what speaks against comparing the two at all."""
    deployed = [one for one in map(deployment_of, (a, b)) if one is not None]
    if len(deployed) < 2:
        return None, ["Not compared: a side has no measurements."]
    first, second = (side.results[one.file] for side, one in zip((a, b), deployed, strict=True))
    ours, theirs = ({point.batch for point in report.points} for report in (first, second))
    if not ours & theirs:
        return None, ["Not compared: they have no batch size in common."]
    try:
        compared = compare_reports(
            first, second, threshold=THRESHOLD, force=True, batch=sorted(ours & theirs)
        )
    except UsageError as error:
        return None, [f"Not compared: {error.problem}."]
    alone = [f"batch {batch} is only on one side" for batch in sorted(ours ^ theirs)]
    return compared, [*compared.notes, *alone]


def _turns(a: Collected, b: Collected) -> Iterator[str]:
    """Where both have engines of one backend: a process loads no other."""
    backends = [side.manifest.engines[0].plan.backend for side in (a, b) if side.manifest is not None]
    if len(backends) == 2 and len(set(map(str, backends))) == 1:
        folders = shlex.join([a.folder, b.folder])
        yield f"Results measured apart decide less than engines that take turns: trtopt compare {folders}"


def _settings(a: Collected, b: Collected) -> Block:
    """What of machine, versions, contract and builder settings differs."""
    before, after = map(_facts_of_side, (a, b))
    differing = [one for one in dict.fromkeys((*before, *after)) if before.get(one) != after.get(one)]
    if not differing:
        return Lines(["Machine, versions, contract and builder settings are the same."])
    columns: list[Column[str]] = [Column("what", str), Column("A", before.get), Column("B", after.get)]
    return table("What differs", columns, differing)


def _facts_of_side(side: Collected) -> dict[str, str]:
    found = next((facts_of(report.environment) for report in side.reports.values()), {})
    if (deployed := deployment_of(side)) is not None:
        found["contract"] = deployed.point.latency.contract.name
    if side.manifest is not None:
        engine = side.manifest.engines[0]
        found["built by"] = str(engine.plan.backend)
        found["types in the graph"] = ", ".join(side.manifest.onnx.types)
        found |= {f"builder: {what}": fact for what, fact in engine.builder_config.items()}
    return found


# ── a sweep ─────────────────────────────────────────────────────────────────────────────────────────────


def sweep_page(report: SweepReport, argv: Sequence[str] = ()) -> Page:
    """Everything of a sweep; `argv` is the command that makes the page."""
    view, groups = sweep_view(report), choices_of(report)
    doubts = [one.in_full or one.text for one in view.notes if one.severity is not Severity.NOTE]
    blocks = view.page()
    charts, trusts = _charts(blocks)[:1] if groups else [], [point.trust for point in report.measured]
    fast = Section("fast", "How fast is each point?", {"": blocks})
    made = Section("made", _QUESTIONS["made"], {"": [_commands({"sweep": report}, argv)]})
    return Page(
        title=f"{PurePath(report.model).stem}: sweep",
        facts=[f"{report.terms.device.name}, {report.terms.backend}", _date_text(report.created)],
        mark=_mark_of(trusts, lambda worst: f"{trusts.count(worst)} of {len(trusts)} points {worst.value}"),
        figures=[figure for one in groups for figure in _figures(report, one)],
        answer=[*(bests_table(report, one) for one in groups), Lines(doubts, are_warnings=True)],
        charts=charts,
        sections=list(_filled([fast, made], charts)),
    )


def _figures(report: SweepReport, choices: Choices) -> Iterator[Figure]:
    """The knee of the front at a set of lengths."""
    chosen = choices.knee
    cost = choices.costs_ms[choices.points.index(chosen)]
    why = "the knee: the highest throughput for its latency"
    yield Figure(f"deploy{at_lengths(choices.axes)}", chosen.label, why)
    yield Figure(latency_name(report), f"{cost:.3f}", unit="ms")
    yield Figure("throughput", f"{chosen.samples_per_s or 0.0:,.0f}", unit="samples/s")
