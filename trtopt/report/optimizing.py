"""The result of `trtopt optimize` as text: one table, one verdict."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.printable import counted
from trtopt.records import Trust
from trtopt.records.tune import Optimized, OptimizedPoint
from trtopt.report.notes import Note, Severity, plain
from trtopt.report.tables import plain_table, shown


def optimized_summary(found: Optimized) -> RenderableType:
    """The verdict, the batch sizes and the accuracy."""
    columns = ("batch", "precision", f"p{found.percentile:g} ms", "samples/s")
    table = plain_table(*columns, *([found.goal] if found.goal else []), left=("precision",))
    for point in found.points:
        goal = ["met" if point.meets_goal else "not met"] if found.goal else []
        table.add_row(
            f"{point.batch}{point.trust.mark}",
            point.precision or "the graph's",
            shown(point.latency_ms, ".3f"),
            f"{point.samples_per_s:,.0f}",
            *goal,
        )
    return Group(Text(verdict_line(found)), table, Text(accuracy_line(found)))


def optimized_notes(found: Optimized) -> list[Note]:
    """What to know about the result, and where to look next."""
    notes = list(found.notes)
    if few := [str(point.batch) for point in found.points if point.latency_ms is None]:
        notes.append(
            f"p{found.percentile:g} needs more samples at batch {', '.join(few)}: give a longer --duration"
        )
    if found.findings:
        notes.append(f"{counted(found.findings, 'finding')} by lint: trtopt lint {found.model}")
    doubts = [
        Note(Severity.DOUBT, f"{trust.value} ({trust.mark})", point.batch, "`trtopt bench` shows why")
        for trust in (Trust.NONE, Trust.UNSTEADY)
        for point in found.points
        if point.trust is trust
    ]
    return [*doubts, *plain(notes)]


def verdict_line(found: Optimized) -> str:
    """What to deploy, or what is not met."""
    where = f"{found.backend} on {found.device}"
    if not found.is_accurate:
        return f"NOT MET on {where}: {'; '.join(dict.fromkeys(one.text for one in found.violations))}"
    if (best := found.best) is not None:
        keeps = f", keeps {found.goal}" if found.goal else ""
        doubt = "" if best.trust is Trust.FULL else f", which is {best.trust.value}"
        return (
            f"deploy {found.folder} at batch {best.batch} on {where}: {_figures(found, best)}{keeps}{doubt}"
        )
    nearest = min(found.points, key=lambda point: point.latency_ms or float("inf"))
    return (
        f"NOT MET on {where}: no batch size keeps {found.goal}; "
        f"nearest is batch {nearest.batch}: {_figures(found, nearest)}"
    )


def _figures(found: Optimized, point: OptimizedPoint) -> str:
    rate, p = f"{point.samples_per_s:,.0f} samples/s", f"p{found.percentile:g}"
    return (
        f"{rate}, {p} needs more samples"
        if point.latency_ms is None
        else f"{rate}, {p} {point.latency_ms:.3f} ms"
    )


def accuracy_line(found: Optimized) -> str:
    """The cosine against the model, and on what."""
    return (
        f"accuracy: cosine {found.cosine:.5f}, at least {found.min_cosine:g} required, "
        f"against {found.model} on {counted(found.samples, 'sample')} of {found.data}"
    )
