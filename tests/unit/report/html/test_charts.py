"""Charts: what they draw, and that the plotting library takes every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import vl_convert
from hypothesis import given, strategies as st

from tests.support.pages import resnet
from tests.support.paths import DATA
from tests.unit.inspect.kernels.test_report import NAMES, launches, report
from tests.unit.report.html.test_answer import point, report as bench_report
from trtopt.records import BenchReport, Collected, read_versioned
from trtopt.report.html.charts import histogram, timeline
from trtopt.report.html.folder import report_page, thinned
from trtopt.report.html.page import Chart, Section
from trtopt.report.view import Table

STORED = DATA / "results" / "bench.json"


@pytest.fixture(scope="module")
def parts() -> dict[str, Section]:
    """The page of a measured CPU run and of two engines from the inside."""
    report = read_versioned(STORED.read_bytes(), BenchReport)
    found = Collected(folder="f", name="d", results={"r.json": report}, profiles=resnet().profiles)
    return {"overview": Section("", "", {"": report_page(found).charts}), **folds(found)}


def folds(found: Collected) -> dict[str, Section]:
    """The sections of its page, by what they are about."""
    return {one.id: one for question in report_page(found).questions for one in question.sections}


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
    assert count == 2 + 2 * 4 + 2 + 2 + 1 + 1 + 2 + 3


def test_every_chart_says_in_words_what_it_shows(parts: dict[str, Section]) -> None:
    assert [chart.title for section in parts.values() for chart in charts(section) if not chart.text] == []
    assert (
        charts(parts["overview"])[0].text
        == "batch 1: 0.026 ms, 0.971 ms p99, 10,388 samples/s; batch 8: 0.122 ms, 14,614 samples/s"
    )
    (percentiles,) = (one for one in charts(parts["latency"]) if one.title == "Latency by percentile")
    assert [said.partition(":")[0] for said in percentiles.text.split("; ")] == [
        "batch 1, p50",
        "batch 1, p90",
        "batch 1, p99",
        "batch 8, p50",
        "batch 8, p90",
    ]


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
    assert count > 10


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


def test_a_type_and_a_batch_size_have_one_colour_on_the_whole_page(parts: dict[str, Section]) -> None:
    found: dict[str, set[str]] = {}
    for section in parts.values():
        for chart in charts(section):
            for value, colour in colours(chart.spec):
                found.setdefault(value, set()).add(colour)
    assert {"batch 1", "batch 8", "float16"} <= found.keys()
    assert [value for value, used in found.items() if len(used) > 1] == []
    assert found["batch 1"] != found["batch 8"]


def test_a_timeline_lays_the_layers_end_to_end_in_their_order(parts: dict[str, Section]) -> None:
    _, line, *_ = charts(parts["layers"])
    rows = line.spec["data"][0]["values"]
    assert [row["from"] for row in rows[1:]] == [row["to"] for row in rows[:-1]]
    assert (rows[0]["from"], rows[-1]["to"]) == (0.0, pytest.approx(1.83))
    assert [round(row["ms"], 3) for row in rows[:3]] == [0.001, 0.002, 0.003]
    assert line.zooms


def test_a_timeline_of_many_kinds_gathers_the_rest_in_one_lane() -> None:
    engine = resnet().profiles["profile.json"].engines[0]
    layers = tuple(
        msgspec.structs.replace(layer, kind=f"kind {n}", is_reformat=False)
        for n, layer in enumerate(engine.layers)
    )
    spec = timeline(msgspec.structs.replace(engine, layers=layers)).spec
    lanes = next(signal["value"] for signal in spec["signals"] if signal["name"] == "lanes")
    assert lanes == [*(f"kind {n}" for n in range(59, 50, -1)), "others"]
    assert {row["lane"] for row in spec["data"][0]["values"]} == set(lanes)


def test_kernels_are_drawn_at_their_times_with_the_gaps_and_named_by_their_rows() -> None:
    engine = resnet().profiles["profile.json"].engines[0]
    kernels = report(launches(0.4, 0.3, 0.2, 0.1, gap=0.1), latency_ms=1.4)
    found = resnet().profiles["profile.json"]
    engines = (msgspec.structs.replace(engine, kernels=kernels), *found.engines[1:])
    profile = msgspec.structs.replace(found, engines=engines)
    section = folds(Collected(folder="f", name="d", profiles={"p.json": profile}))["kernels"]
    (blocks,) = section.panels.values()
    (line,) = charts(section)
    rows = line.spec["data"][0]["values"]
    assert [row["from"] for row in rows] == pytest.approx([0.0, 0.5, 0.9, 1.2])
    assert [row["to"] for row in rows] == pytest.approx([0.4, 0.8, 1.1, 1.3])
    assert [row["lane"] for row in rows] == ["product", "attention", "product", "normalisation"]
    by_node, by_name, in_order = [block for block in blocks if isinstance(block, Table)]
    assert [in_order.rows[row["row"]][0] for row in rows] == list(NAMES)  # the page looks into the last table
    launched = [column.name for column in by_name.columns].index("launches")
    assert [row[launched] for row in by_name.rows] == [2, 1, 1]
    assert by_node.rows[0][0] == "q + k + v"
    assert "kernels" not in folds(resnet())


def test_an_engine_whose_layers_hide_their_nodes_is_drawn_by_what_its_kernels_do() -> None:
    found = resnet().profiles["profile.json"]
    kernels = report(launches(0.4, 0.3, 0.2, 0.1))
    hidden = msgspec.structs.replace(found.engines[0].coverage, time_opaque=0.99)
    engine = msgspec.structs.replace(found.engines[0], kernels=kernels, coverage=hidden)
    profile = msgspec.structs.replace(found, engines=(engine,))
    (chart,) = report_page(Collected(folder="f", name="d", profiles={"p.json": profile})).charts
    assert chart.title.endswith("by what kernels do")
    assert {(row["does"], row["type"]): row["ms"] for row in values(chart.spec)} == pytest.approx(
        {("product", "float16"): 0.6, ("attention", "float16"): 0.3, ("normalisation", "float16"): 0.1}
    )


def test_time_stands_against_its_floor_by_kind(parts: dict[str, Section]) -> None:
    _, chart = charts(parts["overview"])
    assert chart.title == "Where the time goes at batch 8 against its floor"
    bars, floors = chart.spec["layer"]
    assert sum(row["ms"] for row in values(chart.spec)) == pytest.approx(1.83)
    assert {row["kind"] for row in values(floors)} == {"CaskConvolution", "CaskGemmConvolution"}
    assert bars["encoding"]["x"]["title"] == "time, ms (line: floor)"


def test_a_histogram_counts_every_query_that_it_draws() -> None:
    steady = [1.0 + n / 1000 for n in range(100)]
    chart = histogram("Latency", [*steady, 50.0, 60.0], {"p50": 1.05, "p99": 55.0}, "#000000")
    bars, marks, _ = chart.spec["layer"]
    assert sum(row["queries"] for row in values(chart.spec)) == 100
    assert "not drawn: 2 slower, up to 60.000 ms" in chart.title
    assert values(marks) == [{"what": "p50", "ms": 1.05}]
    assert bars["encoding"]["x"]["field"] == "from"


def test_equal_latencies_are_a_histogram_too() -> None:
    chart = histogram("Latency", [2.0, 2.0], {"p50": 2.0}, "#000000")
    assert sum(row["queries"] for row in values(chart.spec)) == 2
    assert chart.title == "Latency"


def test_percentiles_that_the_queries_do_not_support_are_not_drawn(parts: dict[str, Section]) -> None:
    rows = values(charts(parts["latency"])[0].spec)
    drawn = {label: [row["p"] for row in rows if row["batch"] == label] for label in ("batch 1", "batch 8")}
    assert drawn["batch 1"][-1] == "p99.5"  # of 257 queries
    assert drawn["batch 8"][-1] == "p95"  # of 34


def test_a_treemaps_areas_are_the_layers_times_within_their_kinds(parts: dict[str, Section]) -> None:
    tree, *_ = charts(parts["layers"])
    cells = values({"data": tree.spec["data"][0]})
    leaves = [cell for cell in cells if "ms" in cell]
    kinds = [cell for cell in cells if cell.get("parent") == "layers"]
    assert sum(cell["ms"] for cell in leaves) == pytest.approx(1.83)
    assert sum(cell["share"] for cell in leaves) == pytest.approx(1.0)
    assert {cell["parent"] for cell in leaves} == {kind["id"] for kind in kinds}
    assert [cell["id"] for cell in cells if "parent" not in cell] == ["layers"]


def test_time_is_grouped_by_kind_type_node_and_module(parts: dict[str, Section]) -> None:
    _, _, *groups = charts(parts["layers"])[:6]
    titles = [chart.title.split(",")[0] for chart in groups]
    assert titles == ["Time by kind", "Time by type", "Time by ONNX node", "Time by module path"]
    for chart in groups:
        assert sum(row["ms"] for row in values(chart.spec)) == pytest.approx(1.83)


def test_a_roof_rises_with_the_bandwidth_up_to_its_ridge(parts: dict[str, Section]) -> None:
    chart, *_ = charts(parts["roofline"])
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
    found = resnet()
    report = found.profiles["profile.json"]
    layers = [
        msgspec.structs.replace(one, dtype="", requested_dtype=asked) for one in report.engines[0].layers
    ]
    engine = msgspec.structs.replace(report.engines[0], layers=tuple(layers))
    report = msgspec.structs.replace(report, engines=(engine,))
    (chart,) = charts(folds(msgspec.structs.replace(found, profiles={"p": report}))["roofline"])
    return chart.spec


def test_a_layer_that_hides_its_type_stands_under_the_roof_of_the_one_requested() -> None:
    roofs, _ = roofline_of(asked="float16")["layer"]
    assert {row["type"] for row in values(roofs)} == {"float16"}
    point = values(roofline_of(asked="float16"))[0]
    assert (point["type"], point["shown_type"]) == ("float16", "(float16)")


def test_without_a_peak_of_its_type_no_roof_is_drawn() -> None:
    assert "layer" not in roofline_of(asked="float64")  # Vega warns of a line without points


def test_memory_is_drawn_with_its_peak(parts: dict[str, Section]) -> None:
    (chart,) = charts(parts["memory"])
    curve, peak, _ = chart.spec["layer"]
    assert [row["at"] for row in values(chart.spec)] == [float(n) for n in range(10)]
    assert values(peak) == [{"at": 1.0, "mib": 600 / 2**20, "phase": "load"}]
    assert curve["mark"]["interpolate"] == "step-after"


def test_the_builders_memory_is_drawn_next_to_the_engines_or_alone() -> None:
    found = resnet()
    report = found.profiles["profile.json"]
    one, eight = report.engines
    both = msgspec.structs.replace(eight, build_memory=eight.memory)
    built = msgspec.structs.replace(one, build_memory=eight.memory)
    report = msgspec.structs.replace(report, engines=(built, both))
    section = folds(msgspec.structs.replace(found, profiles={"profile.json": report}))["memory"]
    titles = {
        label: [block.title for block in blocks if isinstance(block, Chart)]
        for label, blocks in section.panels.items()
    }
    building = "Device memory allocated by the builder over time"
    running = "Device memory allocated by TensorRT over time"
    assert titles == {"batch 1": [building], "batch 8": [running, building]}


def test_the_text_of_a_curve_of_several_files_says_which_point_is_of_which() -> None:
    results = {"a.json": bench_report(point(1, 1.0), point(8, 2.0)), "b.json": bench_report(point(1, 3.0))}
    fast, *_ = report_page(Collected(folder="d", name="d", results=results)).questions
    median = fast.sections[1].panels[""][0]
    assert isinstance(median, Chart)
    assert median.text == (
        "a.json: own, tensorrt, batch 1: 1 ms; a.json: own, tensorrt, batch 8: 2 ms; "
        "b.json: own, tensorrt, batch 1: 3 ms"
    )


@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(3, 50))
def test_a_thinned_curve_keeps_its_extremes_and_its_end(curve: list[int], limit: int) -> None:
    kept = thinned(curve, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 3)
    if curve:
        assert max(curve[index] for index in kept) == max(curve)
        assert min(curve[index] for index in kept) == min(curve)
        assert kept[-1] == len(curve) - 1
