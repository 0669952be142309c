"""The views of all results, the text that the command line prints of one, and the page of a folder."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from trtopt.cli.console import console
from trtopt.errors import UsageError
from trtopt.files.outputs import check_output, write_output
from trtopt.records.base import Result, Row
from trtopt.report import (  # noqa: F401  (each registers its views)
    bench,
    build,
    comparison,
    planning,
    precision,
    profile,
    sweep,
    tuning,
)
from trtopt.report.html.page import page_of, plotting_library
from trtopt.report.html.pages import pair_page, report_page, sweep_page
from trtopt.report.view import Lines, View, cells_of, plain, view_of
from trtopt.rewrite import explain
from trtopt.rewrite.lint import LintReport, finding_lines
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.version import __version__
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.report import PAGE, collect, default_output, differences_of
from trtopt.workflows.sweep.folder import is_sweep, read_sweep


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


def write_page(
    folder: Path, other: Path | None = None, output: Path | None = None, *, leave_out_others: bool = False
) -> Path:
    """Write what a folder holds as a page, and the other beside it; without what other builds left there."""
    file = output or default_output(folder, other)
    check_output(file, PAGE)
    argv = command_line()
    if other is None and is_sweep(folder):
        page = sweep_page(read_sweep(folder), argv)
    elif other is None:
        page = report_page(collect(folder, leave_out_others=leave_out_others), argv)
    elif is_sweep(folder) or is_sweep(other):
        raise UsageError(
            "a sweep's folder cannot be shown side by side with another",
            "give two build folders, or one of the sweep's folders builds/…",
        )
    else:
        a, b = collect(folder), collect(other)
        page = pair_page(a, b, differences_of(a, b), argv)
    text = page_of(page, plotting_library(), f"trtopt {__version__}, {now()}")
    write_output(file, text.encode(), PAGE)
    return file
