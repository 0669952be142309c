import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.scripted_runs import COMPUTE, D2H, ENGINE, ENQUEUE, H2D, SCRIPT, Mode, counted, run, terms
from trtopt.measure.contracts import CONTRACTS
from trtopt.measure.loop.sampling import MIN_TIMED, TIMED_SHARE
from trtopt.measure.loop.stopping import Limits
from trtopt.measure.statistics.summaries import throughput
from trtopt.records import Measurement


def rate(measured: Measurement) -> float:
    return throughput(measured.samples, measured.batch).queries_per_s


# ── latency: one query in flight ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["trtexec-11", "isolated"])
def test_without_transfers_a_query_takes_its_enqueue_and_its_compute(name: str) -> None:
    measured = run(ScriptedDevice(SCRIPT), terms(name), "latency", counted(queries=3))
    samples, whole = measured.samples, ENQUEUE + COMPUTE
    assert samples.start_ms == [0.0, whole, 2 * whole, 3 * whole]
    assert samples.end_ms == [whole, 2 * whole, 3 * whole, 4 * whole]
    assert set(measured.staged.enqueue_ms) == {ENQUEUE}
    assert samples.gpu_compute_ms == samples.h2d_ms == samples.d2h_ms == []
    assert measured.staged.gpu_compute_ms == [whole] * MIN_TIMED  # the stream is idle while the host enqueues
    assert measured.staged.h2d_ms == measured.staged.d2h_ms == []
    assert samples.inference_stream == [0] * 4
    assert rate(measured) == pytest.approx(1e3 / whole, rel=1e-12)


def test_with_transfers_a_query_takes_both_copies_and_its_compute() -> None:
    measured = run(ScriptedDevice(SCRIPT), terms("trtexec-10"), "latency", counted(queries=3))
    samples, whole = measured.samples, H2D + COMPUTE + D2H
    assert samples.start_ms == [0.0, whole, 2 * whole, 3 * whole]
    assert samples.latency_ms == [whole] * 4
    assert set(measured.staged.enqueue_ms) == {ENQUEUE}
    assert measured.staged.gpu_compute_ms == [COMPUTE] * MIN_TIMED
    assert measured.staged.h2d_ms == [H2D] * MIN_TIMED
    assert measured.staged.d2h_ms == [D2H] * MIN_TIMED
    assert rate(measured) == pytest.approx(1e3 / whole, rel=1e-12)


def test_an_enqueue_longer_than_the_copy_delays_the_compute() -> None:
    script = Script(compute_ms=[1.0], enqueue_ms=[2.0], h2d_ms=0.5, d2h_ms=0.25)
    measured = run(ScriptedDevice(script), terms("trtexec-10"), "latency", counted(queries=1))
    assert measured.samples.latency_ms == [3.25, 3.25]
    assert set(measured.staged.enqueue_ms) == {2.0}
    assert measured.staged.gpu_compute_ms == [2.5] * MIN_TIMED


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_latency_pass_has_one_query_in_flight_whatever_the_contract(name: str) -> None:
    device = ScriptedDevice(SCRIPT)
    measured = run(device, terms(name, streams=3), "latency", counted(queries=5))
    assert measured.mode == "latency"
    assert (measured.contract.queue_ahead, measured.contract.streams) == (0, 1)
    assert measured.contract.name == f"{name}+streams=3"
    assert device.calls.count("context") == 1
    samples = measured.samples
    assert samples.start_ms[1:] == samples.end_ms[:-1]


def test_scripted_times_come_back_in_the_order_of_the_queries() -> None:
    script = Script(compute_ms=[9.0, 8.0, 8.0, 1.0, 2.0, 3.0, 4.0], enqueue_ms=[0.0])
    measured = run(ScriptedDevice(script), terms("isolated"), "latency", counted(queries=3, warmups=1))
    assert measured.samples.latency_ms == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_no_sample_pays_for_the_timing_of_stages(mode: Mode) -> None:
    """A tenth more queries have their stages timed, after the samples."""
    script = Script(compute_ms=[COMPUTE], enqueue_ms=[ENQUEUE], h2d_ms=H2D, d2h_ms=D2H, timing_ms=0.5)
    untimed = run(ScriptedDevice(SCRIPT), terms("trtexec-10"), mode, counted(queries=100))
    measured = run(ScriptedDevice(script), terms("trtexec-10"), mode, counted(queries=100))
    assert measured.samples == untimed.samples
    assert len(measured.staged.start_ms) == round(100 * TIMED_SHARE) + measured.contract.queue_ahead
    assert measured.staged.start_ms[0] == measured.samples.end_ms[-1]
    assert set(measured.staged.gpu_compute_ms) == {COMPUTE + 0.5}


