"""Kernels joined with layers and nodes: the sums, the remainder, and what stays unknown."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support.inspected import profiled
from tests.unit.inspect.kernels.test_attribution import encoder
from trtopt.inspect.kernels.report import gaps_and_overlaps, report_kernels, span_of
from trtopt.records import (
    DevicePeaks,
    KernelActivity,
    KernelLaunch,
    KernelPass,
    KernelReport,
    LaunchCall,
    NvtxRange,
    Peak,
    ProfiledLayer,
    TracedRun,
)

GEMM = "sm80_xmma_gemm_f16f16_f16f16_f16_tn_n_tilesize64x64x32_tensor16x8x16_kernel"
ALL = tuple(node.name for node in encoder().nodes)
OPAQUE = replace(profiled("foreign", " ".join(ALL), 1.0), is_opaque=True)
NAMES = (GEMM, "fmha_v2_fp16", GEMM, "layernorm_fp16")


def launches(*ms: float, names: tuple[str, ...] = NAMES, gap: float = 0.0) -> KernelPass:
    """One run's launches, the next `gap` after the last."""
    starts = np.cumsum([0.0, *(one + gap for one in ms)])
    made = tuple(
        KernelLaunch(kind="kernel", name=name, start_ms=[float(start)], ms=[one])
        for name, start, one in zip(names, starts, ms, strict=False)
    )
    return KernelPass(runs=1, launches=made, graph=True)


def report(
    found: KernelPass, *layers: ProfiledLayer, latency_ms: float | None = None, peak: float | None = None
) -> KernelReport:
    peaks = None
    if peak is not None:
        rates = {"float16": Peak(value=peak, source="")}
        peaks = DevicePeaks(device="gpu", bandwidth=Peak(value=1.0, source=""), flops=rates)
    return report_kernels(found, layers or (OPAQUE,), encoder(), peaks, latency_ms)


def test_kernels_inside_an_opaque_layer_have_nodes_and_a_confidence() -> None:
    made = report(launches(0.4, 0.3, 0.2, 0.1))
    assert [(row.layer, row.nodes, row.confidence) for row in made.rows] == [
        ("foreign", ("q", "k", "v"), "likely"),
        ("foreign", ("scores", "p", "context"), "likely"),
        ("foreign", ("projected",), "likely"),
        ("foreign", ("sum", "y"), "likely"),
    ]
    assert [group.key for group in made.by_block] == [
        "q + k + v",
        "scores + p + context",
        "projected",
        "sum + y",
    ]
    assert made.unknown_ms == 0.0


@given(st.lists(st.tuples(st.sampled_from([*NAMES, "other"]), st.floats(0.01, 1.0)), min_size=1, max_size=8))
def test_every_group_adds_up_to_all_kernels_whatever_is_known(given: list[tuple[str, float]]) -> None:
    names, ms = zip(*given, strict=True)
    made = report(launches(*ms, names=names))
    for groups in (made.by_name, made.by_family, made.by_block):
        assert sum(group.ms for group in groups) == pytest.approx(sum(ms))
        assert sum(group.share for group in groups) == pytest.approx(1.0)
        assert sum(group.launches for group in groups) == len(ms)
    unknown = sum(group.ms for group in made.by_block if group.key == "unknown")
    assert unknown == pytest.approx(made.unknown_ms)


def test_time_that_is_not_understood_is_one_row_and_no_nodes_share_it() -> None:
    made = report(launches(0.5, 0.5, names=(GEMM, "other")))
    (group,) = made.by_block
    assert (group.key, group.ms, group.confidence) == ("unknown", 1.0, "unknown")
    assert made.unknown_ms == 1.0


