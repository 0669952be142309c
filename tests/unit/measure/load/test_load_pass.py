"""Load passes and the search for a rate, on the scripted device."""

import gc
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tests.support import examples
from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import calls_of, counted, run, subject_of, terms
from trtopt.errors import DeviceError, UsageError
from trtopt.measure.analysis.findings import trust_of
from trtopt.measure.load.arrivals import (
    Goal,
    Load,
    achieved_rate,
    arrivals_s,
    keeps_up,
    offered_rate,
    probe_s,
)
from trtopt.measure.load.load_pass import (
    Bounds,
    LoadSettings,
    bounds_of,
    load_settings,
    measure_load,
    search_load,
)
from trtopt.measure.loop.stopping import Limits
from trtopt.records import BenchPoint, ClockReading, LoadPass, LoadSearch, Trust, from_json, to_json
from trtopt.report.bench import load_lines

LIMITS = Limits(warmup_s=0.0, max_warmup_s=0.0, min_warmups=3, duration_s=1.0)
SERVER = Script(compute_ms=[1.0], enqueue_ms=[0.0], h2d_ms=0.0, d2h_ms=0.0)
"""Serves 1,000 requests a second."""


def loaded(
    load: Load, device: ScriptedDevice | None = None, contract: str = "isolated", limits: Limits = LIMITS
) -> LoadPass:
    device = device or ScriptedDevice(SERVER)
    session = ScriptedTarget(device).load(b"engine")
    try:
        return measure_load(subject_of(session), terms(contract), load, limits)
    finally:
        session.close()


def searched(
    settings: LoadSettings, device: ScriptedDevice | None = None, phases: list[str] | None = None
) -> LoadSearch:
    closed = run(ScriptedDevice(SERVER), terms("isolated"), "latency", counted(queries=200))
    device = device or ScriptedDevice(SERVER)
    session = ScriptedTarget(device).load(b"engine")
    try:
        return search_load(
            subject_of(session),
            terms("isolated"),
            settings,
            (closed, closed),
            LIMITS,
            lambda phase, fraction: phases.append(phase) if phases is not None else None,
        )
    finally:
        session.close()


# ── what is asked for ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("load", "max_latency", "settings"),
    [
        (None, None, None),
        ("500", None, LoadSettings(arrivals="constant", rate=500.0)),
        ("poisson:500", None, LoadSettings(arrivals="poisson", rate=500.0)),
        (None, "p99=5ms", LoadSettings(arrivals="poisson", goal=Goal(99.0, 5.0))),
        ("poisson", "p99=5ms", LoadSettings(arrivals="poisson", goal=Goal(99.0, 5.0))),
        ("constant", "p50=1s", LoadSettings(arrivals="constant", goal=Goal(50.0, 1000.0))),
        ("500", "p99=5ms", LoadSettings(arrivals="constant", rate=500.0, goal=Goal(99.0, 5.0))),
        ("poisson:500", "p99=5ms", LoadSettings(arrivals="poisson", rate=500.0, goal=Goal(99.0, 5.0))),
    ],
)
def test_a_load_has_a_rate_or_a_latency_to_keep(
    load: str | None, max_latency: str | None, settings: LoadSettings | None
) -> None:
    assert load_settings(load, max_latency) == settings


@pytest.mark.parametrize(("load", "max_latency"), [("poisson", None), ("often", "p99=5ms"), (None, "5ms")])
def test_another_load_is_refused(load: str | None, max_latency: str | None) -> None:
    with pytest.raises(UsageError):
        load_settings(load, max_latency)


# ── one load ────────────────────────────────────────────────────────────────────────────────────────────


def test_below_capacity_every_request_is_served_at_once() -> None:
    measured = loaded(Load(800.0))
    assert measured.arrived == len(measured.latency_ms) == 800
    assert measured.waiting_ms == pytest.approx([0.0] * 800, abs=1e-6)
    assert measured.latency_ms == pytest.approx([1.0] * 800, abs=1e-6)
    assert measured.arrival_ms == pytest.approx([1.25 * n for n in range(800)])
    assert offered_rate(measured) == achieved_rate(measured) == 800.0
    assert keeps_up(measured)
    assert (measured.window_s, measured.failure, measured.most_waiting) == (1.0, None, 0)


def test_a_poisson_load_is_seeded_and_counts_its_own_arrivals() -> None:
    measured = loaded(Load(500.0, "poisson"))
    assert measured.arrival_ms == pytest.approx(
        [at * 1e3 for at in arrivals_s(Load(500.0, "poisson"), 1.0, seed=measured.seed)], abs=1e-6
    )
    assert offered_rate(measured) == achieved_rate(measured) == measured.arrived == len(measured.latency_ms)
    waited, served = measured.waiting_ms, measured.service_ms
    assert measured.latency_ms == pytest.approx([a + b for a, b in zip(waited, served, strict=True)])


