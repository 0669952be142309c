"""A sweep as a page: curves over the batch size, the Pareto front, the best point per latency bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from trtopt.measure.analysis.sweep_points import Choices, choices_of
from trtopt.records import SweepPoint, SweepReport, Trust
from trtopt.report.html.charts import (
    LEGEND,
    curves_over_batches,
    listed,
    log,
    name,
    quantity,
    tooltip_fields,
    vega_lite,
)
from trtopt.report.html.page import (
    Block,
    Chart,
    Command,
    Figure,
    Figures,
    Mark,
    Page,
    Question,
    Section,
    panel,
    says_something,
)
from trtopt.report.html.sections import date_text, typed
from trtopt.report.notes import Severity
from trtopt.report.sweep import at_lengths, bests_table, latency_name, points_table, sweep_notes
from trtopt.report.view import Lines

_MIB = 2**20
_CURVES = (
    ("Median latency of one query in flight", "p50", "ms"),
    ("p99 latency of one query in flight", "p99", "ms"),
    ("Throughput", "rate", "samples/s"),
    ("Samples per joule", "per_joule", "samples/J"),
    ("Memory of one context", "mib", "MiB"),
)


def sweep_page(report: SweepReport, argv: Sequence[str] = ()) -> Page:
    """Everything of a sweep; `argv` is the command that makes the page."""
    groups = choices_of(report)
    terms = report.terms
    points = points_table(report)
    fronts = [
        panel(
            at_lengths(one.axes).removeprefix(" at "), [_front_chart(report, one), bests_table(report, one)]
        )
        for one in groups
    ]
    curves = list(curves_over_batches([_figures(point) for point in report.measured], _CURVES))
    made = [
        Command(typed(line), about) for line, about in ((report.argv, "sweep"), (argv, "this page")) if line
    ]
    sections = [Section("curves", "Curves over the batch size", [panel("", curves)])] if curves else []
    if fronts:
        sections.append(Section("front", "Pareto front, and the best under each latency", fronts))
    questions = [
        Question("fast", "How fast is each point?", [points], sections),
        Question(
            "trust",
            "Can I trust it?",
            [Lines([*(note.text for note in sweep_notes(report)), *report.notes])],
            [],
        ),
        Question("made", "How was it made?", made, []),
    ]
    return Page(
        title=f"{PurePath(report.model).stem}: sweep",
        facts=[f"{terms.device.name}, {terms.backend}", date_text(report.created)],
        mark=_mark(report),
        answer=_answer(report, groups),
        charts=[_front_chart(report, groups[0])] if groups else [],
        questions=[one for one in questions if one.sections or says_something(one.answer)],
    )


def _mark(report: SweepReport) -> Mark:
    if not report.measured:
        return Mark("caution", "not measured")
    worst = next(trust for trust in Trust if trust in {point.trust for point in report.measured})
    if worst is Trust.FULL:
        return Mark("good", worst.value)
    count = sum(point.trust is worst for point in report.measured)
    text = f"{count} of {len(report.measured)} points {worst.value}"
    return Mark("bad" if worst is Trust.NONE else "caution", text)


def _answer(report: SweepReport, groups: Sequence[Choices]) -> list[Block]:
    """Of each set of lengths: the knee of the front, the quickest and the busiest point."""
    blocks: list[Block] = []
    for one in groups:
        chosen = one.knee or one.front[-1]
        cost = dict(zip((point.key for point in one.points), one.costs_ms, strict=True))[chosen.key]
        latency = latency_name(report)
        why = "the knee of the Pareto front" if one.knee else "the highest throughput"
        blocks.append(
            Figures(
                [
                    Figure(f"deploy{at_lengths(one.axes)}", chosen.label, why),
                    Figure(latency, f"{cost:.3f}", unit="ms"),
                    Figure("throughput", f"{chosen.samples_per_s or 0.0:,.0f}", unit="samples/s"),
                ]
            )
        )
        blocks.append(bests_table(report, one))
    warnings = [note.text for note in sweep_notes(report) if note.severity is not Severity.NOTE]
    return [*blocks, Lines(warnings, are_warnings=True)]


# ── curves ──────────────────────────────────────────────────────────────────────────────────────────────


def _figures(point: SweepPoint) -> dict[str, Any]:
    latency, memory = point.latency, point.memory
    return {
        "batch": point.setting.batch,
        "series": point.label.replace(f"batch{point.setting.batch}", "", 1).strip()
        or "the graph's precision",
        "p50": latency.p50_ms if latency else None,
        "p99": latency.p99_ms if latency else None,
        "rate": point.samples_per_s,
        "per_joule": point.samples_per_joule,
        "mib": memory.peak_bytes / _MIB if memory else None,
    }


# ── the front ───────────────────────────────────────────────────────────────────────────────────────────


def _place(point: SweepPoint, choices: Choices) -> str:
    if point == choices.knee:
        return "knee"
    if point in choices.front:
        return "on the front"
    return "beaten" if point.trust is Trust.FULL else point.trust.value


def _front_chart(report: SweepReport, choices: Choices) -> Chart:
    latency = latency_name(report)
    rows = [
        {
            "point": point.label,
            "ms": cost,
            "rate": point.samples_per_s,
            "what": _place(point, choices),
            "on_front": point in choices.front,
        }
        for point, cost in zip(choices.points, choices.costs_ms, strict=True)
    ]
    encoding = {
        "x": quantity("ms", f"{latency}, ms (log scale)", **log()),
        "y": quantity("rate", "throughput, samples/s (log scale)", **log()),
        "tooltip": tooltip_fields(
            ("point", "point", ""), ("ms", f"{latency} ms", ".4f"), ("rate", "samples/s", ",.4~f")
        ),
    }
    line = {
        "mark": {"type": "line"},
        "transform": [{"filter": "datum.on_front"}],
        "encoding": encoding,
    }
    dots = {
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {**encoding, "color": name("what", sort=None, legend=LEGEND)},
    }
    text = listed([f"{row['point']}: {row['ms']:.3f} ms, {row['rate']:,.0f} samples/s" for row in rows])
    spec = vega_lite(rows, layer=[line, dots])
    return Chart(f"Throughput against {latency}{at_lengths(choices.axes)}", spec, text, height=320)
