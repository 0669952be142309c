"""Launches cut into stretches by the layers' times."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import profiled
from tests.support.paths import DATA
from trtopt.inspect.kernels.attribution import Home, assign_by_ranges, assign_layers
from trtopt.measure.loop.profiling_passes import merge_runs
from trtopt.records import KernelActivity, KernelLaunch, LaunchCall, NvtxRange, ProfiledLayer, TracedRun

TIMES = st.floats(0.01, 1.0)


@given(st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=2, max_size=6))
def test_layers_as_long_as_their_launches_get_exactly_those(stretches: list[list[float]]) -> None:
    found = assign_layers([ms for one in stretches for ms in one], [sum(one) for one in stretches])
    assert found == [(index, "likely") for index, one in enumerate(stretches) for _ in one]


@given(st.lists(TIMES, max_size=12), st.lists(st.one_of(st.just(0.0), TIMES), max_size=6))
def test_stretches_follow_one_another_and_cover_every_launch(
    launches: list[float], layers: list[float]
) -> None:
    found = assign_layers(launches, layers)
    assert len(found) == len(launches)
    homes = [home for home, _ in found]
    assert homes == sorted(homes)
    assert all(home == -1 or layers[home] > 0 for home in homes)


def test_one_layer_has_all_launches_for_certain_and_a_bad_fit_is_unknown() -> None:
    assert assign_layers([0.1, 5.0], [0.0, 1.0]) == [(1, "certain"), (1, "certain")]
    assert assign_layers([1.0, 9.0], [1.0, 3.0]) == [(0, "likely"), (1, "unknown")]
    assert assign_layers([1.0], []) == [(-1, "unknown")]


def test_what_a_profilers_events_add_to_short_layers_does_not_unfit_them() -> None:
    assert assign_layers([0.002, 0.002], [0.006, 0.005]) == [(0, "likely"), (1, "likely")]


# Launches joined with layers by NVTX ranges: a recording of TensorRT 8.6.0 on an H200, and made-up runs.


FOLDER = DATA / "kernels"


def recorded() -> list[TracedRun]:
    """Three plain runs of ResNet-50."""
    found = json.loads(gzip.decompress((FOLDER / "r50-b1.markers.json.gz").read_bytes()))
    return [_traced(rows, found["names"]) for rows in found["ways"]["nvtx"]["runs"]]


def _traced(rows: Sequence[list[Any]], names: Sequence[str]) -> TracedRun:
    """The columns are named in the recording."""
    of = {kind: [row for row in rows if row[0] == kind] for kind in ("kernel", "call", "marker")}
    ends = {row[3]: row[2] for row in of["marker"] if row[4] == 4}
    return TracedRun(
        activities=tuple(
            KernelActivity(
                kind="kernel", name=names[row[1]], start_ns=row[2], end_ns=row[3], correlation_id=row[4]
            )
            for row in of["kernel"]
        ),
        calls=tuple(
            LaunchCall(correlation_id=row[4], start_ns=row[2], end_ns=row[3], thread=row[5])
            for row in of["call"]
        ),
        ranges=tuple(
            NvtxRange(name=names[row[1]], domain=row[6], start_ns=row[2], end_ns=ends[row[3]], thread=row[5])
            for row in of["marker"]
            if row[4] == 2
        ),
    )


def resnet_layers() -> list[ProfiledLayer]:
    """With the times of another build."""
    found = json.loads(gzip.decompress((FOLDER / "r50-b1.json.gz").read_bytes()))
    return msgspec.convert(found["layers"], list[ProfiledLayer])


def test_of_a_recording_every_launch_has_its_layer_and_the_one_without_a_call_by_time() -> None:
    runs, layers = recorded(), resnet_layers()
    launches, _ = merge_runs([run.activities for run in runs])
    nowhere: list[Home] = [(-1, "unknown")] * len(launches)
    homes, notes = assign_by_ranges(launches, runs, layers, nowhere)
    assert notes == []
    assert [confidence for _, confidence in homes] == [
        "likely",
        *["certain"] * 57,
    ]  # cudart's call is not seen
    assert [index for index, _ in homes] == [index for index, layer in enumerate(layers) if layer.ms]
    served = {layers[index].name: one.name for (index, _), one in zip(homes, launches, strict=True)}
    assert "copyPackedKernel" in next(served[name] for name in served if name.startswith("Reformatting"))
    assert "_pooling_" in served["/m/resnet/embedder/pooler/MaxPool"]
    convolutions = [
        kernel for layer, kernel in served.items() if layer.startswith("/m/") and "/Conv" in layer
    ]
    assert len(convolutions) == 53
    assert all("fprop" in kernel or "gemm" in kernel for kernel in convolutions)


A, B = profiled("a", "q", 0.1), profiled("b", "k", 0.1)
RANGES = (("a", 0, 100), ("b", 100, 200))


def traced(*launched: tuple[str, int | None], ranges: Sequence[tuple[str, int, int]] = RANGES) -> TracedRun:
    """Kernels by name and the time of the call that launched them, which none reports of None."""
    numbered = list(enumerate(launched, 1))
    return TracedRun(
        activities=tuple(
            KernelActivity(
                kind="kernel", name=name, start_ns=1000 + one, end_ns=1001 + one, correlation_id=one
            )
            for one, (name, _) in numbered
        ),
        calls=tuple(
            LaunchCall(correlation_id=one, start_ns=at, end_ns=at + 1, thread=7)
            for one, (_, at) in numbered
            if at is not None
        ),
        ranges=tuple(
            NvtxRange(name=name, domain="TensorRT", start_ns=start, end_ns=end, thread=7)
            for name, start, end in ranges
        ),
    )


def assigned(
    names: str, *runs: TracedRun, by_order: Sequence[Home] | None = None
) -> tuple[list[Home], list[str]]:
    launches = [KernelLaunch(kind="kernel", name=name, start_ms=[0.0], ms=[1.0]) for name in names]
    return assign_by_ranges(launches, runs, (A, B), by_order or [(-1, "unknown")] * len(names))


def test_the_innermost_range_around_the_call_counts_and_not_when_the_kernel_ran() -> None:
    nested = (("a", 0, 200), ("b", 100, 150), ("TensorRT's own", 0, 300))
    homes, notes = assigned("xyz", traced(("x", 10), ("y", 110), ("z", 160), ranges=nested))
    assert homes == [(0, "certain"), (1, "certain"), (0, "certain")]
    assert notes == []


def test_ranges_of_other_threads_and_of_other_domains_name_no_layer() -> None:
    run = traced(("x", 10))
    for change in ({"thread": 8}, {"domain": "myelin-exec"}):
        ranges = tuple(msgspec.structs.replace(one, **change) for one in run.ranges)
        changed = msgspec.structs.replace(run, ranges=ranges)
        homes, notes = assigned("x", changed, by_order=[(1, "likely")])
        assert homes == [(1, "likely")]
        assert "ranges name none of them" in notes[0]


def test_a_launch_whose_call_is_not_seen_has_the_only_layer_that_was_open() -> None:
    homes, _ = assigned("xyz", traced(("x", 10), ("y", None), ("z", 20)))
    assert homes == [(0, "certain"), (0, "likely"), (0, "certain")]


@pytest.mark.parametrize(
    ("order", "home"), [((1, "likely"), (1, "likely")), ((-1, "unknown"), (-1, "unknown"))]
)
def test_a_launch_between_two_layers_goes_by_order(order: Home, home: Home) -> None:
    by_order: list[Home] = [(0, "likely"), order, (1, "likely")]
    homes, _ = assigned("xyz", traced(("x", 10), ("y", None), ("z", 120)), by_order=by_order)
    assert homes == [(0, "certain"), home, (1, "certain")]


def test_launches_of_a_graph_that_plain_runs_lack_are_named_and_nothing_is_certain() -> None:
    run = traced(("x", 10), ("y", 20), ("z", 120))
    homes, (note,) = assigned("xwyz", run)
    assert homes == [(0, "likely"), (0, "likely"), (0, "likely"), (1, "likely")]
    assert note.endswith("matched by order and name, but for 1 of 4, such as w")
    homes, (note,) = assigned("xz", run)
    assert homes == [(0, "likely"), (1, "likely")]
    assert note.endswith("matched by order and name")


def test_runs_that_launched_something_else_do_not_count_where_one_launched_the_same() -> None:
    same, other = traced(("x", 10), ("y", 120)), traced(("w", 10), ("x", 120), ("y", 130))
    assert assigned("xy", other, same) == ([(0, "certain"), (1, "certain")], [])


def test_runs_that_disagree_leave_the_layer_open() -> None:
    assert assigned("xy", traced(("x", 10), ("y", 120)), traced(("x", 110), ("y", 120)))[0] == [
        (-1, "unknown"),
        (1, "certain"),
    ]
