"""A sweep's folder, and what is drawn from a point's passes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tests.support import examples
from tests.support.examples import sweep_terms
from trtopt.files.atomic import make_temporary
from trtopt.records import AllocationEvent, BenchPoint, ClockReading, MemoryPass, SweepSetting
from trtopt.workflows.race import engine_at
from trtopt.workflows.sweep.folder import Point, file_name, memory_of, sweep_in_progress


def test_a_sweep_that_goes_on_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with sweep_in_progress(folder, "m.onnx", sweep_terms()):
        (folder / "builds").mkdir()
    killed, abandoned = make_temporary(folder / "builds" / "result.json")
    os.close(killed)
    held, in_use = make_temporary(folder / "builds" / "result.json")
    (of_the_user := folder / "builds" / ".notes.tmp").write_text("mine")
    with sweep_in_progress(folder, "m.onnx", sweep_terms()):
        assert not abandoned.exists()
        assert in_use.exists()
        assert of_the_user.read_text() == "mine"
    os.close(held)


FOLDER = Path("/sweep")
BUILD = FOLDER / "builds" / "fp16"
ENGINE = engine_at(BUILD, examples.onnx().inputs, examples.engine(), 8)
POINT = Point(FOLDER, examples.sweep_terms(), SweepSetting(precision="fp16", batch=8), ENGINE)


def measured(**changes: object) -> BenchPoint:
    clocks = (
        ClockReading(at_ms=0.0, sm_mhz=1, energy_j=5.0),
        ClockReading(at_ms=500.0, sm_mhz=1, energy_j=55.0),
    )
    rated = msgspec.structs.replace(examples.measurement(), clocks=clocks, groups=((),), untrustworthy=("b",))
    alone = msgspec.structs.replace(examples.measurement(), untrustworthy=("a", "b"))
    whole = BenchPoint(batch=8, latency=alone, throughput=rated)
    return msgspec.structs.replace(whole, **changes)


def test_a_point_has_the_figures_of_its_passes_and_paths_within_the_sweep() -> None:
    point = POINT.figures(measured())
    samples = examples.samples()  # two queries of 2 and 2.5 ms, of two groups: 4.5 ms of wall time
    assert samples.wall_ms == 4.5
    assert point.queries_per_s == 2 / 4.5e-3
    assert point.samples_per_s == 8 * 2 / 4.5e-3
    assert point.watts == 100.0
    assert point.latency is not None
    assert (point.latency.p50_ms, point.latency.p99_ms, point.latency.max_ms) == (2.25, None, 2.5)
    assert point.engine is not None
    assert point.engine.path == "builds/fp16/batch8.engine"
    assert point.result == f"results/fp16-batch8-{point.key[:12]}.json"
    assert point.untrustworthy == ("a", "b")
    assert point.failure is None


def test_without_a_throughput_pass_the_rate_is_that_of_one_query_in_flight() -> None:
    point = POINT.figures(measured(throughput=None))
    assert point.queries_per_s == 2 / 4.5e-3
    assert point.busy_latency == point.latency


def test_a_point_that_broke_off_keeps_what_it_has_and_no_result_file() -> None:
    broken = measured(throughput=None, failure="the device fell off")
    point = POINT.figures(broken)
    assert point.latency is not None
    assert (point.samples_per_s, point.busy_latency, point.result) == (None, None, None)
    assert point.failure == "the device fell off"


def test_memory_is_the_peak_of_one_context_with_its_buffers() -> None:
    sizes = {1: ("load", 1000), 2: ("run", 24), 3: ("more contexts", 500)}
    events = tuple(
        AllocationEvent(at_ms=0.0, kind="allocate", size_bytes=size, address=address, phase=phase)
        for address, (phase, size) in sizes.items()
    )
    passed = MemoryPass(
        events=events,
        buffers_bytes=100,
        engine_device_bytes=None,
        driver_used_bytes=None,
        context_bytes=(490, 500),
    )
    memory = memory_of(passed)
    assert (memory.peak_bytes, memory.buffers_bytes, memory.context_bytes) == (1124, 100, 500)
    assert memory_of(msgspec.structs.replace(passed, context_bytes=())).context_bytes is None


def test_names_of_files_hold_no_separators_whatever_an_axis_is_called() -> None:
    assert file_name("fp16 batch8 a/b..\\c0 x=1") == "fp16-batch8-a-b..-c0-x-1"
    setting = SweepSetting(precision=None, batch=1, axes={"../../up": 2})
    assert Point(FOLDER, examples.sweep_terms(), setting, ENGINE).result.parent == FOLDER / "results"