# ── throughput: queries queued ahead ────────────────────────────────────────────────────────────────────


def test_a_queue_without_transfers_keeps_the_device_computing_without_a_gap() -> None:
    measured = run(ScriptedDevice(SCRIPT), terms("trtexec-11"), "throughput", counted(queries=4))
    samples = measured.samples
    assert samples.end_ms == [ENQUEUE + n * COMPUTE for n in range(1, 7)]
    assert samples.start_ms == [0.0, ENQUEUE, *samples.end_ms[:-2]]
    assert measured.staged.gpu_compute_ms == [ENQUEUE + COMPUTE, *[COMPUTE] * MIN_TIMED]
    assert set(measured.staged.enqueue_ms) == {ENQUEUE}
    assert rate(measured) == pytest.approx(6e3 / (ENQUEUE + 6 * COMPUTE), rel=1e-12)


def test_a_queue_overlaps_copies_with_compute() -> None:
    measured = run(ScriptedDevice(SCRIPT), terms("trtexec-10"), "throughput", counted(queries=4))
    samples = measured.samples
    assert samples.end_ms == [H2D + n * COMPUTE + D2H for n in range(1, 7)]
    assert samples.start_ms == [0.0, ENQUEUE, *samples.end_ms[:-2]]
    assert measured.staged.gpu_compute_ms == [COMPUTE] * (MIN_TIMED + 1)
    assert measured.staged.h2d_ms == [H2D] * (MIN_TIMED + 1)
    assert measured.staged.d2h_ms == [D2H] * (MIN_TIMED + 1)
    assert rate(measured) == pytest.approx(6e3 / (H2D + 6 * COMPUTE + D2H), rel=1e-12)


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_pageable_memory_costs_a_copy_by_the_host_and_a_wait_for_the_output(mode: Mode) -> None:
    """The host waits in every copy into pageable memory, so that a queue gains nothing."""
    script = Script(compute_ms=[COMPUTE], enqueue_ms=[ENQUEUE], h2d_ms=H2D, d2h_ms=D2H, staging_ms=0.0625)
    measured = run(ScriptedDevice(script), terms("trtexec-10", pinned=False), mode, counted(queries=3))
    whole = 0.0625 + H2D + COMPUTE + D2H
    assert measured.contract.name == "trtexec-10+no-pinned"
    assert rate(measured) == pytest.approx(1e3 / whole, rel=1e-12)
    assert set(measured.staged.gpu_compute_ms) == {COMPUTE}


@pytest.mark.parametrize("pinned", [True, False])
def test_host_memory_is_page_locked_as_the_contract_says(pinned: bool) -> None:
    device = ScriptedDevice(SCRIPT)
    run(device, terms("trtexec-10", pinned=pinned), "latency", counted(queries=1))
    assert ("pinned_buffer" in device.calls, "pageable_buffer" in device.calls) == (pinned, not pinned)


def test_copies_longer_than_the_compute_set_the_pace_of_a_queue() -> None:
    script = Script(compute_ms=[1.0], enqueue_ms=[0.25], h2d_ms=3.0, d2h_ms=1.0)
    measured = run(ScriptedDevice(script), terms("trtexec-10"), "throughput", counted(queries=4))
    assert measured.samples.end_ms == [3.0 * n + 1.0 + 1.0 for n in range(1, 7)]
    assert set(measured.staged.h2d_ms) == {3.0}
    assert rate(measured) == pytest.approx(6e3 / (6 * 3.0 + 2.0), rel=1e-12)


def test_without_a_queue_throughput_is_one_query_after_the_other() -> None:
    measured = run(ScriptedDevice(SCRIPT), terms("isolated"), "throughput", counted(queries=3))
    assert measured.samples.start_ms[1:] == measured.samples.end_ms[:-1]
    assert rate(measured) == pytest.approx(1e3 / (ENQUEUE + COMPUTE), rel=1e-12)


