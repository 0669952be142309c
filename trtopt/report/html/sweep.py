"""A sweep as a page: curves over the batch size, the Pareto front, the best point per latency bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from trtopt.measure.analysis.sweep_points import COLUMNS, Choices, choices_of
from trtopt.records import SweepPoint, SweepReport, Trust
from trtopt.report.html.answer import date_text
from trtopt.report.html.charts import Channel, Row, chart, coloured, curves_over_batches, marks
from trtopt.report.html.folder import commands_of
from trtopt.report.html.page import Block, Chart, Figure, Mark, Page, Question, Section, with_data
from trtopt.report.sweep import at_lengths, bests_table, latency_name, points_table, sweep_notes
from trtopt.report.view import Lines, Severity, mib

_CURVES = (
    ("Median latency of one query in flight", "p50_ms", "ms"),
    ("p99 latency of one query in flight", "p99_ms", "ms"),
    ("Throughput", "samples_per_s", "samples/s"),
    ("Samples per joule", "samples_per_joule", "samples/J"),
    ("Memory of one context", "memory_mib", "MiB"),
)


def sweep_page(report: SweepReport, argv: Sequence[str] = ()) -> Page:
    """Everything of a sweep; `argv` is the command that makes the page."""
    groups, notes = choices_of(report), list(sweep_notes(report))
    curves = list(curves_over_batches([_row(point) for point in report.measured], _CURVES))
    fronts: dict[str, list[Block]] = {
        at_lengths(one.axes).removeprefix(" at "): [_front(report, one), bests_table(report, one)]
        for one in groups
    }
    questions, _ = with_data(
        [
            Question(
                "fast",
                "How fast is each point?",
                [points_table(report)],
                [
                    Section("curves", "Curves over the batch size", {"": curves}),
                    Section("front", "Pareto front, and the best under each latency", fronts),
                ],
            ),
            Question("trust", "Can I trust it?", [Lines([*(note.text for note in notes), *report.notes])]),
            Question("made", "How was it made?", [commands_of({"sweep": report}, argv)]),
        ]
    )
    return Page(
        title=f"{PurePath(report.model).stem}: sweep",
        facts=[f"{report.terms.device.name}, {report.terms.backend}", date_text(report.created)],
        mark=_mark(report),
        figures=[figure for one in groups for figure in _figures(report, one)],
        answer=[
            *(bests_table(report, one) for one in groups),
            Lines([one.text for one in notes if one.severity is not Severity.NOTE], are_warnings=True),
        ],
        charts=[_front(report, one) for one in groups[:1]],
        questions=questions,
    )


def _mark(report: SweepReport) -> Mark:
    found = [point.trust for point in report.measured]
    worst = next((trust for trust in Trust if trust in found), None)
    if worst is None:
        return Mark("caution", "not measured")
    if worst is Trust.FULL:
        return Mark("good", worst.value)
    text = f"{found.count(worst)} of {len(found)} points {worst.value}"
    return Mark("bad" if worst is Trust.NONE else "caution", text)


def _figures(report: SweepReport, choices: Choices) -> Iterator[Figure]:
    """The knee of the front at a set of lengths, else its busiest point."""
    chosen = choices.knee or choices.front[-1]
    cost = next(ms for one, ms in zip(choices.points, choices.costs_ms, strict=True) if one.key == chosen.key)
    why = "the knee of the Pareto front" if choices.knee else "the highest throughput"
    yield Figure(f"deploy{at_lengths(choices.axes)}", chosen.label, why)
    yield Figure(latency_name(report), f"{cost:.3f}", unit="ms")
    yield Figure("throughput", f"{chosen.samples_per_s or 0.0:,.0f}", unit="samples/s")


def _row(point: SweepPoint) -> Row:
    batch = point.setting.batch
    return {
        "batch": batch,
        "series": point.label.replace(f"batch{batch}", "", 1).strip() or "the graph's precision",
        "memory_mib": mib(point.memory.peak_bytes) if point.memory else None,
        **{field: COLUMNS[field](point) for _, field, _ in _CURVES if field in COLUMNS},
    }


def _place(point: SweepPoint, choices: Choices) -> str:
    if point == choices.knee:
        return "knee"
    if point in choices.front:
        return "on the front"
    return "beaten" if point.trust is Trust.FULL else point.trust.value


def _front(report: SweepReport, choices: Choices) -> Chart:
    """Throughput against latency, with a line through the points on the front."""
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
    point, ms = Channel("point", "point"), Channel("ms", "ms", ".3f", f"{latency}, ms", is_log=True)
    rate = Channel("rate", "samples/s", ",.0f", "throughput, samples/s", is_log=True)
    colour = coloured("what", sort=None)
    line = {**marks("line", x=ms, y=rate), "transform": [{"filter": "datum.on_front"}]}
    dots = marks("point", filled=True, size=60, x=ms, y=rate, color=colour)
    title = f"Throughput against {latency}{at_lengths(choices.axes)}"
    return chart(title, rows, [point, ms, rate], line, dots, height=320)
