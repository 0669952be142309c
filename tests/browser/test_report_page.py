"""The report page in a real browser: it draws, sorts, finds, changes its colours and fits a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.support.pages import many_layers, renamed, resnet
from tests.support.paths import DATA
from trtopt.records import BenchPoint, BenchReport, Collected, read_versioned
from trtopt.report.html.page import page_of, plotting_library
from trtopt.report.html.pages import report_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

MEASURED = DATA / "results" / "bench.json"
ODD = "</script><img src=x onerror=alert(1)>\"'&amp;\x1e {{7*7}}"
Opener = Callable[..., "Page"]


@pytest.fixture(scope="session")
def library() -> str:
    return plotting_library()


@pytest.fixture
def opened(browser: Browser, library: str, tmp_path: Path) -> Iterator[Opener]:
    """Opens a page from a file, offline; whatever the console tells, errors or warnings, fails the test."""
    told: list[str] = []
    contexts = []

    def open_page(
        found: Collected,
        *,
        width: int = 1280,
        scheme: str = "light",
        touch: bool = False,
    ) -> Page:
        file = tmp_path / "report.html"
        file.write_text(page_of(report_page(found), library, "made today"), "utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
            has_touch=touch,
            offline=True,
        )
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on(
            "request", lambda one: None if one.url == file.as_uri() else told.append(f"it fetches {one.url}")
        )
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []


def draw_all(page: Page) -> list[Locator]:
    """Scroll through the page, so that every chart on show is drawn."""
    charts = [chart for chart in page.locator("[data-chart]").all() if chart.is_visible()]
    for chart in charts:
        chart.scroll_into_view_if_needed()
        chart.locator("canvas").wait_for()
    return charts


def layers(page: Page) -> Locator:
    return page.locator("#why .panel:not([hidden]) .table").first


def column(table: Locator, number: int) -> list[str]:
    return table.locator(f"tbody td:nth-child({number})").all_inner_texts()


def everything() -> Collected:
    measured = read_versioned(MEASURED.read_bytes(), BenchReport)
    return Collected(folder="f", name="d", results={"result.json": measured}, profiles=resnet().profiles)


def painted(chart: Locator) -> int:
    """How many different colours a chart's canvas shows."""
    count = chart.locator("canvas").evaluate(
        "canvas => new Set(new Uint32Array(canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
    )
    assert isinstance(count, int)
    return count


def test_every_chart_is_drawn_without_a_word_on_the_console(opened: Opener) -> None:
    charts = draw_all(opened(everything()))
    assert len(charts) == 2 + 2 + 1
    assert [chart for chart in charts if painted(chart) < 5] == []


def test_a_folded_histogram_is_drawn_when_it_is_opened(opened: Opener) -> None:
    measured = read_versioned(MEASURED.read_bytes(), BenchReport)
    point = measured.points[0]
    same = msgspec.structs.replace(
        point.latency.samples,
        start_ms=[float(n) for n in range(200)],
        end_ms=[n + 1 + n % 7 / 1e4 for n in range(200)],
    )
    steady = BenchPoint(batch=2, latency=msgspec.structs.replace(point.latency, samples=same))
    found = msgspec.structs.replace(measured, points=(point, steady))
    page = opened(Collected(folder="f", name="d", results={"result.json": found}))
    folded = page.locator("figure.small details").last
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    folded.locator("canvas").wait_for()
    assert painted(folded) > 1


def test_layers_are_sorted_by_any_column_either_way(opened: Opener) -> None:
    table = layers(opened(resnet()))
    times = [float(text) for text in column(table, 2)]
    assert (times[0], len(times)) == (0.06, 50)
    assert times == sorted(times, reverse=True)
    head = table.get_by_role("button", name="ms", exact=True)
    head.click()
    assert column(table, 2)[:2] == ["0.0010", "0.0020"]
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("ms")
    table.get_by_role("button", name="kind", exact=True).click()
    assert column(table, 4) == sorted(column(table, 4))
    floors = table.get_by_role("button", name="floor ms", exact=True)
    floors.click()
    assert column(table, 8)[0] != "–"  # what is not known comes last either way
    floors.click()
    assert column(table, 8)[0] != "–"


def test_layers_are_found_by_words_of_their_names_and_details(opened: Opener) -> None:
    table = layers(opened(resnet()))
    search = table.get_by_role("searchbox")
    search.fill("stages.3 SHORTCUT")  # the layer, and the one that reads its output
    assert len(column(table, 1)) == 2
    assert table.locator(".count").inner_text() == "1 to 2 of 2 found among 60"
    search.fill("hmma_k64c4r7s7")  # a tactic
    assert ["embedder/convolution/Conv" in text for text in column(table, 1)] == [True]
    search.fill("no such layer")
    assert column(table, 1) == []
    search.fill("")
    assert len(column(table, 1)) == 50


