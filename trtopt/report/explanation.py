"""Why one engine is slower or faster than another: a waterfall, its causes, what to try, what changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtopt.records import Cause, EngineDifference, Explanation, Replacement, Trial
from trtopt.report.charts import Channel, Datum, chart, coloured, listed, marks
from trtopt.report.view import (
    Block,
    Chart,
    Column,
    Late,
    Lines,
    View,
    cells_of,
    names_text,
    plain,
    table,
    view_of,
)

_TOP, _TOP_REPLACED = 10, 5
_SHOWN = 0.005
"""The waterfall has the causes that change A's latency by so much; the others are one step."""


@view_of.register
def explanation_view(found: Explanation) -> View:
    """Each batch size in turn; a row for each cause."""
    outcome = "; ".join(f"batch {one.batch}: {_change_text(one)}" for one in found.engines)
    rows = (
        {"batch": one.batch} | cells_of(cause) | {"nodes": ", ".join(cause.nodes)}
        for one in found.engines
        for cause in one.causes
    )
    sides = Lines([f"A {found.a}, B {found.b}, on {found.device}"])
    blocks = Late(lambda: (sides, *(block for one in found.engines for block in difference_blocks(one))))
    return View("", blocks, plain(found.notes), outcome, rows)


def difference_blocks(found: EngineDifference) -> Iterator[Block]:
    """Causes, which add up to the change of the latency, what may save their cost, and replaced parts."""
    causes: list[Column[Cause]] = [
        Column("cost ms", lambda one: one.cost_ms, "+.4f"),
        Column("of A", lambda one: one.cost_ms / found.a_ms if found.a_ms else None, "+.1%"),
        Column("A ms", lambda one: one.a_ms, ".4f"),
        Column("B ms", lambda one: one.b_ms, ".4f"),
        Column(found.parts, lambda one: f"{one.a_parts} → {one.b_parts}" * bool(one.a_parts + one.b_parts)),
        Column("cause", lambda one: one.cause, fit="fold"),
        Column("ONNX nodes", lambda one: names_text(one.nodes), fit="cut"),
    ]
    remedies: list[Column[Cause]] = [
        Column("saves ms", lambda one: one.cost_ms, ".4f"),
        Column("of what", lambda one: one.cause, fit="fold"),
        Column("what to try", lambda one: one.remedy or "none known", fit="fold"),
    ]
    trials: list[Column[Trial]] = [
        Column("predicted ms", lambda one: one.predicted_ms, ".4f"),
        Column("saved ms", lambda one: one.gain_ms, "+.4f"),
        Column("remedy, its causes, what came of it", _trial, fit="fold"),
    ]
    yield waterfall(found)
    title = f"batch {found.batch}: A {found.a}, B {found.b}: {_change_text(found)}"
    yield table(title, causes, found.causes, top=_TOP)
    costly = [one for one in found.causes if one.cost_ms > _SHOWN * found.a_ms]
    if costly:
        yield table("what B loses, and may gain at most by a change", remedies, costly)
    if found.trials:
        yield table("remedies tried in turns with B", trials, found.trials)
    yield from replaced_blocks(found, f"{found.parts} that were replaced")


def replaced_blocks(found: EngineDifference, title: str) -> Iterator[Block]:
    """What both engines have for the same nodes: fusions lost and won, for one; the costliest first."""
    columns: list[Column[Replacement]] = [
        Column("A ms", lambda one: one.a_ms, ".4f", width=6),
        Column("B ms", lambda one: one.b_ms, ".4f", width=6),
        Column("cost ms", lambda one: one.cost_ms, "+.4f", width=7),
        Column("blocks", lambda one: one.blocks, "", width=6),
        Column(f"ONNX nodes: {found.parts} in A → in B", replaced_text, fit="fold"),
    ]
    if found.replaced:
        yield table(title, columns, found.replaced, top=_TOP_REPLACED)


def _change_text(found: EngineDifference) -> str:
    gap = found.b_ms - found.a_ms
    share = f", {gap / found.a_ms:+.1%}" if found.a_ms else ""
    return f"{found.a_ms:.4f} → {found.b_ms:.4f} ms ({gap:+.4f} ms{share})"


def _trial(one: Trial) -> str:
    """Predictions are what the causes cost: a remedy saves that at most."""
    came = f"not tried: {one.reason}" if one.against_b is None else f"{one.against_b.verdict} against B"
    if one.ms is not None and one.b_ms is not None:
        came += f", {one.b_ms:.4f} → {one.ms:.4f} ms" + (f" (A {one.a_ms:.4f})" if one.a_ms else "")
    return f"{one.option or 'no option'}, for {'; '.join(one.causes)}: {came}"


def replaced_text(one: Replacement) -> str:
    """Its nodes, and what both sides have for them, without the arguments of C++ templates."""
    sides = ([re.sub("<.*", "<…>", name) for name in side] for side in (one.a, one.b))
    a, b = (" + ".join(dict.fromkeys(side)) or "nothing" for side in sides)
    return f"{names_text(one.nodes) or 'no known node'}: {a} → {b}"


def waterfall(found: EngineDifference) -> Chart:
    """From A's latency to B's, a step for each cause."""
    steps = [one for one in found.causes if abs(one.cost_ms) > _SHOWN * found.a_ms]
    reached = found.a_ms
    rows: list[Datum] = [{"step": "A", "kind": "latency", "from": 0.0, "to": reached, "ms": reached}]
    others = found.b_ms - found.a_ms - sum(one.cost_ms for one in steps)
    for name, cost in (*((one.cause, one.cost_ms) for one in steps), ("all others", others)):
        direction = "B is slower" if cost > 0 else "B is faster"
        rows.append({"step": name, "kind": direction, "from": reached, "to": reached + cost, "ms": cost})
        reached += cost
    rows.append({"step": "B", "kind": "latency", "from": 0.0, "to": found.b_ms, "ms": found.b_ms})
    step = Channel("step", more={"title": None, "sort": None, "axis": {"labelLimit": 260}})
    ms = Channel("ms", "ms", "+.4f")
    start, end = (Channel(name, name, ".4f", "latency, ms") for name in ("from", "to"))
    colours = {"latency": "#9aa4ae", "B is slower": "#e07f7f", "B is faster": "#68b87e"}
    kind = coloured("kind", scale={"domain": [*colours], "range": [*colours.values()]})
    return chart(
        f"From A to B at batch {found.batch}, by cause",
        rows,
        [step, ms, start, end],
        marks("bar", y=step, x=start, x2={"field": "to"}, color=kind),
        text=listed([f"{row['step']}: {row['ms']:+.4f} ms" for row in rows]),
        height=70 + 22 * len(rows),
    )
