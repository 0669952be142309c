"""What the page says to deploy, and what to do next."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.support import examples
from tests.support.pages import resnet
from trtopt.records import (
    Backend,
    BenchPoint,
    BenchReport,
    Collected,
    Measurement,
    Samples,
)
from trtopt.report.html.page import Mark
from trtopt.report.html.pages import deployment_of, report_page
from trtopt.report.view import Chart, Lines, Table


def samples(latency: float, count: int = 200, *, enqueue: float = 0.0) -> Samples:
    """Queries of equal length, back to back; the device computes whenever the host does not enqueue."""
    return Samples(
        start_ms=[n * latency for n in range(count)],
        end_ms=[(n + 1) * latency for n in range(count)],
        enqueue_ms=[enqueue] * count,
        gpu_compute_ms=[latency - enqueue] * count,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * count,
    )


def point(batch: int, latency: float, *, enqueue: float = 0.0, **fields: Any) -> BenchPoint:
    taken = samples(latency, enqueue=enqueue)
    terms = msgspec.structs.replace(examples.measurement().contract, graph=False, streams=1)
    measurement: Measurement = msgspec.structs.replace(
        examples.measurement(),
        mode="latency",
        contract=terms,
        batch=batch,
        samples=taken,
        staged=taken,
        clocks=(),
        groups=(),
        discarded=0,
        discarded_samples=None,
        failure=None,
        **{"untrustworthy": (), "notes": (), **fields},
    )
    return BenchPoint(batch=batch, latency=measurement)


def report(*points: BenchPoint) -> BenchReport:
    made: BenchReport = msgspec.structs.replace(examples.report(), points=points, notes=())
    return made


def folder(*points: BenchPoint, **fields: Any) -> Collected:
    return Collected(folder="d", name="d", results={"result.json": report(*points)}, **fields)


def why(found: Collected) -> list[str]:
    lines, _ = report_page(found).answer
    assert isinstance(lines, Lines)
    return list(lines.lines)


def mark(found: Collected) -> Mark:
    return report_page(found).mark


def chosen(found: Collected) -> int:
    deployed = deployment_of(found)
    assert deployed is not None
    return deployed.point.batch


# ── what to deploy ──────────────────────────────────────────────────────────────────────────────────────


def test_the_most_throughput_for_its_latency_is_deployed_and_the_ends_are_named() -> None:
    found = folder(point(1, 1.0), point(8, 2.0), point(32, 6.0))
    assert chosen(found) == 8
    assert why(found) == [
        "Batch 8 has the most throughput for its median latency.",
        "For the lowest latency: batch 1, 1.000 ms, 1,000 samples/s.",
        "For the highest throughput: batch 32, 6.000 ms, 5,333 samples/s.",
    ]


def test_figures_that_are_not_trustworthy_are_deployed_only_where_there_are_no_others() -> None:
    hot = point(32, 1.0, untrustworthy=("too hot",))
    assert chosen(folder(point(8, 2.0), hot)) == 8
    assert chosen(folder(hot)) == 32


def test_the_most_throughput_is_claimed_among_trustworthy_figures_only() -> None:
    hot = point(32, 1.0, untrustworthy=("too hot",))
    assert why(folder(point(1, 1.0), point(8, 4.0), hot))[0] == (
        "Batch 1 has the most throughput for its median latency, of what is trustworthy."
    )


def test_without_measurements_there_is_nothing_to_deploy() -> None:
    assert deployment_of(resnet()) is None
    assert [(one.name, one.value) for one in report_page(resnet()).figures] == [
        ("layers at batch 8", "1.830")
    ]


def test_the_mark_says_the_worst_that_is_known() -> None:
    assert mark(folder(point(8, 1.0))).level == "good"
    assert mark(folder(point(1, 1.0), point(8, 1.0, untrustworthy=("too hot",)))).text == (
        "not trustworthy: batch 8"
    )
    assert mark(resnet()).text == "not measured"
    assert mark(folder(point(8, 1.0), manifest=on_another_backend())).level == "caution"


def on_another_backend() -> Any:
    """A manifest whose engines are not of the backend that was measured."""
    manifest = examples.manifest()
    engines = tuple(
        msgspec.structs.replace(
            engine,
            plan=msgspec.structs.replace(engine.plan, backend=Backend(name="tensorrt-rtx", version="1")),
        )
        for engine in manifest.engines
    )
    return msgspec.structs.replace(manifest, engines=engines, verdict=None)


def test_every_result_file_has_its_figures_in_its_own_panel() -> None:
    results = {"a.json": report(point(1, 1.0)), "b.json": report(point(1, 2.0), point(8, 4.0))}
    fast, *_ = report_page(Collected(folder="d", name="d", results=results)).sections
    tables = {
        name: next(block for block in blocks if isinstance(block, Table))
        for name, blocks in fast.panels.items()
    }
    assert {name: [row[:2] for row in table.rows] for name, table in tables.items()} == {
        "a.json: own, tensorrt": [["1", 1.0]],
        "b.json: own, tensorrt": [["1", 2.0], ["8", 4.0]],
    }


# ── what to do next ─────────────────────────────────────────────────────────────────────────────────────


def steps(found: Collected, **fields: Any) -> list[str]:
    """The page's, of a folder with those fields instead."""
    return list(report_page(msgspec.structs.replace(found, **fields)).steps)


