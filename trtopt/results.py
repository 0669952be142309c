"""What results show of themselves: a line for `repr`, the command line's text, and rows of figures.

A new result takes one entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

from trtopt.cli.console import console
from trtopt.printable import visible
from trtopt.records import BatchPlan, BenchReport, FolderCheck, Manifest, ProfileReport, SweepReport, Tuned
from trtopt.records.base import Result, Row
from trtopt.records.precision import BisectReport, CastReport, CheckReport, QuantizeReport
from trtopt.records.tune import Optimized
from trtopt.report.bench import bench_view
from trtopt.report.build import build_view, folder_view
from trtopt.report.comparison import comparison_view
from trtopt.report.planning import plan_view
from trtopt.report.precision import bisect_view, cast_view, check_view, quantize_view
from trtopt.report.profile import profile_view
from trtopt.report.sweep import sweep_view
from trtopt.report.tuning import optimized_view, tuned_view
from trtopt.report.view import Lines, View, cells_of
from trtopt.rewrite import explain
from trtopt.rewrite.lint import LintReport, finding_lines
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.workflows.compare.compare import Compared


def headline(result: Result) -> str:
    """The outcome in a line."""
    return visible(view_of(result).headline)


def table(result: Result) -> str:
    """The text that the command line prints, without colours."""
    written = StringIO()
    console(file=written).print(view_of(result))
    return written.getvalue().rstrip("\n")


def html(result: Result) -> str:
    """Text and tables for a notebook."""
    return view_of(result).html()


def rows(result: Result) -> list[Row]:
    """The main figures, with units in their names; what is unknown is None."""
    return list(view_of(result).rows)


def view_of(result: Result) -> View:
    """All that is shown of a result."""
    return VIEWS[type(result)](result)


def _compared_view(compared: Compared) -> View:
    verdicts = compared.report.verdicts
    rows = ({**cells_of(one), "reasons": "; ".join(one.reasons)} for one in verdicts)
    return replace(comparison_view(compared.outcome), rows=rows)


def _rewrite_view(trace: RewriteTrace) -> View:
    rows: list[Row] = [{"what": "applied", **cells_of(one), "reason": None} for one in trace.applied]
    rows += [{"what": "declined", **cells_of(one)} for one in trace.declined]
    rows += [{"what": "undone", "node": ", ".join(one.nodes), **cells_of(one)} for one in trace.undone]
    return View("", [Lines(explain.summary(trace))], rows=rows)


def _lint_view(report: LintReport) -> View:
    return View("", [Lines([*finding_lines(report)])], rows=map(cells_of, report.advice))


VIEWS: dict[type[Result], Callable[[Any], View]] = {
    BatchPlan: plan_view,
    BenchReport: bench_view,
    BisectReport: bisect_view,
    CastReport: cast_view,
    CheckReport: check_view,
    Compared: _compared_view,
    FolderCheck: folder_view,
    LintReport: _lint_view,
    Manifest: lambda manifest: build_view(manifest, manifest.onnx.path),
    Optimized: optimized_view,
    ProfileReport: profile_view,
    QuantizeReport: quantize_view,
    RewriteTrace: _rewrite_view,
    SweepReport: sweep_view,
    Tuned: tuned_view,
}
