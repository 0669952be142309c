"""Two folders of one model side by side: A is the baseline, B is compared with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from trtopt.errors import UsageError
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.measure.analysis.result_comparison import compare_reports
from trtopt.measure.contracts import THRESHOLD
from trtopt.records import Collected, EngineDifference, EngineProfile
from trtopt.report.bench import bench_view, trust_lines
from trtopt.report.comparison import comparison_view, reasons_of, speed
from trtopt.report.html.answer import (
    Deployment,
    deployment_of,
    facts,
    mark_of,
    model_name,
    p50_of,
    precision_of,
    rate_of,
    sampled,
)
from trtopt.report.html.charts import LEGEND, SIDES, Channel, Row, curves_over_batches, shares, times
from trtopt.report.html.folder import (
    commands_of,
    difference_section,
    file_notes,
    record_facts,
    result_name,
    titled,
    typed,
)
from trtopt.report.html.page import Block, Chart, Figure, Mark, Page, Question, Step, with_data
from trtopt.report.notes import grouped
from trtopt.report.view import Column, Lines, Table, table

_LEVELS = ("good", "caution", "bad")
_KINDS = 10
_UNLIKE = "Layers are compared where both folders have a profile at one batch size."
_SCALE = {"domain": list(SIDES), "range": list(SIDES.values())}
_CURVES = (("Median latency", "p50", "ms"), ("Throughput", "rate", "samples/s"))
_Sides = dict[str, Collected]
_Deployed = dict[str, Deployment]


def pair_page(
    a: Collected, b: Collected, differences: Sequence[EngineDifference], argv: Sequence[str] = ()
) -> Page:
    """Two folders on one page; `differences` are those of engines that both have profiled."""
    sides: _Sides = {"A": a, "B": b}
    deployed = {n: one for n, side in sides.items() if (one := deployment_of(side)) is not None}
    compared, notes = _compared(deployed)
    marks = {n: mark_of(side) for n, side in sides.items()}
    level = max((mark.level for mark in marks.values()), key=_LEVELS.index)
    texts = dict.fromkeys(mark.text for mark in marks.values())
    both = "; ".join(f"{n} {mark.text}" for n, mark in marks.items())
    titles = dict.fromkeys(map(model_name, sides.values()))
    reasons = grouped(reasons_of(compared)) if compared is not None else []
    questions, _ = with_data(
        [
            Question("fast", "How fast are they?", list(_figures(deployed, compared))),
            Question(
                "why",
                "Where do they differ?",
                [*_where(sides), Lines([] if differences else [_UNLIKE])],
                [difference_section("Layer by layer", differences)],
            ),
            Question("accurate", "In which types did they run?", list(_types(sides))),
            Question("trust", "Can I trust it?", [Lines([*reasons, *_trust(sides)])]),
            Question("made", "How were they made?", list(_made(sides, deployed, argv))),
        ]
    )
    return Page(
        title=f"{', '.join(titles)}: {a.name} (A) and {b.name} (B)",
        facts=[f"{n}: {', '.join(facts(side))}" for n, side in sides.items()],
        mark=Mark(level, both if len(texts) > 1 else next(iter(texts))),
        figures=[
            Figure(
                ", ".join(
                    filter(None, (f"{n} at batch {one.point.batch}", precision_of(sides[n], one.point.batch)))
                ),
                f"{rate_of(one.point) or 0.0:,.0f}",
                f"{p50_of(one.point):.3f} ms median",
                "samples/s",
            )
            for n, one in deployed.items()
        ],
        answer=[Lines(list(_verdicts(compared))), Lines(notes, are_warnings=True)],
        steps=list(_turns(sides)) if compared is not None else [],
        charts=list(_charts(deployed)),
        questions=questions,
    )


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


def _verdicts(compared: Comparisons | None) -> Iterator[str]:
    """Of each batch size, as people say it."""
    for row in compared.rows if compared is not None else ():
        ratio, verdict = row.comparison.ratio, row.comparison.verdict.value
        if ratio is None:
            yield f"Batch {row.batch}: {verdict}."
            continue
        value, half_width = speed(ratio)
        yield f"B is {value:.2f} ± {half_width:.2f} times as fast as A at batch {row.batch}: {verdict}."


def _turns(sides: _Sides) -> Iterator[Step]:
    """Where both have engines of one backend: a process loads no other."""
    backends = {side.manifest.engines[0].plan.backend if side.manifest else None for side in sides.values()}
    if len(backends) == 1 and None not in backends:
        why = "Two results that were measured apart may differ by the machine's state."
        command = f"trtopt compare {' '.join(shlex.quote(side.folder) for side in sides.values())}"
        yield Step("Let the engines take turns", why, command)


# ── how fast, and where they differ ─────────────────────────────────────────────────────────────────────


def _figures(deployed: _Deployed, compared: Comparisons | None) -> Iterator[Block]:
    """The verdicts, then all figures of both."""
    if compared is not None:
        yield from (block for block in comparison_view(compared).blocks if isinstance(block, Table))
    for n, one in deployed.items():
        yield titled(f"{n}, {result_name(one.file, one.report)}", bench_view(one.report))


def _charts(deployed: _Deployed) -> Iterator[Chart]:
    rows = [
        {"series": n, "batch": point.batch, "p50": p50_of(point), "rate": rate_of(point)}
        for n, one in deployed.items()
        for point in sampled(one.report)
    ]
    return curves_over_batches(rows, _CURVES, scale=_SCALE)


def _engines(side: Collected) -> dict[int, EngineProfile]:
    return {one.batch: one for report in side.profiles.values() for one in report.engines}


def _where(sides: _Sides) -> Iterator[Block]:
    """The kinds of layers of the largest batch size that both have profiled."""
    first, second = map(_engines, sides.values())
    common = [batch for batch in first.keys() & second.keys() if first[batch].sum_ms and second[batch].sum_ms]
    if not common:
        return
    batch = max(common)
    rows: list[Row] = [
        {"side": n, "kind": group.key, "ms": group.ms}
        for n, engines in zip(sides, (first, second), strict=True)
        for group in engines[batch].by_kind
    ]
    order = list(dict.fromkeys(row["kind"] for row in sorted(rows, key=lambda row: -row["ms"])))[:_KINDS]
    side = Channel("side", "side", more={"title": None, "scale": _SCALE, "legend": LEGEND})
    drawn = [row for row in rows if row["kind"] in order]
    yield times(f"Time by kind of layer at batch {batch}", drawn, "kind", order, side)


def _types(sides: _Sides) -> Iterator[Block]:
    rows = [
        {"what": f"{n}, batch {batch}", "type": dtype, "share": share}
        for n, side in sides.items()
        for batch, engine in sorted(_engines(side).items())
        for dtype, share in (engine.receipt.time_ran or {}).items()
    ]
    if rows:
        yield shares("Types that ran, as shares of the time", rows)


# ── trust and origin ────────────────────────────────────────────────────────────────────────────────────


def _trust(sides: _Sides) -> Iterator[str]:
    for n, side in sides.items():
        lines = [line for report in side.results.values() for line in trust_lines(report)]
        yield from (f"{n}: {line}" for line in (*lines, *file_notes(side)))


def _made(sides: _Sides, deployed: _Deployed, argv: Sequence[str]) -> Iterator[Block]:
    """Machine, versions, builder settings and contract, then the commands."""
    a, b = (_facts_of(side, deployed.get(n)) for n, side in sides.items())
    names = dict.fromkeys((*a, *b))
    what: Column[str] = Column("what", str)
    differing = [one for one in names if a.get(one) != b.get(one)]
    yield table("What differs", [what, Column("A", a.get), Column("B", b.get)], differing)
    alike = [one for one in names if a.get(one) == b.get(one)]
    yield table("What is the same", [what, Column("A and B", a.get)], alike)
    yield from (commands_of(side, side=f"{n}: ") for n, side in sides.items())
    yield Lines(["# this page", typed(argv)] if argv else [], is_copied=True)


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
