"""Two folders of one model side by side: A is the baseline, B is compared with it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trtopt.errors import UsageError
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.measure.analysis.result_comparison import compare_reports
from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.summaries import percentile
from trtopt.records import BenchPoint, BenchReport, Collected, EngineDifference, EngineProfile
from trtopt.report.bench import trust_lines
from trtopt.report.comparison import change_of, reasons_of, speed
from trtopt.report.html.charts import LEGEND, SIDES, listed, name, quantity, shares, tooltip_fields, vega_lite
from trtopt.report.html.deployment import deployment_of, model_name, p50_of, rate_of, sampled
from trtopt.report.html.page import (
    Block,
    Chart,
    Command,
    Figure,
    Figures,
    Mark,
    Missing,
    Page,
    Question,
    Section,
    Step,
    Steps,
    says_something,
)
from trtopt.report.html.sections import commands_of, differences_section, file_notes, machine_facts, typed
from trtopt.report.html.summary import facts, mark_of
from trtopt.report.notes import grouped
from trtopt.report.view import Column, Lines, columns_of, table

_LEVELS = ("good", "caution", "bad")
_KINDS = 10
_NAMES = ("A", "B")
_SCALE = {"domain": list(_NAMES), "range": list(SIDES)}


def pair_page(
    a: Collected, b: Collected, differences: Sequence[EngineDifference], argv: Sequence[str] = ()
) -> Page:
    """Two folders on one page; `differences` are those of engines that both have profiled."""
    sides = (a, b)
    compared, notes = _compared(a, b)
    marks = [mark_of(side) for side in sides]
    worst = max(marks, key=lambda mark: _LEVELS.index(mark.level))
    named = {mark.text for mark in marks}
    both = "; ".join(f"{n} {m.text}" for n, m in zip(_NAMES, marks, strict=True))
    text = worst.text if len(named) == 1 else both
    title = model_name(a) if model_name(a) == model_name(b) else f"{model_name(a)}, {model_name(b)}"
    rows = _rows(sides)
    reasons = grouped(reasons_of(compared)) if compared is not None else []
    layers = differences_section("Layer by layer", differences)
    difference: list[Section] = [layers] if layers is not None else []
    questions = [
        Question("fast", "How fast are they?", _by_batch(sides, compared), []),
        Question("why", "Where do they differ?", _where(sides), difference),
        Question("accurate", "In which types did they run?", list(_types(sides)), []),
        Question("trust", "Can I trust it?", [Lines([*reasons, *_trust(sides)])], []),
        Question("made", "How were they made?", list(_made(sides, argv)), []),
    ]
    return Page(
        title=f"{title}: {a.name} (A) and {b.name} (B)",
        facts=[f"{n}: {', '.join(facts(side))}" for n, side in zip(_NAMES, sides, strict=True)],
        mark=Mark(worst.level, text),
        answer=[*_answer(sides, compared), Lines(notes, are_warnings=True)],
        charts=list(_charts(rows)),
        questions=[one for one in questions if one.sections or says_something(one.answer)],
        missing=[] if differences else [Missing("layers: both folders need a profile at one batch size")],
    )


def _result_of(side: Collected) -> BenchReport | None:
    """The file that the side's deployed point is from."""
    deployed = deployment_of(side)
    return deployed.report if deployed is not None else None


def _compared(a: Collected, b: Collected) -> tuple[Comparisons | None, list[str]]:
    """The verdicts, and what speaks against comparing the two at all."""
    first, second = _result_of(a), _result_of(b)
    if first is None or second is None:
        return None, ["Not compared: a side has no measurements."]
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


def _answer(sides: Sequence[Collected], compared: Comparisons | None) -> Iterator[Block]:
    deployed = [deployment_of(side) for side in sides]
    figures = [
        Figure(
            f"{n} at batch {one.point.batch}" + (f", {one.precision}" if one.precision else ""),
            f"{rate_of(one.point) or 0.0:,.0f}",
            f"{p50_of(one.point):.3f} ms median",
            "samples/s",
        )
        for n, one in zip(_NAMES, deployed, strict=True)
        if one is not None
    ]
    yield Figures(figures)
    yield Lines(list(_verdicts(compared)) if compared is not None else [])
    if compared is not None and _can_take_turns(sides):
        why = "Two results that were measured apart may differ by the machine's state."
        command = f"trtopt compare {' '.join(shlex.quote(side.folder) for side in sides)}"
        yield Steps([Step("Let the engines take turns", why, command)])


