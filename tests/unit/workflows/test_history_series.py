"""A history: which runs belong together, what is said of the newest, and what changed with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support.histories import latency, runs_of
from trtopt.records import Backend, BenchReport, ClockReading, HistoryReport, HistorySeries, LayerPass
from trtopt.workflows.history import series_of

NEWER = Backend(name="tensorrt", version="11")
EVEN = [1.0] * 20
SLOWER = [*EVEN, *[1.05] * 5]


def only(results: list[BenchReport]) -> HistorySeries:
    (found,), _ = series_of((f"{number:03}.json", result) for number, result in enumerate(results))
    return found


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        (EVEN, "SAME"),
        (SLOWER, "SLOWER"),
        ([*EVEN, *[0.95] * 5], "FASTER"),
        ([*EVEN, *[1.05] * 19], "SLOWER"),
        ([*EVEN, *[1.05] * 21], "SAME"),  # it is the level now
        ([*EVEN, *[1.2] * 5, *[1.1] * 5], "SLOWER"),  # it came back by half
        ([*EVEN, *[1.2] * 8, *[1.0] * 5], "SAME"),
        ([*EVEN, 1.3], "UNDECIDED"),  # one run is no change, nor nothing
        ([*[1.0] * 9, *[1.3] * 3], "UNDECIDED"),  # three are too few for a change after nine
        ([1.5, *EVEN, 1.3, 1.3], "UNDECIDED"),  # one that was slow long ago hides none
        ([*EVEN, *[0.9] * 5, *[1.2] * 2], "UNDECIDED"),
        ([*EVEN, *[0.9] * 5, *[1.02] * 9], "SLOWER"),  # than what held, soon after it was faster
        ([*EVEN, *[0.5] * 15, *[0.75] * 5], "SLOWER"),  # than what it had become
        ([*EVEN, *[0.5] * 15, *[0.75] * 21], "SAME"),
        ([*EVEN, *[0.5] * 15, *[0.75] * 9, *[0.5] * 5], "FASTER"),
        ([*[1.0, 1.03] * 10, 1.0, *[1.3] * 8, *[1.03, 1.0] * 2, 1.03], "SAME"),  # two modes
        ([1.0] * 8, "UNDECIDED"),
        ([1.0] * 9, "SAME"),
    ],
)
def test_the_verdict_is_on_the_newest_level_against_the_last_that_held(
    levels: list[float], verdict: str
) -> None:
    found = only([*runs_of(levels)])
    assert found.verdict == verdict
    assert len(found.runs) == len(levels)


def test_runs_are_in_the_order_of_their_times_whatever_their_files_are_called() -> None:
    results = [*runs_of(SLOWER)]
    (found,), _ = series_of((f"{1000 - number}.json", result) for number, result in enumerate(results))
    assert [run.created for run in found.runs] == [one.created for one in results]
    assert found.changes[0].created == results[20].created


def device(result: BenchReport) -> BenchReport:
    info = msgspec.structs.replace(result.environment.device, name="another")
    return environment(result, device=info)


def environment(result: BenchReport, **changed: Any) -> BenchReport:
    return msgspec.structs.replace(result, environment=msgspec.structs.replace(result.environment, **changed))


def contract(result: BenchReport) -> BenchReport:
    return latency(result, contract=msgspec.structs.replace(result.points[0].latency.contract, graph=False))


@pytest.mark.parametrize("other", [device, contract])
def test_what_was_not_measured_alike_is_never_compared(other: Callable[[BenchReport], BenchReport]) -> None:
    results = [*runs_of(SLOWER)]
    mixed = [*results[:20], *map(other, results[20:])]
    series, _ = series_of((f"{number:03}.json", result) for number, result in enumerate(mixed))
    assert [len(one.runs) for one in series] == [20, 5]
    assert not any(one.changes for one in series)


def test_figures_that_the_newest_result_lacks_leave_the_gate_shut() -> None:
    results = [*runs_of(EVEN)]
    results[-1] = latency(results[-1], untrustworthy=("too hot",))
    (found,), notes = series_of((f"{number:03}.json", result) for number, result in enumerate(results))
    assert (found.verdict, len(found.runs)) == ("UNTRUSTWORTHY", 19)
    assert "019.json" in notes[0]


def test_a_point_that_is_new_and_has_no_figures_leaves_the_gate_shut() -> None:
    results = [*runs_of(EVEN)]
    (point,) = results[-1].points
    lost = msgspec.structs.replace(
        point,
        batch=64,
        latency=msgspec.structs.replace(point.latency, batch=64),
        failure="the device was lost",
    )
    results[-1] = msgspec.structs.replace(results[-1], points=(point, lost))
    found, _ = series_of((f"{number:03}.json", result) for number, result in enumerate(results))
    assert [(one.batch, len(one.runs), one.verdict) for one in found] == [
        (point.batch, 20, "SAME"),
        (64, 0, "UNTRUSTWORTHY"),
    ]
    shown = HistoryReport(folder="h", series=found).view
    assert [row.outcome for row in shown.gate] == ["ok", "untrustworthy"]
    assert "UNTRUSTWORTHY" in shown.markdown()
    assert "UNTRUSTWORTHY" in shown.html()


def test_a_figure_that_became_faster_does_not_make_up_for_one_that_became_slower() -> None:
    """First the fastest tenth by a fifth, then the rest: the product of both changes is none."""

    def tenth(result: BenchReport, ratio: float) -> BenchReport:
        samples = result.points[0].latency.samples
        fast = len(samples.start_ms) // 5
        latencies = [
            one * (ratio if place < fast else 1.25 * ratio) for place, one in enumerate(samples.latency_ms)
        ]
        ends = [start + one for start, one in zip(samples.start_ms, latencies, strict=True)]
        return latency(result, samples=msgspec.structs.replace(samples, end_ms=ends))

    before, faster, after = (runs_of([level] * count) for level, count in ((1.0, 20), (1.0, 9), (1.0, 9)))
    results = [*before, *(tenth(one, 0.8) for one in faster), *(tenth(one, 0.985) for one in after)]
    dated = [
        msgspec.structs.replace(one, created=f"2026-01-01T00:{number:02}:00+00:00")
        for number, one in enumerate(results)
    ]
    assert only(dated).verdict == "SLOWER"


def inspected(tactic: str) -> LayerPass:
    layers = [{"Name": "conv", "LayerType": "conv", "Inputs": [], "Outputs": [], "TacticValue": tactic}]
    return LayerPass(runs=1, layers=(), inspector=json.dumps({"Layers": layers, "Bindings": []}))


def tactic(result: BenchReport, name: str) -> BenchReport:
    (point,) = result.points
    return msgspec.structs.replace(result, points=(msgspec.structs.replace(point, layers=inspected(name)),))


def clocks(result: BenchReport, **read: Any) -> BenchReport:
    return latency(result, clocks=(ClockReading(at_ms=0.0, **{"sm_mhz": 1980, **read}),))


def info(result: BenchReport, **changed: Any) -> BenchReport:
    return environment(result, device=msgspec.structs.replace(result.environment.device, **changed))


PLANTED: dict[str, tuple[Callable[[BenchReport], BenchReport], Callable[[BenchReport], BenchReport]]] = {
    "throttling": (lambda one: clocks(one), lambda one: clocks(one, throttle=("hw_slowdown",), sm_mhz=1500)),
    "SM clock": (lambda one: clocks(one), lambda one: clocks(one, sm_mhz=1700)),
    "other processes on the GPU": (
        lambda one: clocks(one, other_processes=0),
        lambda one: clocks(one, other_processes=1),
    ),
    "device": (lambda one: one, lambda one: info(one, uuid="GPU-2")),
    "backend": (
        lambda one: one,
        lambda one: environment(one, backend=Backend(name="tensorrt", version="11")),
    ),
    "driver": (lambda one: one, lambda one: info(one, driver="590.1")),
    "model": (lambda one: one, lambda one: msgspec.structs.replace(one, source_sha256="c" * 64)),
    "tactic of conv": (lambda one: tactic(one, "0x1"), lambda one: tactic(one, "0x2")),
    "trtopt": (lambda one: one, lambda one: environment(one, trtopt="0.2.0")),
    "cores of the host": (
        lambda one: environment(one, cpus=(0, 1)),
        lambda one: environment(one, cpus=(0, 1, 2)),
    ),
    "code": (
        lambda one: environment(one, git_revision="a" * 40),
        lambda one: environment(one, git_revision="b" * 40),
    ),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_the_cause_is_what_changed_there_and_had_been_the_same(cause: str) -> None:
    """The engine is another in every run, as where each is of its own build."""
    before, after = PLANTED[cause]
    results = []
    for number, result in enumerate(runs_of(SLOWER)):
        engine = msgspec.structs.replace(result.points[0].latency.engine, sha256=f"{number:064x}")
        results.append((before if number < 20 else after)(latency(result, engine=engine)))
    (change,) = only(results).changes
    assert change.causes[0].what == cause
    assert change.causes[0].before != change.causes[0].after


def test_where_nothing_changed_there_is_no_cause() -> None:
    results = [environment(result, git_revision=None) for result in runs_of(SLOWER)]
    (change,) = only(results).changes
    assert change.causes == ()
