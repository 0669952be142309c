"""Samples in groups between clock readings, over the scripted device in virtual time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.scripted_device.parts import ScriptedEvent, scripted_stream
from tests.support.scripted_runs import run, terms
from trtopt.device.api import Stream
from trtopt.measure.loop.sampling import GROUP_S, MIN_QUERIES, QUERIES_PER_WAITING_SLOT
from trtopt.measure.loop.stopping import Limits
from trtopt.measure.statistics.summaries import throughput
from trtopt.records import ClockReading, Measurement

FULL = ClockReading(at_ms=0.0, sm_mhz=1980, power_w=400.0)
SLOW = ClockReading(at_ms=0.0, sm_mhz=1200)
HOT = ClockReading(at_ms=0.0, sm_mhz=1980, throttle=("hw_thermal_slowdown",))
CAPPED = ClockReading(at_ms=0.0, sm_mhz=1600, throttle=("sw_power_cap",))
LIMITS = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=1.0)


def measured(
    clocks: Sequence[ClockReading],
    *,
    contract: str = "isolated",
    mode: str = "latency",
    compute_ms: Sequence[float] = (1.0,),
    reading_ms: float = 2.0,
    limits: Limits = LIMITS,
    fail_at: tuple[str, int] | None = None,
) -> Measurement:
    script = Script(
        compute_ms=compute_ms,
        enqueue_ms=[0.125],
        h2d_ms=0.5,
        d2h_ms=0.25,
        clocks=clocks,
        reading_ms=reading_ms,
        fail_at=fail_at,
    )
    device = ScriptedDevice(script)
    made = run(device, terms(contract), mode, limits)  # type: ignore[arg-type]
    assert device.open == 0
    return made


def sizes(measurement: Measurement) -> list[int]:
    groups = measurement.samples.group
    return [groups.count(index) for index in sorted(set(groups))]


# ── groups and readings ─────────────────────────────────────────────────────────────────────────────────


def test_where_the_clocks_are_unknown_no_group_is_judged() -> None:
    made = measured([])
    assert (made.clocks, made.groups, set(made.samples.group)) == ((), (), {0, 1, 2, 3})
    assert made.clock_reference.problem == "the script tells no clocks"
    assert made.untrustworthy == ()


def test_every_group_lies_between_two_readings() -> None:
    made = measured([FULL])
    assert len(made.groups) == 4  # 1 s in groups of a quarter
    assert len(made.clocks) == 5
    samples = made.samples
    for index in range(4):
        queries = [query for query, group in enumerate(samples.group) if group == index]
        assert made.clocks[index].at_ms < min(samples.start_ms[query] for query in queries)
        assert max(samples.end_ms[query] for query in queries) <= made.clocks[index + 1].at_ms
    assert made.clock_reference.mhz == 1980


def test_a_group_lasts_a_quarter_of_a_second() -> None:
    first, second, third, _ = sizes(measured([FULL]))
    assert first == second == third == pytest.approx(GROUP_S / 0.001125, abs=2)


@pytest.mark.parametrize(("contract", "slots"), [("isolated", 1), ("trtexec-11", 2), ("serving", 3)])
def test_a_group_of_slow_queries_has_enough_of_them(contract: str, slots: int) -> None:
    limits = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=30.0)
    made = measured([FULL], contract=contract, mode="throughput", compute_ms=[50.0], limits=limits)
    least = MIN_QUERIES if slots == 1 else QUERIES_PER_WAITING_SLOT * (slots - 1)
    assert sizes(made)[0] == least + slots - 1  # and those that were in flight


def test_a_reading_is_no_part_of_any_latency() -> None:
    with_pauses, without = measured([FULL], reading_ms=80.0), measured([])
    assert set(map(round, with_pauses.samples.latency_ms, [6] * 2000)) == {1.125}
    assert set(map(round, without.samples.latency_ms, [6] * 2000)) == {1.125}


@pytest.mark.parametrize("contract", ["trtexec-10", "trtexec-11", "serving"])
def test_a_reading_is_no_part_of_the_throughput(contract: str) -> None:
    rates = [
        throughput(made.samples, made.batch).queries_per_s
        for made in (
            measured([FULL], contract=contract, mode="throughput", reading_ms=80.0),
            measured([FULL], contract=contract, mode="throughput", reading_ms=0.0),
            measured([], contract=contract, mode="throughput"),
        )
    ]
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)
    assert rates[1] == pytest.approx(rates[2], rel=0.01)  # a queue is filled and emptied once a group


def test_pauses_do_not_use_up_the_time_limit() -> None:
    made = measured([FULL], reading_ms=400.0)
    assert made.samples.wall_ms == pytest.approx(1000, rel=0.01)
    assert len(made.groups) == 4


@pytest.mark.parametrize(("contract", "slots"), [("isolated", 1), ("trtexec-11", 2)])
def test_every_slot_runs_one_uncounted_query_after_a_reading(contract: str, slots: int) -> None:
    made = measured([FULL], contract=contract, mode="throughput")
    again = [made.warmups.group.count(index) for index in range(len(made.groups))]
    assert again[1:] == [slots] * (len(made.groups) - 1)
    assert again[0] > slots  # and those before sampling
    starts = made.warmups.start_ms
    assert starts == sorted(starts)


# ── discards ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_under_a_slowdown_is_kept_apart_and_never_counted() -> None:
    """The first group is hot and slow; sampling makes up for it until its time is over."""
    made = measured([FULL, HOT, FULL, *[FULL] * 9], compute_ms=[*[3.0] * 140, 1.0])
    assert made.groups == (("hw thermal slowdown",), ("hw thermal slowdown",), *[()] * (len(made.groups) - 2))
    assert made.discarded_samples is not None
    assert made.discarded == len(made.discarded_samples.start_ms) > 0
    assert set(made.discarded_samples.group) == {0, 1}
    assert set(made.samples.group) == set(range(2, len(made.groups)))
    assert 3.125 in {round(ms, 6) for ms in made.discarded_samples.latency_ms}
    assert {round(ms, 6) for ms in made.samples.latency_ms} == {1.125}


def test_few_discards_leave_a_run_trustworthy_and_many_do_not() -> None:
    limits = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=2.5)
    few = measured([FULL, FULL, SLOW, *[FULL] * 20], limits=limits)
    assert [bool(reasons) for reasons in few.groups].count(True) == 2
    assert few.untrustworthy == ()
    many = measured([FULL, SLOW, FULL, SLOW, *[FULL] * 20], limits=limits)
    assert many.untrustworthy == ("4 of 10 groups of samples discarded: SM clock under 75% of 1980 MHz (4)",)


def test_a_throttled_run_ends_in_time_without_a_figure_and_is_untrustworthy() -> None:
    made = measured([SLOW])
    assert made.samples.start_ms == []
    assert made.discarded == sum(1 for _ in made.discarded_samples.start_ms)  # type: ignore[union-attr]
    assert made.discarded > 800
    assert made.stop_reason.startswith("sampled for 1 s: 0 queries")
    assert made.untrustworthy == ("4 of 4 groups of samples discarded: SM clock under 75% of 1980 MHz (4)",)


def test_a_throttled_run_that_is_slower_than_its_time_limit_ends() -> None:
    made = measured([SLOW], compute_ms=[500.0])
    assert made.samples.start_ms == []
    assert made.discarded > 0


def test_a_card_at_its_power_limit_is_at_its_own_speed() -> None:
    made = measured([CAPPED])
    assert made.discarded == 0
    assert made.discarded_samples is None
    assert made.untrustworthy == ()


def test_discarded_queries_do_not_make_a_run_steady() -> None:
    """It is looked at in a group that is discarded: it ends with a later one."""
    limits = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=20.0, stop_early=True)
    calm, hot = (measured([*[FULL] * 32, hot, *[FULL] * 90], limits=limits) for hot in (FULL, HOT))
    assert calm.stop_reason.startswith("steady: ")
    assert hot.stop_reason.startswith("steady: ")
    assert hot.discarded > 0
    assert len(hot.groups) > len(calm.groups)


# ── what the loop adds ──────────────────────────────────────────────────────────────────────────────────


class Slower(ScriptedDevice):
    """Its events take the host a while to record; a bare loop needs none."""

    def event(self, *, blocking: bool = False, timed: bool = True) -> ScriptedEvent:
        made = super().event(blocking=blocking, timed=timed)
        record = made.record

        def late(stream: Stream) -> None:
            record(stream)
            self.host_s = max(self.host_s, scripted_stream(stream).ready_s) + self.late_ms / 1e3

        made.record = late  # type: ignore[method-assign]
        return made

    late_ms = 0.0


@pytest.mark.parametrize(("late_ms", "told"), [(0.05, ["the loop adds 50.0 µs (4.3% of p50)"]), (0.005, [])])
def test_what_the_loop_adds_is_told_above_a_hundredth(late_ms: float, told: list[str]) -> None:
    device = Slower(Script(compute_ms=[1.0], enqueue_ms=[0.125]))
    device.late_ms = late_ms
    made = run(device, terms("isolated"), "latency", replace(LIMITS, duration_s=2.0))
    assert made.bare is not None
    assert set(made.bare.group) == set(made.samples.group) == set(range(8))
    assert {round(ms, 6) for ms in made.bare.latency_ms} == {1.125}
    assert [note.split(" to what")[0] for note in made.notes] == told


def test_queries_that_queue_have_no_bare_ones_beside_them() -> None:
    made = run(ScriptedDevice(Script()), terms("trtexec-11"), "throughput", LIMITS)
    assert made.bare is None


# ── a device that falls away ────────────────────────────────────────────────────────────────────────────


def test_what_was_measured_before_the_device_fell_away_is_kept_and_marked() -> None:
    made = measured([FULL], fail_at=("wait", 600))
    before = measured([FULL])
    assert made.failure == "scripted failure of wait"
    assert made.stop_reason == "failure: scripted failure of wait"
    assert made.untrustworthy == ("the device failed in the middle: scripted failure of wait",)
    count = len(made.samples.start_ms)
    assert 500 < count < 600
    assert made.samples.start_ms == before.samples.start_ms[:count]
    assert made.samples.group == before.samples.group[:count]
    assert len(made.clocks) == len(made.groups) + 1


def test_a_device_that_falls_away_between_groups_leaves_the_groups_before() -> None:
    whole = measured([FULL])
    finished = len(whole.warmups.start_ms) - 3 + sizes(whole)[0]  # the second group's uncounted query fails
    made = measured([FULL], fail_at=("wait", finished + 1))
    assert sizes(made) == sizes(whole)[:1]
    assert len(made.clocks) == len(made.groups) + 1