def _can_take_turns(sides: Sequence[Collected]) -> bool:
    """Whether both have engines, of one backend: one process loads no other."""
    backends = {side.manifest.engines[0].plan.backend if side.manifest else None for side in sides}
    return len(backends) == 1 and None not in backends


def _verdicts(compared: Comparisons) -> Iterator[str]:
    for row in compared.rows:
        ratio, verdict = row.comparison.ratio, row.comparison.verdict.value
        if ratio is None:
            yield f"Batch {row.batch}: {verdict}."
            continue
        value, half_width = speed(ratio)
        yield f"B is {value:.2f} ± {half_width:.2f} times as fast as A at batch {row.batch}: {verdict}."


# ── how fast ────────────────────────────────────────────────────────────────────────────────────────────


def _points(side: Collected) -> dict[int, BenchPoint]:
    report = _result_of(side)
    return {point.batch: point for point in sampled(report)} if report is not None else {}


def _rows(sides: Sequence[Collected]) -> list[dict[str, Any]]:
    return [
        {"side": n, "batch": batch, "p50": p50_of(point), "rate": rate_of(point)}
        for n, side in zip(_NAMES, sides, strict=True)
        for batch, point in _points(side).items()
    ]


def _charts(rows: Sequence[dict[str, Any]]) -> Iterator[Chart]:
    for title, field, unit in (("Median latency", "p50", "ms"), ("Throughput", "rate", "samples/s")):
        shown = [row for row in rows if row[field] is not None]
        if shown:
            text = listed([f"{row['side']}, batch {row['batch']}: {row[field]:,.4g} {unit}" for row in shown])
            encoding = {
                "x": {
                    "field": "batch",
                    "type": "ordinal",
                    "title": "batch size, samples",
                    "axis": {"labelAngle": 0},
                },
                "xOffset": {"field": "side", "type": "nominal", "sort": list(_NAMES)},
                "y": quantity(field, f"{title.lower()}, {unit}"),
                "color": name("side", scale=_SCALE, legend=LEGEND),
                "tooltip": tooltip_fields(("side", "", ""), ("batch", "batch", "d"), (field, unit, ",.4~f")),
            }
            yield Chart(title, vega_lite(shown, mark="bar", encoding=encoding), text, height=210)


def _by_batch(sides: Sequence[Collected], compared: Comparisons | None) -> list[Block]:
    points = [_points(side) for side in sides]
    verdicts = {row.batch: row.comparison for row in compared.rows} if compared is not None else {}

    def each(of: Callable[[BenchPoint], float | None]) -> Callable[[int], list[float | None]]:
        return lambda batch: [of(side[batch]) if batch in side else None for side in points]

    columns: list[Column[int]] = [
        Column("batch", lambda batch: batch, ""),
        *columns_of([f"{side} p50 ms" for side in _NAMES], each(p50_of), ".3f"),
        *columns_of([f"{side} p99 ms" for side in _NAMES], each(_p99_of), ".3f"),
        *columns_of([f"{side} samples/s" for side in _NAMES], each(rate_of), ",.0f"),
        Column("B's latency against A's", lambda batch: change_of(verdicts.get(batch))),
        Column("verdict", lambda batch: verdicts[batch].verdict.value if batch in verdicts else None),
    ]
    title = f"By batch size; a difference below {THRESHOLD:.0%} counts as none"
    batches = sorted({*points[0], *points[1]})
    return [table(title, columns, batches, face="page")] if batches else []


def _p99_of(point: BenchPoint) -> float | None:
    return percentile(point.latency.samples.latency_ms, 99.0)


# ── where they differ ───────────────────────────────────────────────────────────────────────────────────


