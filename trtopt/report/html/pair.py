"""Two folders of one model: how B differs from A, the baseline, then the pages of both side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trtopt.errors import UsageError
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.measure.analysis.result_comparison import compare_reports
from trtopt.measure.contracts import THRESHOLD
from trtopt.records import Collected, EngineDifference
from trtopt.report.comparison import comparison_view, reasons_of, speed
from trtopt.report.html.answer import Deployment, deployment_of, p50_of, rate_of, sampled
from trtopt.report.html.charts import SIDES, Row, coloured, curves_over_batches, times
from trtopt.report.html.folder import commands_of, difference_panels, record_facts, report_page
from trtopt.report.html.page import Block, Chart, Mark, Page, Question, Section, Step, with_data
from trtopt.report.view import Column, Lines, Table, grouped, table

_LEVELS = ("good", "caution", "bad")
_KINDS = 10
_UNLIKE = "Layers are compared where both folders have a profile at one batch size."
_SCALE = {"domain": list(SIDES), "range": list(SIDES.values())}
_CURVES = (("Median latency", "p50", "ms"), ("Throughput", "rate", "samples/s"))
_Deployed = Mapping[str, Deployment]


def pair_page(
    a: Collected, b: Collected, differences: Sequence[EngineDifference], argv: Sequence[str] = ()
) -> Page:
    """Two folders on one page; `differences` are those of engines that both have profiled."""
    sides = {"A": a, "B": b}
    pages = {"A": report_page(a, beside=b), "B": report_page(b, beside=a)}
    deployed = {n: one for n, side in sides.items() if (one := deployment_of(side)) is not None}
    compared, notes = _compared(deployed)
    difference = Question(
        "differ",
        "How do they differ?",
        [
            *_verdicts(compared),
            _settings({n: _facts_of(side, deployed.get(n)) for n, side in sides.items()}),
            Lines([] if differences else [_UNLIKE]),
            commands_of({}, argv),
        ],
        [Section("changes", "Layer by layer", difference_panels(differences))],
    )
    marks = dict.fromkeys(page.mark.text for page in pages.values())
    each = "; ".join(f"{n} {page.mark.text}" for n, page in pages.items())
    names = dict.fromkeys(page.title for page in pages.values())
    return Page(
        title=f"{', '.join(names)}: {a.name} (A) and {b.name} (B)",
        facts=[f"{n}: {', '.join(page.facts)}" for n, page in pages.items()],
        mark=Mark(
            max((page.mark.level for page in pages.values()), key=_LEVELS.index),
            each if len(marks) > 1 else next(iter(marks)),
        ),
        figures=[replace(one, name=f"{n}: {one.name}") for n, page in pages.items() for one in page.figures],
        answer=[
            Lines(list(_sentences(compared))),
            Lines(notes, are_warnings=True),
            *(_of_side(n, block) for n, page in pages.items() for block in page.answer),
        ],
        charts=[*_curves(deployed), *_kinds(sides)],
        questions=[*with_data([difference])[0], *_merged(pages)],
        steps=list(_turns(sides)) if compared is not None else [],
    )


# ── all that both pages have ────────────────────────────────────────────────────────────────────────────


def _merged(pages: Mapping[str, Page]) -> list[Question]:
    """Each question with the answers of both sides, and panels of both in its sections."""
    merged: dict[str, Question] = {}
    for n, page in pages.items():
        for question in page.questions:
            before = merged.get(question.id, replace(question, answer=[], sections=[]))
            sections = {section.id: section for section in before.sections}
            for section in question.sections:
                panels = {f"{n} {label}".strip(): blocks for label, blocks in section.panels.items()}
                known = sections[section.id].panels if section.id in sections else {}
                sections[section.id] = replace(section, panels={**known, **panels})
            answer = [*before.answer, *(_of_side(n, block) for block in question.answer)]
            merged[question.id] = replace(before, answer=answer, sections=list(sections.values()))
    return list(merged.values())


def _of_side(n: str, block: Block) -> Block:
    if not isinstance(block, Lines):
        return replace(block, title=f"{n}: {block.title}")
    if block.is_copied:
        return replace(block, lines=[f"# {n}", *block.lines])
    return replace(block, lines=[f"{n}: {line}" for line in block.lines])


# ── how they differ ─────────────────────────────────────────────────────────────────────────────────────


def _compared(deployed: _Deployed) -> tuple[Comparisons | None, list[str]]:
    """The verdicts, and what speaks against comparing the two at all."""
    if len(deployed) < len(SIDES):
        return None, ["Not compared: a side has no measurements."]
    first, second = (one.report for one in deployed.values())
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


def _sentences(compared: Comparisons | None) -> Iterator[str]:
    """The verdict at each batch size."""
    for row in compared.rows if compared is not None else ():
        ratio, verdict = row.comparison.ratio, row.comparison.verdict.value
        if ratio is None:
            yield f"Batch {row.batch}: {verdict}."
            continue
        value, half_width = speed(ratio)
        yield f"B is {value:.2f} ± {half_width:.2f} times as fast as A at batch {row.batch}: {verdict}."


def _verdicts(compared: Comparisons | None) -> Iterator[Block]:
    """The verdicts with their figures, and why each is what it is."""
    if compared is not None:
        yield from (block for block in comparison_view(compared).blocks if isinstance(block, Table))
        yield Lines(grouped(reasons_of(compared)))


def _turns(sides: Mapping[str, Collected]) -> Iterator[Step]:
    """Where both have engines of one backend: a process loads no other."""
    backends = {side.manifest.engines[0].plan.backend if side.manifest else None for side in sides.values()}
    if len(backends) == 1 and None not in backends:
        why = "Two results that were measured apart may differ by the machine's state."
        command = f"trtopt compare {' '.join(shlex.quote(side.folder) for side in sides.values())}"
        yield Step("Let the engines take turns", why, command)


def _curves(deployed: _Deployed) -> Iterator[Chart]:
    rows = [
        {"series": n, "batch": point.batch, "p50": p50_of(point), "rate": rate_of(point)}
        for n, one in deployed.items()
        for point in sampled(one.report)
    ]
    return curves_over_batches(rows, _CURVES, scale=_SCALE)


def _kinds(sides: Mapping[str, Collected]) -> Iterator[Chart]:
    """The kinds of layers of the largest batch size that both have profiled."""
    first, second = (
        {one.batch: one for report in side.profiles.values() for one in report.engines if one.sum_ms}
        for side in sides.values()
    )
    if not (common := first.keys() & second.keys()):
        return
    batch = max(common)
    rows: list[Row] = [
        {"side": n, "kind": group.key, "ms": group.ms}
        for n, engines in zip(sides, (first, second), strict=True)
        for group in engines[batch].by_kind
    ]
    order = list(dict.fromkeys(row["kind"] for row in sorted(rows, key=lambda row: -row["ms"])))[:_KINDS]
    side = coloured("side", "side", scale=_SCALE)
    drawn = [row for row in rows if row["kind"] in order]
    yield times(f"Time by kind of layer at batch {batch}", drawn, "kind", order, side)


def _settings(facts: Mapping[str, Mapping[str, str]]) -> Block:
    """What of machine, versions, contract and builder settings differs."""
    a, b = facts.values()
    differing = [one for one in dict.fromkeys((*a, *b)) if a.get(one) != b.get(one)]
    if not differing:
        return Lines(["Machine, versions, contract and builder settings are the same."])
    columns: list[Column[str]] = [Column("what", str), Column("A", a.get), Column("B", b.get)]
    return table("What differs", columns, differing)


def _facts_of(side: Collected, deployed: Deployment | None) -> dict[str, str]:
    environments = (report.environment for report in side.reports.values())
    found = next((record_facts(one) for one in environments if one is not None), {})
    if deployed is not None:
        found["contract"] = deployed.report.points[0].latency.contract.name
    if side.manifest is not None:
        engine = side.manifest.engines[0]
        found["built by"] = str(engine.plan.backend)
        found["types in the graph"] = ", ".join(side.manifest.onnx.types)
        found |= {f"builder: {what}": fact for what, fact in engine.builder_config.items()}
    return found
