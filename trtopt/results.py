"""The views of all results, the text that the command line prints of one, and its charts as an image."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from os import PathLike
from pathlib import Path

from trtopt.cli.console import console
from trtopt.errors import UsageError
from trtopt.files.outputs import kind_beginning, write_output
from trtopt.records.base import Result, Row
from trtopt.report import (  # noqa: F401  (each registers its views)
    bench,
    build,
    comparison,
    doctor,
    explanation,
    graph,
    history,
    inspection,
    planning,
    precision,
    profile,
    sweep,
    tuning,
)
from trtopt.report.charts import SVG_BEGINS, svg_of
from trtopt.report.view import Chart, Lines, View, cells_of, plain, view_of
from trtopt.rewrite.lint import LintReport, finding_lines
from trtopt.rewrite.rewrite_trace import RewriteTrace, summary


def table(result: Result) -> str:
    """The text that the command line prints, without colours."""
    written = StringIO()
    console(file=written).print(view_of(result))
    return written.getvalue().rstrip("\n")


_SVG = kind_beginning("an SVG image", SVG_BEGINS)


@dataclass(frozen=True)
class Plot:
    """Charts of a result, below one another: a notebook shows them, `save` writes them."""

    charts: Sequence[Chart]

    def __repr__(self) -> str:
        return f"<Plot: {'; '.join(chart.title for chart in self.charts)}>"

    def svg(self) -> str:
        """As one SVG image."""
        return svg_of(self.charts)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the image to a file that ends in `.svg`; one that trtopt did not write is not replaced."""
        file = Path(path)
        if file.suffix != ".svg":
            raise UsageError(f"{file}: a plot is an SVG image", "end its name in .svg")
        write_output(file, self.svg().encode(), _SVG)
        return file

    def _repr_html_(self) -> str:
        """An image of its own: names within an SVG would be those of the whole notebook."""
        text = "; ".join(chart.text for chart in self.charts)
        data = base64.b64encode(self.svg().encode()).decode()
        return f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{data}">'


def plot(result: Result) -> Plot:
    """Its charts, those that a page shows open."""
    charts = [one for one in view_of(result).on("page") if isinstance(one, Chart) and not one.is_folded]
    if charts:
        return Plot(charts)
    raise UsageError(f"{type(result).__name__} has no charts here", "print(result.table()) shows what it has")


@view_of.register
def rewrite_view(trace: RewriteTrace) -> View:
    """What was applied, what was declined most, what was undone; a row for each rule at each node."""
    rows: list[Row] = [{"what": "applied", **cells_of(one), "reason": None} for one in trace.applied]
    rows += [{"what": "declined", **cells_of(one)} for one in trace.declined]
    rows += [{"what": "undone", "node": ", ".join(one.nodes), **cells_of(one)} for one in trace.undone]
    return View("", [Lines(summary(trace), is_copied=True)], plain(trace.notes), rows=rows)


@view_of.register
def lint_view(report: LintReport) -> View:
    """All findings."""
    return View("", [Lines([*finding_lines(report)])], rows=map(cells_of, report.advice))