def test_what_is_not_measured_comes_with_its_command_then_the_hints_with_their_remedies() -> None:
    waiting = point(8, 1.0, enqueue=0.9)
    profile, hint = steps(folder(waiting), folder="my d")
    assert profile == "Find where the time goes: trtopt profile MODEL.onnx -o 'my d'"
    assert hint == "enqueue-bound at batch 8: launch the engine as a CUDA graph with --graph"
    manifest = on_another_backend()
    bench, _, check = steps(Collected(folder="d", name="d", manifest=manifest))
    assert bench == "Measure it: trtopt bench d --json d/bench.json"
    assert check.startswith("See whether it is accurate: trtopt check d --against ")


def test_three_steps_are_named_at_most_and_none_where_nothing_is_open() -> None:
    waiting = point(8, 1.0, enqueue=0.9, untrustworthy=("too hot",))
    assert len(steps(folder(waiting), manifest=on_another_backend())) == 3
    settled = folder(point(8, 1.0), point(16, 4.0)).results
    assert steps(resnet(), results=settled) == []


def test_figures_that_cannot_be_believed_are_measured_again_first_on_their_terms_into_their_file() -> None:
    hot = folder(point(8, 1.0, untrustworthy=("too hot",)))
    assert steps(hot)[0] == (
        "Measure again when nothing disturbs it: trtopt bench MODEL.onnx --contract own --json d/result.json"
    )
    assert steps(hot, manifest=on_another_backend())[0] == (
        "Measure it on a machine with a GPU: trtopt bench d --json d/result.json"
    )


# ── what is open at first ───────────────────────────────────────────────────────────────────────────────


def test_the_deployed_batch_size_is_open_at_first_and_its_charts_are_drawn_once() -> None:
    profile = resnet().profiles["profile.json"]  # of batch 1 and 8
    results = {"a.json": report(point(1, 2.0)), "b.json": report(point(1, 1.0), point(8, 4.0))}
    larger = msgspec.structs.replace(profile.engines[0], batch=32)
    profile = msgspec.structs.replace(profile, engines=(*profile.engines, larger))
    page = report_page(Collected(folder="d", name="d", results=results, profiles={"profile.json": profile}))
    opened = {section.id: section.opened for section in page.sections}
    assert (opened["fast"], opened["why"]) == ("b.json: own, tensorrt", "batch 8")
    drawn = [
        block.title
        for blocks in (page.charts, *(blocks for one in page.sections for blocks in one.panels.values()))
        for block in blocks
        if isinstance(block, Chart)
    ]
    assert [drawn.count(one.title) for one in page.charts] == [1, 1]
    assert [one.title.split(" at ")[0] for one in page.charts] == [
        "Latency and throughput by batch size",
        "Where the time goes",
    ]
