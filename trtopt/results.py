"""What results show of themselves: a line for `repr`, the command line's text, and rows of figures.

A new result takes one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from trtopt.cli.console import console
from trtopt.measure.analysis.sweep_points import rows_of
from trtopt.measure.statistics.summaries import figures_of
from trtopt.printable import visible
from trtopt.records import (
    BatchPlan,
    BenchPoint,
    BenchReport,
    EngineArtifact,
    Manifest,
    ProfileReport,
    Record,
    SweepReport,
    Tuned,
)
from trtopt.records.base import Cell, Result, Row
from trtopt.records.precision import CastReport, CheckReport, QuantizeReport
from trtopt.records.tune import Optimized
from trtopt.report.bench import bench_view
from trtopt.report.build import build_view
from trtopt.report.comparison import comparison_view
from trtopt.report.planning import plan_view
from trtopt.report.precision import cast_view, check_view, quantize_view
from trtopt.report.profile import profile_view
from trtopt.report.sweep import best_lines, sweep_view
from trtopt.report.tuning import optimized_view, saved, tuned_view, verdict_line
from trtopt.report.view import Lines, View
from trtopt.rewrite import explain
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.workflows.compare.compare import Compared

AnyResult = TypeVar("AnyResult", bound=Result)


def headline(result: Result) -> str:
    """The outcome in a line."""
    return visible(_shown(result).headline(result))


def table(result: Result) -> str:
    """The text that the command line prints, without colours."""
    written = StringIO()
    console(file=written).print(_shown(result).view(result))
    return written.getvalue().rstrip("\n")


def html(result: Result) -> str:
    """Text and tables for a notebook."""
    return _shown(result).view(result).html()


def rows(result: Result) -> list[Row]:
    """The main figures, with units in their names; what is unknown is None."""
    return list(_shown(result).rows(result))


@dataclass(frozen=True)
class _Shown:
    """How one kind of result is shown; its functions take that kind alone."""

    headline: Callable[[Any], str]
    view: Callable[[Any], View]
    rows: Callable[[Any], Iterable[Row]]


_SHOWN: dict[type[Result], _Shown] = {}


def _shown(result: Result) -> _Shown:
    return _SHOWN[type(result)]


def show(
    kind: type[AnyResult],
    headline: Callable[[AnyResult], str],
    view: Callable[[AnyResult], View],
    rows: Callable[[AnyResult], Iterable[Row]],
) -> None:
    """Declare how results of a kind are shown."""
    _SHOWN[kind] = _Shown(headline, view, rows)


def _figures(record: Record) -> Row:
    """The fields of a record that are one value each."""
    return {name: getattr(record, name) for name in _columns(type(record))}


@lru_cache
def _columns(kind: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if _is_cell(field.type))


def _is_cell(hint: object) -> bool:
    """Whether values of a type fill one cell: numbers, texts, choices of texts, or None."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    members = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in members)
    return all(one in get_args(Cell) or get_origin(one) is Literal for one in members)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# ── builds ──────────────────────────────────────────────────────────────────────────────────────────────


def _manifest_headline(manifest: Manifest) -> str:
    engines = manifest.engines
    backends = ", ".join(dict.fromkeys(engine.plan.backend.name for engine in engines))
    return f"{_counted(len(engines), 'engine')} by {backends}: batch {', '.join(map(_batches, engines))}"


def _batches(engine: EngineArtifact) -> str:
    spans = [(profile.batch.min[0], profile.batch.max[0]) for profile in engine.plan.profiles]
    return "; ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in spans)


def _manifest_rows(manifest: Manifest) -> Iterator[Row]:
    for engine in manifest.engines:
        yield {
            "engine": engine.path,
            "batch": _batches(engine),
            "size_bytes": engine.size_bytes,
            "build_seconds": engine.build_seconds,
            "sha256": engine.sha256,
        }


show(Manifest, _manifest_headline, lambda one: build_view(one, one.onnx.path), _manifest_rows)


# ── measurements ────────────────────────────────────────────────────────────────────────────────────────


def _bench_row(point: BenchPoint) -> Row:
    figures = {
        name.lower().replace(" ", "_").replace("/", "_per_"): value
        for name, value in figures_of(point).items()
    }
    return {
        "batch": point.batch,
        **figures,
        "engine": point.latency.engine.path,
        "failure": point.failure,
    }


def _bench_rows(report: BenchReport) -> Iterator[Row]:
    return map(_bench_row, report.points)


def _bench_headline(report: BenchReport) -> str:
    found = ((point.batch, _bench_row(point)["p50_ms"]) for point in report.points)
    times = ", ".join(f"batch {batch} {_ms(p50)}" for batch, p50 in found) or "nothing measured"
    return f"{times}; {report.environment.backend.name} on {report.environment.device.name}"


def _ms(value: Cell) -> str:
    return "unknown" if value is None else f"{value:.4g} ms"


show(BenchReport, _bench_headline, bench_view, _bench_rows)


def _sweep_headline(report: SweepReport) -> str:
    failed = len(report.points) - len(report.measured)
    counted = _counted(len(report.points), "point") + (f", {failed} failed" if failed else "")
    return "; ".join((counted, *best_lines(report)))


show(SweepReport, _sweep_headline, sweep_view, rows_of)