def _engines(side: Collected) -> dict[int, EngineProfile]:
    return {one.batch: one for report in side.profiles.values() for one in report.engines}


def _both(sides: Sequence[Collected]) -> tuple[EngineProfile, EngineProfile] | None:
    """The profiles of the largest batch size that both have."""
    first, second = (_engines(side) for side in sides)
    common = sorted(
        batch for batch in first.keys() & second.keys() if first[batch].sum_ms and second[batch].sum_ms
    )
    return (first[common[-1]], second[common[-1]]) if common else None


def _where(sides: Sequence[Collected]) -> list[Block]:
    both = _both(sides)
    if both is None:
        return []
    kinds: dict[str, float] = {}
    for engine in both:
        for group in engine.by_kind:
            kinds[group.key] = max(kinds.get(group.key, 0.0), group.ms)
    order = sorted(kinds, key=lambda kind: -kinds[kind])[:_KINDS]
    rows = [
        {"side": n, "kind": group.key, "ms": group.ms}
        for n, engine in zip(_NAMES, both, strict=True)
        for group in engine.by_kind
        if group.key in order
    ]
    encoding = {
        "y": name("kind", sort=order, axis={"labelLimit": 180}),
        "yOffset": {"field": "side", "type": "nominal", "sort": list(_NAMES)},
        "x": quantity("ms", "time, ms"),
        "color": name("side", scale=_SCALE, legend=LEGEND),
        "tooltip": tooltip_fields(("side", "", ""), ("kind", "kind", ""), ("ms", "ms", ".4f")),
    }
    text = listed([f"{row['side']}, {row['kind']}: {row['ms']:.4f} ms" for row in rows])
    title = f"Time by kind of layer at batch {both[0].batch}"
    return [Chart(title, vega_lite(rows, mark="bar", encoding=encoding), text, height=90 + 30 * len(order))]


def _types(sides: Sequence[Collected]) -> Iterator[Block]:
    rows = [
        {"what": f"{n}, batch {batch}", "type": dtype, "share": share}
        for n, side in zip(_NAMES, sides, strict=True)
        for batch, engine in sorted(_engines(side).items())
        for dtype, share in (engine.receipt.time_ran or {}).items()
    ]
    if rows:
        yield shares("Types that ran, as shares of the time", rows)


# ── trust and origin ────────────────────────────────────────────────────────────────────────────────────


def _trust(sides: Sequence[Collected]) -> Iterator[str]:
    for n, side in zip(_NAMES, sides, strict=True):
        for report in side.results.values():
            yield from (f"{n}: {line}" for line in trust_lines(report))
        yield from (f"{n}: {line}" for line in file_notes(side))


def _made(sides: Sequence[Collected], argv: Sequence[str]) -> Iterator[Block]:
    a, b = (_facts_of(side) for side in sides)
    names = dict.fromkeys((*a, *b))
    what: Column[str] = Column("what", str)
    if differing := [one for one in names if a.get(one) != b.get(one)]:
        yield table("What differs", [what, Column("A", a.get), Column("B", b.get)], differing)
    if alike := [one for one in names if a.get(one) == b.get(one)]:
        yield table("What is the same", [what, Column("A and B", a.get)], alike)
    for n, side in zip(_NAMES, sides, strict=True):
        for block in commands_of(side):
            yield Command(block.text, f"{n}: {block.about}")
    if argv:
        yield Command(typed(argv), "this page")


def _facts_of(side: Collected) -> dict[str, str]:
    """Machine, versions, builder settings and contract, by name."""
    found: dict[str, str] = {}
    for report in side.reports.values():
        if report.environment is not None:
            found |= machine_facts(report.environment)
            break
    result = _result_of(side)
    if result is not None:
        found["contract"] = result.points[0].latency.contract.name
    if side.manifest is not None:
        engine = side.manifest.engines[0]
        found["built by"] = str(engine.plan.backend)
        found["types in the graph"] = ", ".join(side.manifest.onnx.types)
        found |= {f"builder: {what}": fact for what, fact in engine.builder_config.items()}
    return found
