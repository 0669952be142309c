"""What results are besides their JSON: a plot of those that have charts."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import trtopt
from tests.support import examples
from tests.support.pages import renamed, resnet
from tests.support.paths import DATA
from trtopt.errors import OutputError, UsageError
from trtopt.records import BenchReport, Collected, ProfileReport, read_versioned

ODD = "\x1e</svg><img src=x>\"'&amp; {{7*7}}"
STORED = DATA / "results" / "bench.json"


@pytest.fixture(scope="module")
def bench() -> BenchReport:
    return read_versioned(STORED.read_bytes(), BenchReport)


@pytest.fixture(scope="module")
def profile() -> ProfileReport:
    return resnet().profiles["profile.json"]


def test_a_plot_is_one_image_of_all_charts_that_a_page_shows_open(
    profile: ProfileReport, tmp_path: Path
) -> None:
    saved = profile.plot().save(tmp_path / "layers.svg")
    text = saved.read_text("utf-8")
    ElementTree.fromstring(text)
    assert [text.count(title) for title in (">Time by layer", ">Layers by intensity")] == [
        2,
        2,
    ]  # of batch 1 and 8
    assert "/m/resnet/" in text  # the treemap's names, which a page takes from a table
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids})


def test_odd_names_leave_the_image_whole(profile: ProfileReport) -> None:
    times = [0.0 if layer.is_reformat else layer.ms or 0.0 for layer in profile.engines[0].layers]
    found = Collected(folder="f", name="d", profiles={"p.json": profile})
    odd = renamed(found, {times.index(max(times)): ODD})  # large enough to be named
    text = odd.profiles["p.json"].plot().svg()
    ElementTree.fromstring(text)
    assert "<img" not in text
    assert "\\x1e" in text


def test_a_plot_of_a_comparison_has_an_interval_for_each_batch_size() -> None:
    (drawn,) = trtopt.compare(STORED, STORED).plot().charts
    assert drawn.text.startswith("batch 1: +0.0% (")


def test_a_notebook_shows_the_plot_as_an_image_with_its_text(bench: BenchReport) -> None:
    shown = bench.plot()._repr_html_()
    assert shown.startswith('<img alt="batch 1: 0.026 ms')
    assert 'src="data:image/svg+xml;base64,' in shown


def test_a_plot_replaces_its_own_file_and_no_other(bench: BenchReport, tmp_path: Path) -> None:
    own, theirs = tmp_path / "own.svg", tmp_path / "theirs.svg"
    for _ in range(2):
        bench.plot().save(own)
    theirs.write_text("<svg/>")
    with pytest.raises(OutputError):
        bench.plot().save(theirs)
    assert theirs.read_text() == "<svg/>"
    with pytest.raises(UsageError, match=r"picture\.svg"):
        bench.plot().save(tmp_path / "picture.png")


def test_what_has_no_chart_says_so() -> None:
    with pytest.raises(UsageError):
        examples.manifest().plot()