def test_two_streams_compute_at_the_same_time() -> None:
    device = ScriptedDevice(SCRIPT)
    measured = run(device, terms("trtexec-11", streams=2), "throughput", counted(queries=4))
    samples = measured.samples
    first = [ENQUEUE + n * COMPUTE for n in range(1, 5)]
    second = [2 * ENQUEUE + n * COMPUTE for n in range(1, 5)]
    assert samples.inference_stream == [0, 1] * 4
    assert samples.end_ms == [end for pair in zip(first, second, strict=True) for end in pair]
    assert rate(measured) == pytest.approx(8e3 / (2 * ENQUEUE + 4 * COMPUTE), rel=1e-12)
    assert measured.contract.streams == 2


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_every_stream_has_a_context_and_streams_of_its_own(name: str, streams: int) -> None:
    device = ScriptedDevice(SCRIPT)
    contract = terms(name, streams=streams)
    measured = run(device, contract, "throughput", counted(queries=6))
    assert device.calls.count("context") == streams
    assert device.calls.count("stream") == streams * (3 if contract.transfers else 1)
    assert set(measured.samples.inference_stream) == set(range(streams))


# ── when a pass ends ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "in_flight"), [("isolated", 1), ("trtexec-10", 2), ("trtexec-11", 2)])
def test_a_pass_ends_by_count_once_all_queries_in_flight_have_finished(name: str, in_flight: int) -> None:
    measured = run(ScriptedDevice(SCRIPT), terms(name), "throughput", counted(queries=7, warmups=3))
    assert len(measured.samples.start_ms) == 7 + in_flight
    assert len(measured.warmups.start_ms) == 3 + in_flight


def test_a_pass_ends_at_the_latest_by_time() -> None:
    script = Script(compute_ms=[0.75], enqueue_ms=[0.25])
    limits = Limits(warmup_s=0.0041, duration_s=0.0101, min_warmups=0, min_queries=0)
    measured = run(ScriptedDevice(script), terms("isolated"), "latency", limits)
    # Query n ends at n + 1 ms: the first one to end after the limit is the eleventh.
    assert len(measured.samples.start_ms) == 11
    assert measured.samples.wall_ms == 11.0
    assert measured.stop_reason.startswith("sampled for 0.0101 s: ")


def test_a_pass_needs_both_its_time_and_its_count() -> None:
    limits = Limits(warmup_s=0.0, duration_s=0.0101, min_warmups=0, min_queries=50)
    measured = run(ScriptedDevice(SCRIPT), terms("isolated"), "latency", limits)
    assert len(measured.samples.start_ms) == 50


@pytest.mark.parametrize(("stop_early", "taken_s"), [(False, 9.0), (True, 8.0)])
def test_a_steady_pass_samples_its_whole_duration_unless_it_may_stop_early(
    stop_early: bool, taken_s: float
) -> None:
    limits = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=9.0, stop_early=stop_early)
    measured = run(ScriptedDevice(SCRIPT), terms("isolated"), "latency", limits)
    assert measured.samples.wall_ms / 1e3 == pytest.approx(taken_s, abs=0.002)


def test_sampling_begins_when_the_warm_ups_have_settled() -> None:
    slow_start = [10.0] * 15 + [5.0] * 10 + [1.0] * 5
    limits = Limits(warmup_s=0.0, duration_s=0.0, min_warmups=0, min_queries=5)
    script = Script(compute_ms=[*slow_start, 1.0], enqueue_ms=[0.0])
    measured = run(ScriptedDevice(script), terms("isolated"), "latency", limits)
    assert set(measured.samples.latency_ms) == {1.0}
    assert measured.warmups.latency_ms[:30] == [
        *slow_start[1:],
        1.0,
    ]  # the lane's own first run comes before
    assert measured.warmup_reason.startswith("settled after ")


def test_warm_ups_are_kept_apart() -> None:
    script = Script(compute_ms=[9.0, *[5.0] * 4, *[1.0] * 9], enqueue_ms=[0.0])
    measured = run(ScriptedDevice(script), terms("isolated"), "latency", counted(queries=4, warmups=3))
    assert measured.warmups.latency_ms == [5.0] * 4
    assert measured.warmups.start_ms == [0.0, 5.0, 10.0, 15.0]
    assert measured.samples.latency_ms == [1.0] * 5
    assert measured.samples.start_ms == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_measurement_says_what_was_measured() -> None:
    measured = run(ScriptedDevice(SCRIPT), terms("trtexec-11"), "throughput", counted(queries=1))
    assert measured.engine == ENGINE
    assert (measured.batch, measured.shapes) == (8, {"x": (8, 4)})
    assert measured.mode == "throughput"
    assert measured.contract == CONTRACTS["trtexec-11"]
    assert measured.notes == ()
    assert measured.discarded == 0
