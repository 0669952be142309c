"""The page of one folder: a section for each of a reader's questions; what lacks data is only listed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from trtopt.records import CheckReport, Collected
from trtopt.report.bench import trust_lines
from trtopt.report.html.deployment import deployment_of, model_name, profiled, ran_on_stand_in
from trtopt.report.html.next_steps import fixes_batch, into, model_of, source_of
from trtopt.report.html.page import Block, Command, Missing, Page, Question, Section, says_something
from trtopt.report.html.sections import (
    batch_section,
    build_section,
    checks_section,
    commands_of,
    difference_section,
    engine_panels,
    file_notes,
    fusion_section,
    kernels_section,
    latency_section,
    layers_section,
    machines_section,
    memory_section,
    precision_section,
    roofline_section,
    selection_section,
    tuning_section,
    typed,
)
from trtopt.report.html.summary import answer, by_batch, facts, mark_of, overview_charts
from trtopt.report.kernels import kernel_types_line, top_lines
from trtopt.report.notes import Note, Severity, grouped
from trtopt.report.precision import difference_line
from trtopt.report.profile import receipt_lines, roofline_lines
from trtopt.report.view import Lines

Found = Section | Missing | None


def report_page(collected: Collected, argv: Sequence[str] = ()) -> Page:
    """Everything of one folder; `argv` is the command that makes the page."""
    folder = shlex.quote(collected.folder)
    source = source_of(collected)
    profile = f"trtopt profile {source}{_result_with_layers(collected)} -o {folder}"
    build = f"trtopt build {model_of(collected)} -o ENGINES --batch 1,8,32"
    curves = "" if fixes_batch(collected) else build
    check = ""  # of engines, which only a build folder has
    if collected.manifest is not None:
        check = f"trtopt check {folder} --against {model_of(collected)} {into(collected, 'check.json')}"
    on_gpu = not _measured_on_cpu(collected)
    found: dict[str, tuple[str, list[Block], list[Found]]] = {
        "fast": (
            "How fast is it?",
            [*by_batch(collected)],
            [
                latency_section(collected, f"trtopt bench {source} {into(collected, 'result.json')}"),
                batch_section(collected, curves),
            ],
        ),
        "why": (
            "Why is it not faster?",
            [Lines(_why(collected))],
            [
                layers_section(collected, profile),
                kernels_section(
                    collected, f"trtopt profile {source} --kernels -o {folder}" if on_gpu else ""
                ),
                fusion_section(collected, profile),
                roofline_section(collected, profile),
                memory_section(collected, f"trtopt profile {source} --memory -o {folder}" if on_gpu else ""),
                difference_section(collected, f"trtopt profile {source} --against EARLIER -o {folder}"),
            ],
        ),
        "accurate": (
            "Is it accurate?",
            [Lines([*_accuracy(collected), *_receipts(collected)])],
            [
                checks_section(collected, check),
                selection_section(collected),
                precision_section(collected, profile),
            ],
        ),
        "trust": ("Can I trust it?", _trust(collected), []),
        "made": (
            "How was it made?",
            [*commands_of(collected), *([Command(typed(argv), "this page")] if argv else [])],
            [tuning_section(collected), machines_section(collected), build_section(collected, build)],
        ),
    }
    questions = [
        Question(id, title, shown, [one for one in sections if isinstance(one, Section)])
        for id, (title, shown, sections) in found.items()
        if says_something(shown) or any(isinstance(one, Section) for one in sections)
    ]
    return Page(
        title=model_name(collected),
        facts=facts(collected),
        mark=mark_of(collected),
        answer=answer(collected),
        charts=overview_charts(collected),
        questions=questions,
        missing=_by_command(
            one for _, _, sections in found.values() for one in sections if isinstance(one, Missing)
        ),
    )


def _by_command(missing: Iterable[Missing]) -> list[Missing]:
    """What one command creates, as one."""
    titles: dict[str, list[str]] = {}
    for one in missing:
        titles.setdefault(one.command, []).append(one.title)
    return [Missing(", ".join(named), command) for command, named in titles.items()]


def _measured_on_cpu(collected: Collected) -> bool:
    """Where allocations cannot be traced."""
    environments = [report.environment for report in collected.reports.values() if report.environment]
    return any(one.device.kind == "cpu" for one in environments) or ran_on_stand_in(collected)


def _result_with_layers(collected: Collected) -> str:
    """The `--result` flag for a result file with layer times, which need not be measured again."""
    for file, report in collected.results.items():
        if all(point.layers is not None for point in report.points):
            return f" --result {shlex.quote(f'{collected.folder}/{file}')}"
    return ""


def _why(collected: Collected) -> list[str]:
    """Of the engine that goes with the deployed batch size: its floor, and what is unknown."""
    deployed = deployment_of(collected)
    engine = profiled(collected, deployed.point.batch if deployed is not None else None)
    missing = dict.fromkeys(text for report in collected.profiles.values() for text in report.missing)
    lines = []
    if engine is not None:
        found = [*roofline_lines(engine), *(top_lines(engine.kernels) if engine.kernels is not None else ())]
        lines += [f"batch {engine.batch}: {line.strip()}" for line in found]
    return [*lines, *(f"not known: {text}" for text in missing)]


def _accuracy(collected: Collected) -> list[str]:
    """In a sentence or two; empty: nothing was checked."""
    lines = [line for check in collected.checks.values() for line in _check_lines(check)]
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    if verdict is not None:
        for candidate in verdict.candidates:
            if candidate.differences:
                worst = min(candidate.differences, key=lambda one: one.cosine)
                missed = "; not accurate enough, not measured" if candidate.violations else ""
                lines.append(f"{candidate.name} at build time: {difference_line(worst)}{missed}.")
    rewrite = collected.manifest.rewrite if collected.manifest is not None else None
    if rewrite is not None and rewrite.inputs_checked and rewrite.largest_error is not None:
        lines.append(
            f"The rewritten graph is verified on {rewrite.inputs_checked} inputs: largest error "
            f"{rewrite.largest_error:.2g} of the output's magnitude."
        )
    return lines


def _check_lines(check: CheckReport) -> Iterator[str]:
    random = " (random data: accuracy on real data is unknown)" if check.data_is_random else ""
    for subject in check.subjects:
        if subject.outputs:
            worst = min(subject.outputs, key=lambda one: one.cosine)
            met = "bounds NOT MET; " if subject.violations else ""
            at = f" at batch {subject.batch}" if subject.batch is not None else ""
            yield (
                f"{subject.name}{at} against {check.against} on {subject.samples} samples{random}: "
                f"{met}{difference_line(worst)}."
            )


def _receipts(collected: Collected) -> list[str]:
    """Types that ran, each line once for all batch sizes that share it."""
    return grouped(
        Note(Severity.NOTE, line.strip(), engine.batch)
        for _, _, engine in engine_panels(collected)
        for line in (
            *receipt_lines(engine.receipt),
            *([kernel_types_line(engine.kernels)] if engine.kernels is not None else ()),
        )
    )


def _trust(collected: Collected) -> list[Block]:
    """Every result file's findings, then what the files note."""
    several = len(collected.results) > 1
    lines = [
        f"{file}: {line}" if several else line
        for file, report in collected.results.items()
        for line in trust_lines(report)
    ]
    return [Lines([*lines, *file_notes(collected)])]
