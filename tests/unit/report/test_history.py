"""A history's line and its chart."""

from __future__ import annotations

from tests.support.histories import runs_of
from trtopt.records import HistoryReport
from trtopt.report.history import history_view
from trtopt.report.view import Chart
from trtopt.workflows.history.series import series_of


def test_the_chart_counts_whole_runs_and_says_that_its_axis_does_not_start_at_zero() -> None:
    results = ((f"{number}.json", result) for number, result in enumerate(runs_of([1.0, 1.0])))
    series, _ = series_of(results)
    view = history_view(HistoryReport(folder="kept", series=series))
    assert view.title == "kept: 1 series"
    (chart,) = (one for one in view.on("page") if isinstance(one, Chart))
    x, y = (chart.spec["layer"][0]["encoding"][name] for name in "xy")
    assert x["axis"]["values"] == [1, 2]
    assert y["scale"] == {"zero": False}
    assert "not start at zero" in y["title"]