def test_kernels_and_gaps_are_held_against_the_latency_without_the_tracer() -> None:
    made = report(launches(0.4, 0.3, 0.2, 0.1, gap=0.1), latency_ms=1.4)
    assert (made.busy_ms, made.gap_ms, made.sum_ms) == pytest.approx((1.0, 0.3, 1.0))
    assert made.remainder_ms == pytest.approx(0.1)
    assert made.rows[1].gap_ms == pytest.approx(0.1)
    assert made.notes == (
        "kernels and gaps take 1.300 ms, the latency without the tracer is 1.400 ms: they differ by +7%",
    )
    assert report(launches(0.4, 0.3, 0.2, 0.1, gap=0.1), latency_ms=1.31).notes == ()
    assert "launch-bound: 60%" in report(launches(0.1, 0.1, gap=0.3)).notes[0]


def test_kernels_of_layers_that_name_their_nodes_serve_all_of_them() -> None:
    first, second = profiled("a", "q k", 0.3), profiled("b", "v", 0.6)
    made = report(launches(0.3, 0.2, 0.4), first, second)
    assert [(row.layer, row.nodes, row.confidence) for row in made.rows] == [
        ("a", ("q", "k"), "likely"), ("b", ("v",), "likely"), ("b", ("v",), "likely"),
    ]  # fmt: skip


def test_the_one_kernel_of_a_product_has_a_rate_and_an_impossible_one_is_unknown() -> None:
    projected = 2 * 4 * 8 * 8  # of [4, 8] and [8, 8]
    made = report(launches(0.4, 0.3, 0.2, 0.1), peak=projected / 0.1e-3)
    row = made.rows[2]
    assert row.flops == projected
    assert row.peak_share == pytest.approx(0.5)
    assert (row.dtype, row.tile, row.tensor_cores) == ("float16", (64, 64, 32), True)
    assert report(launches(0.4, 0.3, 0.01, 0.1), peak=projected / 0.1e-3).rows[2].confidence == "unknown"


def test_dropped_records_and_runs_that_differ_are_reported() -> None:
    found = replace(launches(1.0), dropped=3, different_runs=1, notes=("a note",))
    notes = report(found).notes
    assert notes[0] == "a note"
    assert "3 records" in notes[1]
    assert "1 of 1 runs" in notes[2]


def test_layers_by_ranges_are_certain_for_the_nodes_too_where_the_layer_names_them() -> None:
    first, second = profiled("a", "q k", 0.3), profiled("b", "v", 0.6)
    run = TracedRun(
        activities=(
            KernelActivity(kind="kernel", name=GEMM, start_ns=20, end_ns=30, correlation_id=1),
            KernelActivity(kind="kernel", name=NAMES[1], start_ns=30, end_ns=40, correlation_id=2),
        ),
        calls=(
            LaunchCall(correlation_id=1, start_ns=1, end_ns=2, thread=0),
            LaunchCall(correlation_id=2, start_ns=3, end_ns=4, thread=0),
        ),
        ranges=(NvtxRange(name="b", domain="TensorRT", start_ns=0, end_ns=9, thread=0),),
    )
    found = replace(launches(0.3, 0.6, names=NAMES[:2]), marked_runs=(run,))
    rows = report(found, first, second).rows
    assert [(row.layer, row.layer_confidence, row.nodes, row.confidence) for row in rows] == [
        ("b", "certain", ("v",), "certain"), ("b", "certain", ("v",), "certain"),
    ]  # fmt: skip


# Busy and idle time of a device add up to the whole.


LAUNCHES = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), min_size=1, max_size=20)


@given(LAUNCHES)
def test_gaps_and_the_time_in_which_something_runs_are_the_span(launches: list[tuple[int, int]]) -> None:
    intervals = sorted((float(start), float(start + length)) for start, length in launches)
    covered = {tick for start, length in launches for tick in range(start, start + length)}
    assert sum(gaps_and_overlaps(intervals)[0]) + len(covered) == span_of(intervals)


def test_a_launch_that_overlaps_another_leaves_no_gap() -> None:
    assert gaps_and_overlaps([(0.0, 4.0), (1.0, 2.0), (5.0, 6.0)]) == ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    assert (gaps_and_overlaps([]), span_of([])) == (([], []), 0.0)
