"""The views of all results, and the text that the command line prints of one."""

from __future__ import annotations

from io import StringIO

from trtopt.cli.console import console
from trtopt.records.base import Result, Row
from trtopt.report import (  # noqa: F401  (each registers its views)
    bench,
    build,
    comparison,
    inspection,
    planning,
    precision,
    profile,
    sweep,
    tuning,
)
from trtopt.report.view import Lines, View, cells_of, plain, view_of
from trtopt.rewrite import explain
from trtopt.rewrite.lint import LintReport, finding_lines
from trtopt.rewrite.rewrite_trace import RewriteTrace


def table(result: Result) -> str:
    """The text that the command line prints, without colours."""
    written = StringIO()
    console(file=written).print(view_of(result))
    return written.getvalue().rstrip("\n")


@view_of.register
def rewrite_view(trace: RewriteTrace) -> View:
    """What was applied, what was declined most, what was undone; a row for each rule at each node."""
    rows: list[Row] = [{"what": "applied", **cells_of(one), "reason": None} for one in trace.applied]
    rows += [{"what": "declined", **cells_of(one)} for one in trace.declined]
    rows += [{"what": "undone", "node": ", ".join(one.nodes), **cells_of(one)} for one in trace.undone]
    return View("", [Lines(explain.summary(trace), is_copied=True)], plain(trace.notes), rows=rows)


@view_of.register
def lint_view(report: LintReport) -> View:
    """All findings."""
    return View("", [Lines([*finding_lines(report)])], rows=map(cells_of, report.advice))
