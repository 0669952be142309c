"""Charts: what they draw, and that the plotting library takes every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import vl_convert

from tests.support.pages import resnet
from tests.support.paths import DATA
from tests.unit.inspect.kernels.test_report import launches, report
from trtopt.records import BenchReport, Collected, read_versioned
from trtopt.report.bench import histogram
from trtopt.report.html.page import Section
from trtopt.report.html.pages import report_page
from trtopt.report.layers import roofline_charts
from trtopt.report.view import Chart

STORED = DATA / "results" / "bench.json"


@pytest.fixture(scope="module")
def parts() -> dict[str, Section]:
    """The page of a measured CPU run and of two engines from the inside."""
    report = read_versioned(STORED.read_bytes(), BenchReport)
    page = report_page(
        Collected(folder="f", name="d", results={"r.json": report}, profiles=resnet().profiles)
    )
    return {"overview": Section("", "", {"": page.charts}), **{one.id: one for one in page.sections}}


def charts(section: Section) -> list[Chart]:
    return [block for blocks in section.panels.values() for block in blocks if isinstance(block, Chart)]


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found


def test_vega_lite_takes_every_chart(parts: dict[str, Section]) -> None:
    count = 0
    for section in parts.values():
        for chart in charts(section):
            if "vega-lite" in chart.spec["$schema"]:
                assert vl_convert.vegalite_to_vega(chart.spec)["marks"]
                count += 1
    assert count == 2 + 2 + 3  # the first of the result and of the engine stand in the overview alone


def test_every_chart_says_in_words_what_it_shows(parts: dict[str, Section]) -> None:
    assert [chart.title for section in parts.values() for chart in charts(section) if not chart.text] == []
    assert (
        charts(parts["overview"])[0].text
        == "batch 1: 0.026 ms, 0.971 ms p99, 10,388 samples/s; batch 8: 0.122 ms, 14,614 samples/s"
    )


def axes(spec: Any) -> list[dict[str, Any]]:
    """Every quantitative x and y of a chart, in layers too."""
    if isinstance(spec, list):
        return [axis for one in spec for axis in axes(one)]
    if not isinstance(spec, dict):
        return []
    own = [spec["encoding"][side] for side in ("x", "y") if side in spec.get("encoding", {})]
    found = [axis for axis in own if axis.get("type") == "quantitative"]
    return found + [axis for value in spec.values() for axis in axes(value)]


def test_an_axis_that_does_not_start_at_zero_says_so(parts: dict[str, Section]) -> None:
    """All others start there by default; a percentile axis is scaled by its own labels."""
    count = 0
    for section in parts.values():
        for chart in charts(section):
            for axis in axes(chart.spec):
                scale = axis.get("scale", {})
                if scale.get("type") == "log":
                    assert axis["title"].endswith("(log scale)"), chart.title
                    count += 1
                elif scale.get("zero") is False:
                    assert axis["title"].endswith("(does not start at zero)"), chart.title
                    count += 1
    assert count > 6


def colours(spec: Any) -> Iterator[tuple[str, str]]:
    """(value, colour) of every colour scale of a chart."""
    if isinstance(spec, list):
        for one in spec:
            yield from colours(one)
    elif isinstance(spec, dict):
        if isinstance(spec.get("domain"), list) and "#" in str(spec.get("range")):
            yield from zip(spec["domain"], spec["range"], strict=True)
        for value in spec.values():
            yield from colours(value)


def test_an_engine_whose_layers_hide_their_nodes_is_drawn_by_what_its_kernels_do() -> None:
    found = resnet().profiles["profile.json"]
    kernels = report(launches(0.4, 0.3, 0.2, 0.1))
    hidden = msgspec.structs.replace(found.engines[0].coverage, time_opaque=0.99)
    engine = msgspec.structs.replace(found.engines[0], kernels=kernels, coverage=hidden)
    profile = msgspec.structs.replace(found, engines=(engine,))
    (chart,) = report_page(Collected(folder="f", name="d", profiles={"p.json": profile})).charts
    assert chart.title.endswith("by what kernels do")
    assert {(row["kind"], row["type"]): row["ms"] for row in values(chart.spec)} == pytest.approx(
        {("product", "float16"): 0.6, ("attention", "float16"): 0.3, ("normalisation", "float16"): 0.1}
    )


def test_time_stands_against_its_floor_by_kind(parts: dict[str, Section]) -> None:
    _, chart = charts(parts["overview"])
    assert chart.title == "Where the time goes at batch 1 against its floor"
    bars, floors = chart.spec["layer"]
    assert sum(row["ms"] for row in values(chart.spec)) == pytest.approx(1.83)
    assert {row["kind"] for row in values(floors)} == {"CaskConvolution", "CaskGemmConvolution"}
    assert bars["encoding"]["x"]["title"] == "time, ms (line: floor)"


def test_a_histogram_counts_every_query_that_it_draws() -> None:
    steady = [1.0 + n / 1000 for n in range(100)]
    chart = histogram("Latency", [*steady, 50.0, 60.0], {"p50": 1.05, "p99": 55.0})
    bars, marks, _ = chart.spec["layer"]
    assert sum(row["queries"] for row in values(chart.spec)) == 100
    assert "not drawn: 2 slower, up to 60.000 ms" in chart.title
    assert values(marks) == [{"what": "p50", "ms": 1.05}]
    assert bars["encoding"]["x"]["field"] == "from"


def test_equal_latencies_are_a_histogram_too() -> None:
    chart = histogram("Latency", [2.0, 2.0], {"p50": 2.0})
    assert sum(row["queries"] for row in values(chart.spec)) == 2
    assert chart.title == "Latency"


def test_a_roof_rises_with_the_bandwidth_up_to_its_ridge(parts: dict[str, Section]) -> None:
    (chart, *_) = (one for one in charts(parts["why"]) if one.title.startswith("Layers by intensity"))
    roofs, layers = chart.spec["layer"]
    rows = values(roofs)
    assert {row["type"] for row in rows} == {"float16"}
    low, ridge, high = rows
    assert low["rate"] == pytest.approx(low["intensity"] * 4800)
    assert ridge["rate"] == high["rate"] == pytest.approx(989.5e3)
    point = values(chart.spec)[-1]  # the slowest come first, below the others
    assert (point["intensity"], point["rate"]) == pytest.approx((100.0, 200 * 9408 / 0.002 * 1e-6))
    assert layers["encoding"]["size"]["field"] == "ms"


def roofline_of(*, asked: str) -> dict[str, Any]:
    """The first engine's, were its layers of a type that nobody tells but the graph."""
    report = resnet().profiles["profile.json"]
    layers = [
        msgspec.structs.replace(one, dtype="", requested_dtype=asked) for one in report.engines[0].layers
    ]
    engine = msgspec.structs.replace(report.engines[0], layers=tuple(layers))
    (chart,) = roofline_charts(engine, report.peaks)
    return chart.spec


def test_a_layer_that_hides_its_type_stands_under_the_roof_of_the_one_requested() -> None:
    roofs, _ = roofline_of(asked="float16")["layer"]
    assert {row["type"] for row in values(roofs)} == {"float16"}
    point = values(roofline_of(asked="float16"))[0]
    assert (point["type"], point["shown_type"]) == ("float16", "(float16)")


def test_without_a_peak_of_its_type_no_roof_is_drawn() -> None:
    assert "layer" not in roofline_of(asked="float64")  # Vega warns of a line without points
