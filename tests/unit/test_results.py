"""What results show of themselves, on whole records and on those at the edge, and their plots."""

from __future__ import annotations

import builtins
import importlib.util
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

import trtopt
from tests.support import examples, pages, sweeps
from tests.support.paths import DATA
from trtopt import api, results  # noqa: F401  (registers the views)
from trtopt.errors import BackendMissingError, OutputError, UsageError
from trtopt.records import (
    BatchPlan,
    BenchReport,
    ProfileReport,
    Record,
    SweepReport,
    read_versioned,
)
from trtopt.records.base import Result
from trtopt.report.view import view_of
from trtopt.rewrite.rewrite_trace import Applied, Declined, RewriteTrace, Undone

ODD = "\x1e</svg><img src=x>\"'&amp; {{7*7}}"
STORED = DATA / "results" / "bench.json"


def kinds_below(kind: type) -> set[type]:
    return {kind, *(one for child in kind.__subclasses__() for one in kinds_below(child))}


def test_every_result_of_a_public_function_can_be_shown() -> None:
    shown = {kind for kind in view_of.registry if kind is not object}
    assert kinds_below(Result) - {Result} == shown
    returned = {getattr(api, name).__annotations__["return"] for name in api.__all__ if _is_a_job(name)}
    returned.add(api.doctor.__annotations__["return"])  # a plain function
    files = {"Exported", "Path", "tuple[Path, ...]"}
    assert returned - files == {kind.__name__ for kind in shown}


def _is_a_job(name: str) -> bool:
    return hasattr(getattr(api, name), "__wrapped__")


def test_a_result_is_one_line_with_its_outcome() -> None:
    assert repr(examples.manifest()).startswith("<Manifest: ")
    assert repr(examples.sweep()).startswith("<SweepReport: ")
    profile = pages.report_of(pages.engine_of("r50_fp16"))
    assert repr(profile).startswith("<ProfileReport: batch 1: ")
    assert "\n" not in repr(examples.report())


def test_a_result_without_figures_still_has_a_line() -> None:
    empty = msgspec.structs.replace(examples.report(), points=())
    assert repr(empty).startswith("<BenchReport: TensorRT 10")
    nothing = msgspec.structs.replace(examples.sweep(), points=())
    assert nothing.view.headline.startswith(f"{nothing.model}: ")


def test_the_line_of_a_sweep_has_the_best_at_each_length_that_can_be_trusted() -> None:
    doubtful = sweeps.point(8, 1.0, 900.0, untrustworthy=("too hot",))
    long = sweeps.point(1, 9.0, 5.0, axes={"seq": 64})
    told = sweeps.report_of(sweeps.point(1, 1.0, 100.0), doubtful, long).view.headline
    assert told == "best 100 samples/s at fp16 batch1; best 5 samples/s at fp16 batch1 seq=64"


def test_the_line_of_a_sweep_says_how_many_points_failed() -> None:
    failed = sweeps.point(8, None, None, failure="out of memory")
    assert sweeps.report_of(failed).view.headline == "1 of 1 point failed"
    told = sweeps.report_of(sweeps.point(1, 1.0, 100.0), failed).view.headline
    assert told == "best 100 samples/s at fp16 batch1; 1 of 2 points failed"


def test_the_line_of_a_plan_says_what_serves_the_load() -> None:
    stored = DATA / "results" / "plan.json"
    plan = read_versioned(stored.read_bytes(), BatchPlan)
    told = "p99=50ms at 100 requests/s: 1 engine, 1 worker, batches up to 1"
    assert repr(plan) == f"<BatchPlan: {told}>"


def test_names_in_a_line_cannot_break_it() -> None:
    sweep: SweepReport = examples.sweep()
    point = sweep.points[0]
    named = msgspec.structs.replace(point, setting=msgspec.structs.replace(point.setting, axes={"a\nb": 3}))
    assert "\n" not in repr(msgspec.structs.replace(sweep, points=(named,)))


def test_a_rewrite_has_a_row_for_each_rule_at_each_node() -> None:
    trace = RewriteTrace(
        source="a",
        out="b",
        target="10",
        opset=17,
        nodes_before=3,
        nodes_after=2,
        rounds=1,
        constants_lowered=0,
        applied=(Applied(rule="fold", node="x"),),
        declined=(Declined(rule="merge", node="y", reason="its output is used twice"),),
        undone=(Undone(rule="softmax", reason="it moved the output", nodes=("z", "w")),),
        seconds=0.0,
    )
    assert repr(trace).startswith("<RewriteTrace: 3 → 2 nodes in 1 round")
    assert [(row["what"], row["rule"], row["node"], row["reason"]) for row in trace.rows()] == [
        ("applied", "fold", "x", None),
        ("declined", "merge", "y", "its output is used twice"),
        ("undone", "softmax", "z, w", "it moved the output"),
    ]


def test_the_json_form_is_that_of_the_file() -> None:
    report = examples.sweep()
    assert report.to_dict()["schema"] == report.schema
    assert msgspec.convert(report.to_dict(), SweepReport) == report


def test_a_data_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without_pandas(name: str, *arguments: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return load(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(BackendMissingError, match="pandas is not installed") as caught:
        examples.sweep().to_pandas()
    assert "pip install pandas" in caught.value.remedy


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_data_frame_has_the_rows() -> None:
    report = examples.sweep()
    assert report.to_pandas().to_dict("records") == report.rows()


def test_a_record_inside_a_result_is_shown_in_full() -> None:
    inner: Record = examples.manifest().engines[0]
    assert repr(inner).startswith("EngineArtifact(path=")


# ── plots ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def bench() -> BenchReport:
    return read_versioned(STORED.read_bytes(), BenchReport)


@pytest.fixture(scope="module")
def profile() -> ProfileReport:
    return pages.resnet().profiles["profile.json"]


def test_a_plot_is_one_image_of_all_charts_that_a_page_shows_open(
    profile: ProfileReport, tmp_path: Path
) -> None:
    saved = profile.plot().save(tmp_path / "layers.svg")
    text = saved.read_text("utf-8")
    ElementTree.fromstring(text)
    assert [text.count(title) for title in (">Where the time goes", ">Layers by intensity")] == [
        2,
        2,
    ]  # of batch 1 and 8
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids})


def test_odd_names_leave_the_image_whole(profile: ProfileReport) -> None:
    layers = tuple(msgspec.structs.replace(one, kind=ODD) for one in profile.engines[0].layers)
    engine = msgspec.structs.replace(profile.engines[0], layers=layers)
    text = msgspec.structs.replace(profile, engines=(engine,)).plot().svg()
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
    with pytest.raises(UsageError, match="SVG"):
        bench.plot().save(tmp_path / "picture.png")
    with pytest.raises(UsageError):
        bench.plot().save("")


def test_what_has_no_chart_says_so() -> None:
    with pytest.raises(UsageError):
        examples.manifest().plot()
