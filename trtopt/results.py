"""What results show of themselves: a line for `repr`, the command line's text, and rows of figures.

A new result takes one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    FolderCheck,
    Manifest,
    ProfileReport,
    Record,
    SweepReport,
    Tuned,
)
from trtopt.records.base import Cell, Result, Row
from trtopt.records.precision import BisectReport, CastReport, CheckReport, QuantizeReport
from trtopt.records.tune import Optimized
from trtopt.report.bench import bench_view
from trtopt.report.build import build_view, check_lines
from trtopt.report.comparison import comparison_view
from trtopt.report.planning import plan_view
from trtopt.report.precision import bisect_view, cast_view, check_view, quantize_view
from trtopt.report.profile import profile_view
from trtopt.report.sweep import sweep_view
from trtopt.report.tuning import optimized_view, tuned_view
from trtopt.report.view import Lines, View
from trtopt.rewrite import explain
from trtopt.rewrite.lint import LintReport, finding_lines
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.workflows.compare.compare import Compared

AnyResult = TypeVar("AnyResult", bound=Result)


def headline(result: Result) -> str:
    """The outcome in a line."""
    return visible(_view(result).headline)


def table(result: Result) -> str:
    """The text that the command line prints, without colours."""
    written = StringIO()
    console(file=written).print(_view(result))
    return written.getvalue().rstrip("\n")


def html(result: Result) -> str:
    """Text and tables for a notebook."""
    return _view(result).html()


def rows(result: Result) -> list[Row]:
    """The main figures, with units in their names; what is unknown is None."""
    _, rows_of_kind = _SHOWN[type(result)]
    return list(rows_of_kind(result))


_SHOWN: dict[type[Result], tuple[Callable[[Any], View], Callable[[Any], Iterable[Row]]]] = {}


def _view(result: Result) -> View:
    view, _ = _SHOWN[type(result)]
    return view(result)


def show(
    kind: type[AnyResult],
    view: Callable[[AnyResult], View],
    rows: Callable[[AnyResult], Iterable[Row]],
) -> None:
    """Declare how results of a kind are shown."""
    _SHOWN[kind] = (view, rows)


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


# ── builds ──────────────────────────────────────────────────────────────────────────────────────────────


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


def _check_view(check: FolderCheck) -> View:
    return View("", [Lines(check_lines("the folder", check))])


def _changed_rows(check: FolderCheck) -> Iterator[Row]:
    for state in ("missing", "changed", "extra"):
        yield from ({"file": name, "state": state} for name in getattr(check, state))


show(FolderCheck, _check_view, _changed_rows)
show(Manifest, lambda one: build_view(one, one.onnx.path), _manifest_rows)


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


show(BenchReport, bench_view, _bench_rows)


show(SweepReport, sweep_view, rows_of)


def _profile_rows(report: ProfileReport) -> Iterator[Row]:
    for engine in report.engines:
        for layer in engine.layers:
            place: Row = {"batch": engine.batch, "engine": engine.engine.label}
            costs = {name: getattr(layer.cost, name, None) for name in ("flops", "bytes_moved", "floor_ms")}
            yield place | _figures(layer) | costs | {"onnx_nodes": ", ".join(layer.onnx_nodes)}


show(ProfileReport, profile_view, _profile_rows)


def _compare_rows(compared: Compared) -> Iterator[Row]:
    for one in compared.report.verdicts:
        yield _figures(one) | {"reasons": "; ".join(one.reasons)}


show(Compared, lambda one: comparison_view(one.outcome), _compare_rows)


def _plan_rows(plan: BatchPlan) -> Iterator[Row]:
    made = plan.prediction
    goal = plan.goal.partition("=")[0]
    figures = {"p50_ms": made.p50, "p99_ms": made.p99, f"{goal}_ms": made.goal}
    for name, estimate in {**figures, "requests_per_s": made.throughput}.items():
        yield {"figure": name, **_figures(estimate)}


def _tuned_rows(tuned: Tuned) -> Iterator[Row]:
    for entry in tuned.ledger.entries:
        figures: Row = {"candidate": entry.candidate, "expected_gain": entry.expected_gain}
        yield figures | _figures(entry)


show(Optimized, optimized_view, lambda one: map(_figures, one.points))
show(Tuned, tuned_view, _tuned_rows)
show(BatchPlan, plan_view, _plan_rows)


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def _check_rows(report: CheckReport) -> Iterator[Row]:
    for subject in report.subjects:
        for output in subject.outputs:
            yield {"subject": subject.name, "batch": subject.batch, **_figures(output)}


show(CheckReport, check_view, _check_rows)


def _cast_rows(report: CastReport) -> Iterator[Row]:
    for node in report.lowered:
        yield {"node": node, "op": None, "precision": report.precision, "rule": None, "reason": None}
    for kept in report.kept:
        yield {"precision": "fp32", **_figures(kept)}


show(CastReport, cast_view, _cast_rows)


def _bisect_rows(report: BisectReport) -> Iterator[Row]:
    for one in report.sensitivities:
        yield {"nodes": ", ".join(one.nodes), "error": one.error}


show(BisectReport, bisect_view, _bisect_rows)
show(QuantizeReport, quantize_view, lambda one: map(_figures, one.decisions))


def _rewrite_view(trace: RewriteTrace) -> View:
    return View("", [Lines(explain.summary(trace))])


def _rewrite_rows(trace: RewriteTrace) -> Iterator[Row]:
    for applied in trace.applied:
        yield {"what": "applied", **_figures(applied), "reason": None}
    for declined in trace.declined:
        yield {"what": "declined", **_figures(declined)}
    for undone in trace.undone:
        yield {"what": "undone", "node": ", ".join(undone.nodes), **_figures(undone)}


show(RewriteTrace, _rewrite_view, _rewrite_rows)


def _lint_view(report: LintReport) -> View:
    return View("", [Lines([*finding_lines(report)])])


show(LintReport, _lint_view, lambda one: map(_figures, one.advice))