def test_rows_turn_page_by_page(opened: Opener) -> None:
    table = layers(opened(resnet()))
    table.get_by_role("button", name="later rows").click()
    assert len(column(table, 1)) == 10
    assert table.locator(".count").inner_text() == "51 to 60 of 60"
    assert table.get_by_role("button", name="later rows").is_disabled()


def test_a_layers_details_unfold_under_it(opened: Opener) -> None:
    table = layers(opened(resnet()))
    first = table.locator("tbody tr").first
    assert not first.locator("dl").is_visible()
    first.locator("summary").click()
    assert "Reformatting CopyNode for Output Tensor 0" in first.locator("dl").inner_text()


def test_the_contents_follow_the_reader(opened: Opener) -> None:
    page = opened(everything())
    current = page.locator("nav a[aria-current]")
    assert current.inner_text() == "In short"
    for place, name in (
        ("fast", "How fast is it?"),
        ("why", "Why is it not faster?"),
        ("answer", "In short"),
    ):
        page.locator(f"#{place}").evaluate("place => place.scrollIntoView()")
        page.wait_for_function(f"document.querySelector('nav a[aria-current]').textContent === {name!r}")
        assert page.locator("nav").bounding_box()["y"] >= 0  # type: ignore[index]


def test_the_answer_is_above_the_fold(opened: Opener) -> None:
    page = opened(everything(), width=1400)
    for place in (".figures", "#answer canvas >> nth=1"):
        page.locator(place).first.wait_for()
        box = page.locator(place).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900


def test_paper_takes_the_page_within_its_width(opened: Opener) -> None:
    page = opened(everything(), scheme="dark")
    draw_all(page)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 703, "height": 1032})  # A4 less its margins, in CSS pixels
    assert page.evaluate("document.documentElement.scrollWidth") == 703
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()


def test_another_engine_is_chosen(opened: Opener) -> None:
    page = opened(resnet())
    page.locator("#why").get_by_role("button", name="batch 1").click()
    assert page.locator("#why .panel:not([hidden])").get_attribute("data-label") == "batch 1"
    assert page.locator("#why button[aria-pressed=true]").inner_text() == "batch 1"
    assert len(draw_all(page)) == 1 + 2


def test_what_changes_while_a_panel_is_hidden_is_drawn_when_it_is_shown(opened: Opener) -> None:
    page = opened(resnet())
    draw_all(page)
    page.locator("#why").get_by_role("button", name="batch 1").click()
    page.get_by_role("button", name="light or dark").click()
    page.set_viewport_size({"width": 700, "height": 900})
    page.locator("#why").get_by_role("button", name="batch 8").click()
    for chart in draw_all(page):
        page.wait_for_function(
            "chart => Math.abs(chart.querySelector('canvas').offsetWidth - chart.offsetWidth) < 20",
            arg=chart.element_handle(),
        )


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_colours_follow_the_system_and_the_switch(opened: Opener, scheme: str, other: str) -> None:
    page = opened(resnet(), scheme=scheme)
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours[scheme]
    chart = draw_all(page)[1]
    before = chart.locator("canvas").screenshot()
    page.get_by_role("button", name="light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours[other]
    page.wait_for_function(f"document.documentElement.dataset.scheme === '{other}'")
    page.wait_for_timeout(300)
    assert chart.locator("canvas").screenshot() != before


@pytest.mark.parametrize("width", [320, 375])
def test_on_a_phone_nothing_makes_the_page_scroll_sideways(opened: Opener, width: int) -> None:
    page = opened(renamed(everything(), {59: "x" * 500}), width=width, touch=True)
    page.locator("#why").get_by_role("button", name="batch 1").click()
    draw_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert all((box := chart.bounding_box()) and box["width"] > width * 0.8 for chart in draw_all(page))


def test_a_phone_shows_how_long_each_layer_took_without_scrolling_sideways(opened: Opener) -> None:
    table = layers(opened(resnet(), width=375, touch=True))
    for number in (1, 2, 3):
        box = table.locator(f"thead th:nth-child({number})").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 375


def test_odd_names_are_text_everywhere(opened: Opener) -> None:
    page = opened(renamed(everything(), {59: ODD}))
    page.locator("#why").get_by_role("button", name="batch 1").click()
    draw_all(page)
    seen = ODD.replace("\x1e", "\\x1e")
    assert column(layers(page), 1)[0] == f"reformat at {seen}"
    assert page.locator("img").count() == 0


def test_five_thousand_layers_are_shown_fifty_at_a_time(opened: Opener) -> None:
    page = opened(many_layers(5000))
    table = layers(page)
    assert table.locator(".count").inner_text() == "1 to 50 of 5000"
    table.get_by_role("searchbox").fill("block.4321/")
    assert len(column(table, 1)) == 1
    draw_all(page)
