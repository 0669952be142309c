"""Latency over the batch size."""

from __future__ import annotations

from tests.unit.report.html.test_deployment import point, report
from trtopt.records import Collected
from trtopt.report.html.folder import report_page
from trtopt.report.html.page import Chart


def test_the_text_of_a_curve_of_several_files_says_which_point_is_of_which() -> None:
    results = {"a.json": report(point(1, 1.0), point(8, 2.0)), "b.json": report(point(1, 3.0))}
    fast, *_ = report_page(Collected(folder="d", name="d", results=results)).questions
    median = fast.sections[1].panels[""][0]
    assert isinstance(median, Chart)
    assert median.text == (
        "a.json: own, tensorrt, batch 1: 1 ms; a.json: own, tensorrt, batch 8: 2 ms; "
        "b.json: own, tensorrt, batch 1: 3 ms"
    )
