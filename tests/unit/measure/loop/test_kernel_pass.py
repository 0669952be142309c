"""Runs under a tracer, over the scripted device, and runs brought together."""

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import subject_of
from trtopt.errors import DeviceError, MeasurementError
from trtopt.measure.loop.profiling_passes import merge_runs, record_kernels, record_ranges
from trtopt.records import KernelActivity, KernelPass, NvtxRange, TracedRun


def kernel(name: str, start_ns: int, end_ns: int) -> KernelActivity:
    return KernelActivity(kind="kernel", name=name, start_ns=start_ns, end_ns=end_ns)


def test_runs_are_ordered_by_start_and_counted_from_their_first_launch() -> None:
    first = [kernel("b", 1_002_000, 1_004_000), kernel("a", 1_000_000, 1_001_000)]
    second = [kernel("a", 9_000_000, 9_003_000), kernel("b", 9_005_000, 9_006_000)]
    (a, b), different = merge_runs([first, second])
    assert (a.name, a.start_ms, a.ms) == ("a", [0.0, 0.0], pytest.approx([0.001, 0.003]))
    assert (b.name, b.start_ms, b.ms) == ("b", pytest.approx([0.002, 0.005]), pytest.approx([0.002, 0.001]))
    assert different == 0


def test_runs_with_other_launches_than_most_do_not_count() -> None:
    usual, other = [kernel("a", 0, 1)], [kernel("a", 0, 1), kernel("a", 2, 3)]
    launches, different = merge_runs([other, usual, [], usual])
    assert [len(launch.ms) for launch in launches] == [2]
    assert different == 2
    assert merge_runs([[], []]) == ((), 2)


def recorded(script: Script, *, graph: bool) -> tuple[KernelPass, list[str]]:
    device = ScriptedDevice(script)
    session = ScriptedTarget(device).load(b"engine")
    try:
        return record_kernels(subject_of(session), graph=graph), device.calls
    finally:
        session.close()
        assert device.open == 0


RUN = [kernel("a", 10, 20)]


def test_replays_are_recorded_by_a_tracer_that_was_open_before_the_capture() -> None:
    found, calls = recorded(Script(graph_kernels=[RUN], dropped=2), graph=True)
    assert (found.graph, found.runs, found.dropped, found.notes) == (True, 20, 2, ())
    assert calls.index("activity_recorder") < calls.index("capture")
    assert calls.count("launch") > found.runs  # some warm it up


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (Script(kernels=[RUN], graphs=False), "the script's engine cannot be captured"),
        (Script(kernels=[RUN], graph_kernels=[[]]), "no kernels within a CUDA graph"),
    ],
)
def test_where_a_graph_shows_no_kernels_plain_runs_are_recorded_and_a_note_says_why(
    script: Script, note: str
) -> None:
    found, _ = recorded(script, graph=True)
    assert not found.graph
    assert [launch.name for launch in found.launches] == ["a"]
    assert [note in one for one in found.notes] == [True]


def test_a_tracer_that_reports_nothing_or_fails_leaves_nothing_open() -> None:
    with pytest.raises(MeasurementError, match="reports no kernels"):
        recorded(Script(), graph=False)
    with pytest.raises(DeviceError, match="scripted failure of activity_recorder"):
        recorded(Script(fail_at=("activity_recorder", 1)), graph=False)


def marked(script: Script) -> tuple[TracedRun, ...]:
    device = ScriptedDevice(script)
    session = ScriptedTarget(device).load(b"engine")
    try:
        return record_ranges(subject_of(session))
    finally:
        session.close()
        assert device.open == 0


RANGES = [NvtxRange(name="layer", domain="TensorRT", start_ns=0, end_ns=9, thread=1)]


def test_ranges_are_those_of_plain_runs_of_a_context_that_emits_them() -> None:
    runs = marked(Script(kernels=[RUN], ranges=RANGES))
    assert [run.ranges for run in runs] == [tuple(RANGES)] * 3
    assert [run.activities for run in runs] == [tuple(RUN)] * 3


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (Script(kernels=[RUN]), "no NVTX ranges reach CUPTI"),
        (Script(kernels=[RUN], ranges=RANGES, dropped=2), "2 records of ranges and calls"),
    ],
)
def test_ranges_that_are_absent_or_incomplete_name_no_layers(script: Script, problem: str) -> None:
    with pytest.raises(MeasurementError, match=problem):
        marked(script)