def test_above_capacity_the_record_reports_it_with_both_rates() -> None:
    measured = loaded(Load(2500.0))
    assert not keeps_up(measured)
    assert offered_rate(measured) == 2500.0
    assert achieved_rate(measured) == pytest.approx(1000.0, rel=1e-3)
    assert len(measured.latency_ms) == pytest.approx(2000, abs=1)
    assert measured.arrived == 2500
    assert measured.stop_reason == "requests were still waiting 1 s after the arrivals' end"
    assert measured.latency_ms == sorted(measured.latency_ms)


@pytest.mark.parametrize(("stalled", "kept"), [(slice(790, None), True), (slice(300, None), False)])
def test_a_stall_is_a_falling_behind_only_if_it_is_never_made_up_for(stalled: slice, kept: bool) -> None:
    measured = loaded(Load(800.0))
    starts = np.array(measured.samples.start_ms)
    starts[stalled] += 0.03 * starts[stalled] + 1.0
    late = msgspec.structs.replace(measured.samples, start_ms=starts.tolist())
    assert keeps_up(msgspec.structs.replace(measured, samples=late)) is kept


def test_a_request_that_ends_long_after_the_arrivals_is_no_falling_behind() -> None:
    measured = loaded(Load(3.0), ScriptedDevice(replace(SERVER, compute_ms=[400.0])))
    assert measured.samples.end_ms[-1] == pytest.approx(1200.0)
    assert len(measured.latency_ms) == 3
    assert keeps_up(measured)


def test_clocks_are_read_before_and_after_and_a_slowdown_is_reported() -> None:
    full = ClockReading(at_ms=0.0, sm_mhz=1980)
    hot = ClockReading(at_ms=0.0, sm_mhz=1980, throttle=("sw_thermal_slowdown",))
    steady = loaded(Load(100.0), ScriptedDevice(replace(SERVER, clocks=[full])))
    assert [reading.sm_mhz for reading in steady.clocks] == [1980, 1980]
    assert steady.clocks[1].at_ms >= steady.samples.end_ms[-1]
    assert steady.clock_reference.mhz == 1980
    assert steady.untrustworthy == ()
    slowed = loaded(Load(100.0), ScriptedDevice(replace(SERVER, clocks=[full, hot])))
    assert slowed.untrustworthy == ("the device was slowed: sw thermal slowdown",)
    point = BenchPoint(batch=8, latency=examples.measurement(), load=slowed)
    assert trust_of(point, examples.GPU) is Trust.NONE
    assert load_lines(8, slowed)[2] == "batch 8: the device was slowed: sw thermal slowdown"


def test_where_the_clocks_are_unknown_a_load_has_none() -> None:
    measured = loaded(Load(100.0))
    assert (measured.clocks, measured.untrustworthy) == ((), ())
    assert measured.clock_reference.problem == "the script tells no clocks"


def test_the_host_polls_whatever_the_contract_says_and_the_record_tells() -> None:
    device = ScriptedDevice(SERVER)
    measured = loaded(Load(100.0), device, contract="trtexec-10")
    assert (measured.contract.name, measured.contract.sync) == ("trtexec-10+sync=spin", "spin")
    assert device.calls.count("copy_to_device") >= 100


def test_without_a_graph_a_note_names_the_reason() -> None:
    device = ScriptedDevice(Script(graphs=False, compute_ms=[1.0]))
    measured = loaded(Load(100.0), device, "trtexec-11")
    assert measured.contract.name == "trtexec-11+no-graph"
    assert measured.notes == ("measured without a CUDA graph: the script's engine cannot be captured",)


def test_the_target_warms_up_before_requests_come() -> None:
    slow_at_first = Script(compute_ms=[50.0] * 4 + [1.0], enqueue_ms=[0.0])
    measured = loaded(Load(100.0), ScriptedDevice(slow_at_first))
    assert max(measured.latency_ms) == pytest.approx(1.0, abs=1e-6)
    assert "queries" in measured.warmup_reason


def test_a_load_pass_reads_back_as_it_was_written() -> None:
    measured = loaded(Load(100.0, "poisson"))
    assert from_json(to_json(measured), LoadPass) == measured


# ── devices that fail ───────────────────────────────────────────────────────────────────────────────────


def test_what_was_served_before_the_device_failed_is_kept_and_marked() -> None:
    device = ScriptedDevice(replace(SERVER, fail_at=("wait", 104)))
    measured = loaded(Load(500.0), device)
    assert measured.failure == "scripted failure of wait"
    assert measured.stop_reason == "the device failed"
    assert 90 <= len(measured.latency_ms) < measured.arrived <= 104
    assert measured.latency_ms == pytest.approx([1.0] * len(measured.latency_ms), abs=1e-6)
    assert not keeps_up(measured)
    assert device.open == 0


