"""Two folders side by side."""

from __future__ import annotations

import msgspec

from tests.support import examples
from tests.support.pages import resnet
from tests.unit.report.html.test_answer import folder, point
from trtopt.records import Collected
from trtopt.report.html.page import Page, page_of
from trtopt.report.html.pages import pair_page
from trtopt.report.view import Lines, Table
from trtopt.workflows.report import differences_of


def text(page: Page) -> list[str]:
    """All lines above the fold."""
    return [line for block in page.answer if isinstance(block, Lines) for line in block.lines]


def table(page: Page, title: str) -> Table:
    """The first whose title begins so."""
    blocks = [block for section in page.sections for panel in section.panels.values() for block in panel]
    return next(block for block in blocks if isinstance(block, Table) and block.title.startswith(title))


def figures(page: Page, side: str) -> Table:
    """Those of a side's result file."""
    fast = next(section for section in page.sections if section.id == "fast")
    blocks = next(blocks for label, blocks in fast.panels.items() if label.startswith(f"{side} result.json"))
    return next(block for block in blocks if isinstance(block, Table))


def pair(a: Collected, b: Collected) -> Page:
    return pair_page(a, b, differences_of(a, b), ("trtopt", "report", "a", "b"))


def test_each_batch_size_of_both_has_a_verdict_as_people_say_it() -> None:
    page = pair(folder(point(1, 1.0), point(8, 4.0)), folder(point(8, 2.0), point(32, 8.0)))
    assert "B is 2.00 ± 0.06 times as fast as A at batch 8 (FASTER)" in text(page)
    assert "batch 32 is only on one side" in text(page)
    (row,) = table(page, "A: ").rows
    assert (*row[:3], row[-1]) == ("8", 4.0, 2.0, "FASTER")
    assert [row[:2] for row in figures(page, "A").rows] == [["1", 1.0], ["8", 4.0]]
    assert [row[:2] for row in figures(page, "B").rows] == [["8", 2.0], ["32", 8.0]]


def test_sides_on_unlike_terms_are_shown_with_the_reason_and_without_a_verdict() -> None:
    b = folder(point(8, 2.0))
    measured = b.results["result.json"].points[0]
    terms = msgspec.structs.replace(measured.latency.contract, name="serving")
    latency = msgspec.structs.replace(measured.latency, contract=terms)
    report = msgspec.structs.replace(
        b.results["result.json"], points=(msgspec.structs.replace(measured, latency=latency),)
    )
    page = pair(folder(point(8, 4.0)), msgspec.structs.replace(b, results={"result.json": report}))
    assert [line for line in text(page) if "times as fast" in line] == []
    assert any("different contracts, own and serving" in line for line in text(page))
    assert list(page.sections[0].panels) == ["what differs"]
    assert [figures(page, side).rows[0][1] for side in "AB"] == [4.0, 2.0]


def test_the_worse_sides_mark_is_the_pages_with_what_speaks_against_each_side() -> None:
    hot = folder(point(8, 1.0, untrustworthy=("too hot",)), notes=("two builds of the model",))
    page = pair(folder(point(8, 1.0)), hot)
    assert (page.mark.level, page.mark.text) == ("bad", "A trustworthy; B not trustworthy: batch 8")
    assert "B: not trustworthy: too hot at batch 8" in text(page)
    assert "B: two builds of the model" in text(page)


def test_a_gain_at_one_batch_size_hides_no_loss_at_another() -> None:
    page = pair(folder(point(1, 1.0), point(8, 4.0)), folder(point(1, 2.0), point(8, 2.0)))
    assert {"SLOWER", "FASTER"} <= {line.partition("(")[2].rstrip(")") for line in text(page)}


def test_layers_and_settings_that_differ_are_named() -> None:
    a = msgspec.structs.replace(resnet(), manifest=examples.manifest())
    slower = resnet().profiles["profile.json"]
    layers = tuple(
        msgspec.structs.replace(layer, ms=2 * layer.ms if layer.ms else None)
        for layer in slower.engines[0].layers
    )
    engine = msgspec.structs.replace(slower.engines[0], layers=layers, sum_ms=2 * slower.engines[0].sum_ms)
    manifest = examples.manifest()
    built = tuple(msgspec.structs.replace(one, builder_config={"flags": "INT8"}) for one in manifest.engines)
    b = msgspec.structs.replace(
        a,
        name="e",
        manifest=msgspec.structs.replace(manifest, engines=built),
        profiles={"p.json": msgspec.structs.replace(slower, engines=(engine,))},
    )
    page = pair(a, b)
    causes = {row[5]: row for row in table(page, "batch 1: A batch1").rows}
    products = causes["products, float16: slower"]
    assert products[0] == products[2] == products[3] / 2
    assert table(page, "What differs").rows == [["builder: flags", "FP16", "INT8"]]
    assert page.title == "d, e: d (A) and e (B)"


def test_all_that_each_folder_has_is_in_panels_of_its_own_and_the_page_is_written() -> None:
    a, b = folder(point(1, 1.0), point(8, 4.0)), folder(point(8, 2.0), point(32, 8.0))
    page = pair(a, msgspec.structs.replace(b, profiles=resnet().profiles))
    assert [one.name for one in page.figures][::3] == ["A: deploy", "B: deploy"]
    assert [(section.id, len(section.panels)) for section in page.sections] == [
        ("differ", 2),
        ("fast", 2),
        ("why", 2),
        ("made", 4),
    ]
    assert [one.title.partition(" at ")[0] for one in page.charts] == [
        "A: Latency and throughput by batch size",
        "B: Latency and throughput by batch size",
        "B: Where the time goes",
    ]
    assert "trtopt report a b" in page_of(page, "window.vegaEmbed = '';", "today")


def test_engines_of_one_backend_may_take_turns() -> None:
    built = folder(point(8, 1.0), manifest=examples.manifest())
    (step,) = pair(built, msgspec.structs.replace(built, folder="my b")).steps
    assert step.endswith("trtopt compare d 'my b'")
    assert pair(built, folder(point(8, 1.0))).steps == []