def _profile_headline(report: ProfileReport) -> str:
    found = (
        f"batch {engine.batch}: {_counted(len(engine.layers), 'layer')}"
        + (f", {engine.sum_ms:.4g} ms" if engine.sum_ms else "")
        for engine in report.engines
    )
    return "; ".join(found)


def _profile_rows(report: ProfileReport) -> Iterator[Row]:
    for engine in report.engines:
        for layer in engine.layers:
            place: Row = {"batch": engine.batch, "engine": engine.engine.label}
            costs = {name: getattr(layer.cost, name, None) for name in ("flops", "bytes_moved", "floor_ms")}
            yield place | _figures(layer) | costs | {"onnx_nodes": ", ".join(layer.onnx_nodes)}


show(ProfileReport, _profile_headline, profile_view, _profile_rows)


def _compare_headline(compared: Compared) -> str:
    found = (
        f"batch {one.batch}: {one.verdict}" + (f" ({one.ratio:.3f} of A's latency)" if one.ratio else "")
        for one in compared.report.verdicts
    )
    return "; ".join(found) or type(compared.outcome).__name__.lower()


def _compare_rows(compared: Compared) -> Iterator[Row]:
    for one in compared.report.verdicts:
        yield _figures(one) | {"reasons": "; ".join(one.reasons)}


show(Compared, _compare_headline, lambda one: comparison_view(one.outcome), _compare_rows)


def _plan_headline(plan: BatchPlan) -> str:
    return (
        f"{plan.goal} at {plan.load.rate:,.4g} requests/s: {_counted(len(plan.engines), 'engine')}, "
        f"{_counted(plan.workers, 'worker')}, batches up to {plan.policy.max_batch}"
    )


def _plan_rows(plan: BatchPlan) -> Iterator[Row]:
    made = plan.prediction
    goal = plan.goal.partition("=")[0]
    figures = {"p50_ms": made.p50, "p99_ms": made.p99, f"{goal}_ms": made.goal}
    for name, estimate in {**figures, "requests_per_s": made.throughput}.items():
        yield {"figure": name, **_figures(estimate)}


def _tuned_headline(tuned: Tuned) -> str:
    found = _counted(len(tuned.ledger.entries), "candidate")
    return (
        f"{found}, {len(tuned.changes)} accepted: {saved(tuned.ledger) if tuned.changes else 'none better'}"
    )


def _tuned_rows(tuned: Tuned) -> Iterator[Row]:
    for entry in tuned.ledger.entries:
        figures: Row = {"candidate": entry.candidate, "expected_gain": entry.expected_gain}
        yield figures | _figures(entry)


show(Optimized, verdict_line, optimized_view, lambda one: map(_figures, one.points))
show(Tuned, _tuned_headline, tuned_view, _tuned_rows)
show(BatchPlan, _plan_headline, plan_view, _plan_rows)


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def _check_headline(report: CheckReport) -> str:
    outputs = [output for subject in report.subjects for output in subject.outputs]
    worst = min((output.cosine for output in outputs), default=1.0)
    met = "" if report.passed else "; a bound is not met"
    return f"{_counted(len(report.subjects), 'subject')}, cosine {worst:.7f} at least{met}"


def _check_rows(report: CheckReport) -> Iterator[Row]:
    for subject in report.subjects:
        for output in subject.outputs:
            yield {"subject": subject.name, "batch": subject.batch, **_figures(output)}


show(CheckReport, _check_headline, check_view, _check_rows)


def _cast_headline(report: CastReport) -> str:
    lowered = _counted(len(report.lowered), "node")
    return f"{lowered} in {report.precision.upper()}, {len(report.kept)} kept in FP32"


def _cast_rows(report: CastReport) -> Iterator[Row]:
    for node in report.lowered:
        yield {"node": node, "op": None, "precision": report.precision, "rule": None, "reason": None}
    for kept in report.kept:
        yield {"precision": "fp32", **_figures(kept)}


show(CastReport, _cast_headline, cast_view, _cast_rows)


def _quantize_headline(report: QuantizeReport) -> str:
    activations, weights = _counted(report.pairs, "activation"), _counted(report.weights, "weight")
    worst = f"; SQNR {min(report.sqnr_db.values()):.1f} dB at least" if report.sqnr_db else ""
    return f"{report.precision}: {activations}, {weights}{worst}"


show(QuantizeReport, _quantize_headline, quantize_view, lambda one: map(_figures, one.decisions))


def _rewrite_headline(trace: RewriteTrace) -> str:
    return f"{trace.nodes_before} → {trace.nodes_after} nodes by {_counted(len(trace.counts), 'rule')}"


def _rewrite_view(trace: RewriteTrace) -> View:
    return View("", [Lines(explain.summary(trace))])


def _rewrite_rows(trace: RewriteTrace) -> Iterator[Row]:
    for applied in trace.applied:
        yield {"what": "applied", **_figures(applied), "reason": None}
    for declined in trace.declined:
        yield {"what": "declined", **_figures(declined)}
    for undone in trace.undone:
        yield {"what": "undone", "node": ", ".join(undone.nodes), **_figures(undone)}


show(RewriteTrace, _rewrite_headline, _rewrite_view, _rewrite_rows)