def failure_of(device: ScriptedDevice, contract: str, limits: Limits) -> str | None:
    """In the record, or as an error if nothing had been served."""
    try:
        return loaded(Load(300.0), device, contract, limits).failure
    except DeviceError as error:
        return error.problem


@pytest.mark.parametrize("contract", ["isolated", "trtexec-10", "trtexec-11"])
def test_whatever_call_fails_everything_is_closed(contract: str) -> None:
    short = replace(LIMITS, duration_s=0.01)
    calls = calls_of(lambda device: loaded(Load(300.0), device, contract, short))
    assert {name for name, _ in calls} >= {"context", "event", "enqueue", "wait", "wait_any"}
    for name, count in calls:
        device = ScriptedDevice(Script(fail_at=(name, count)))
        assert failure_of(device, contract, short) == f"scripted failure of {name}"
        assert (device.open, device.used) == (0, 0)
        assert device.calls.count(name) == count
        assert gc.isenabled()


def test_a_device_that_fails_before_any_request_is_an_error() -> None:
    with pytest.raises(DeviceError, match="scripted failure of context"):
        loaded(Load(500.0), ScriptedDevice(Script(fail_at=("context", 1))))


# ── the highest rate ────────────────────────────────────────────────────────────────────────────────────


def test_the_search_finds_the_capacity_of_a_server() -> None:
    """Evenly spaced requests wait not at all up to 1,000/s and ever longer beyond."""
    phases: list[str] = []
    found = searched(LoadSettings(arrivals="constant", goal=Goal(99.0, 5.0)), phases=phases)
    assert found.rate is not None
    assert 1000 / 1.02 <= found.rate <= 1000 * 1.005
    assert found.reason.startswith(f"{found.rate:g} requests/s keep p99=5ms, ")
    assert found.failure is None
    assert found.last is not None
    assert found.last.rate == found.rate
    assert found.again is not None
    assert found.again.kept
    assert phases[0] == "load 500/s"
    assert len(phases) == len(found.probes) + 1


def test_a_probe_gives_the_percentile_that_lindley_gives() -> None:
    found = searched(LoadSettings(arrivals="poisson", goal=Goal(99.0, 5.0)))
    assert found.last is not None
    assert (found.seed, found.last.seed) == (0, 1)
    kept = [probe for probe in found.probes if probe.kept]
    assert found.rate == max(probe.rate for probe in kept)
    for probe in kept:
        duration_s = probe_s(Goal(99.0, 5.0), probe.rate, LIMITS.duration_s)
        arrivals = arrivals_s(Load(probe.rate, "poisson"), duration_s, found.seed)
        waits = [0.0]
        for earlier, later in pairwise(arrivals):
            waits.append(max(0.0, waits[-1] + 1.0 - (later - earlier) * 1e3))
        assert probe.requests == len(arrivals)
        assert probe.latency_ms == pytest.approx(float(np.percentile(waits, 99)) + 1.0, abs=1e-5)


def test_requests_are_waited_for_in_proportion_to_their_number_and_to_the_limit() -> None:
    assert bounds_of(0.2, 1000) == Bounds(0.2, drain_s=1.0)
    assert bounds_of(5.0, 1000) == Bounds(5.0, drain_s=5.0)
    assert bounds_of(60.0, 1000) == Bounds(60.0, drain_s=10.0)
    assert bounds_of(5.0, 1000, Goal(99.0, 5.0)) == Bounds(5.0, drain_s=5.0, late_ms=5.0, max_late=10)
    assert bounds_of(5.0, 1000, Goal(99.0, 30_000.0)).drain_s == 30.0


def test_rates_beyond_the_goal_are_broken_off() -> None:
    found = searched(LoadSettings(arrivals="constant", rate=8000.0, goal=Goal(99.0, 5.0)))
    assert [probe.rate for probe in found.probes[:4]] == [8000.0, 4000.0, 2000.0, 1000.0]
    assert [probe.kept for probe in found.probes[:4]] == [False, False, False, True]
    assert found.probes[0].requests < 120


def test_a_latency_that_one_query_alone_misses_is_out_of_reach_without_a_probe() -> None:
    found = searched(LoadSettings(arrivals="poisson", goal=Goal(99.0, 0.5)))
    assert (found.probes, found.rate, found.last) == ((), None, None)
    assert found.reason == "p99=0.5ms is out of reach: p99 is 1.000 ms with one query at a time"


def test_a_search_in_which_the_device_fails_keeps_its_probes() -> None:
    device = ScriptedDevice(replace(SERVER, fail_at=("wait", 1300)))
    found = searched(LoadSettings(arrivals="constant", goal=Goal(99.0, 5.0)), device)
    assert found.failure == "scripted failure of wait"
    assert found.reason == "not ended: scripted failure of wait"
    assert [probe.kept for probe in found.probes] == [True, False]
    assert found.again is None
    assert found.last is not None
    assert found.last.failure is not None
    assert device.open == 0
