"""A sweep's page."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.sweeps import REPORT, point, report_of
from trtopt.records import SweepReport
from trtopt.report.html.page import page_of
from trtopt.report.html.pages import sweep_page
from trtopt.report.view import Lines, Table


def embedded(report: SweepReport) -> dict[str, Any]:
    text = page_of(sweep_page(report, ("trtopt", "report", "s")), "", "today")
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found is not None
    blocks: dict[str, Any] = json.loads(found[1])
    return blocks


def test_the_page_draws_a_curve_of_each_figure_over_the_batch_size() -> None:
    charts = embedded(REPORT)["charts"]
    fields = {
        chart["encoding"]["y"]["field"]: tuple(row["batch"] for row in chart["data"]["values"])
        for chart in charts
        if "encoding" in chart
    }
    assert fields == dict.fromkeys(("p50_ms", "p99_ms", "samples_per_s", "samples_per_joule"), (1, 2, 8, 16))


def test_figures_that_no_one_tells_have_no_curve() -> None:
    charts = embedded(report_of(point(1, 1.0, 100.0), point(2, 1.0, 120.0)))["charts"]
    curves = [chart for chart in charts if "encoding" in chart]
    assert {chart["encoding"]["y"]["field"] for chart in curves} == {"p50_ms", "p99_ms", "samples_per_s"}


def test_the_page_shows_which_points_are_on_the_front() -> None:
    beaten = point(4, 3.0, 150.0)
    charts = embedded(report_of(*REPORT.points, beaten))["charts"]
    rows = charts[0]["data"]["values"]
    assert {row["point"]: row["what"] for row in rows} == {
        "fp16 batch1": "on the front",
        "fp16 batch2": "knee",
        "fp16 batch4": "beaten",
        "fp16 batch8": "on the front",
        "fp16 batch16": "not trustworthy",
    }


def test_a_sweep_without_a_figure_has_a_page_that_reports_it() -> None:
    failed = point(1, None, None, latency=None, failure="<script>alert(1)</script>")
    page = sweep_page(report_of(failed))
    assert (page.mark.text, list(page.charts)) == ("not measured", [])
    text = page_of(page, "", "today")
    assert "fp16 batch1 failed:" in text
    assert "<script>alert" not in text


def test_the_knee_is_what_to_deploy_and_the_front_is_above_the_fold() -> None:
    page = sweep_page(REPORT, ("trtopt", "report", "s"))
    bests, warnings = page.answer
    assert [one.value for one in page.figures] == ["fp16 batch2", "1.250", "190"]
    assert isinstance(bests, Table)
    assert bests.rows == [
        [1.0, 1, "fp16 batch1", 100.0],
        [2.0, 2, "fp16 batch2", 190.0],
        [5.0, 8, "fp16 batch8", 200.0],
    ]
    assert isinstance(warnings, Lines)
    assert warnings.lines == [
        "fp16 batch64 failed: out of memory\nlast words",
        "fp16 batch16! is not trustworthy: too hot",
    ]
    assert page.mark.text == "1 of 4 points not trustworthy"
    (chart,) = page.charts
    assert chart not in page.sections[0].panels[""]
    assert "fp16 batch2: 1.250 ms, 190 samples/s" in chart.text


def test_one_batch_size_is_a_number_and_no_curve() -> None:
    charts = embedded(report_of(point(8, 1.0, 100.0)))["charts"]
    assert [chart for chart in charts if "encoding" in chart] == []


def test_a_point_that_is_not_trustworthy_has_the_mark_that_its_warning_names() -> None:
    tables = embedded(REPORT)["tables"]
    rows = next(one["rows"] for one in tables if one["title"].startswith(f"{REPORT.model}:"))
    assert {row[0]: row[1] for row in rows}["fp16 batch16"] == "!"


def test_an_unsteady_sweep_is_marked_and_says_why() -> None:
    page = sweep_page(report_of(point(1, 1.0, 100.0), point(8, 4.0, 200.0, unsteady=("two modes",))), ())
    assert (page.mark.level, page.mark.text) == ("caution", "1 of 2 points unsteady")
    assert any(
        isinstance(block, Lines) and block.lines == ["fp16 batch8~ is unsteady: two modes"]
        for block in page.answer
    )
