"""What is told of a measurement beside its figures."""

import msgspec
import numpy as np
import pytest

from tests.support import examples
from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.scripted_runs import run, terms
from trtopt.measure.analysis.findings import (
    CLOCKS_BELOW,
    COPY_BOUND,
    ENQUEUE_BOUND,
    STREAMS_GAIN_NOTHING,
    UNSTABLE,
    clocks_text,
    doubts_of,
    hints_of,
    remarks,
    trust_of,
)
from trtopt.measure.loop.stopping import Limits
from trtopt.records import BenchPoint, ClockReading, ClockReference, DeviceInfo, Measurement, Trust

LONG = Limits(warmup_s=0.0, max_warmup_s=0.0, duration_s=4.0)
GPU, CPU = examples.GPU, DeviceInfo(kind="cpu", name="a processor")


def measured(compute_ms: np.ndarray | list[float], **script: object) -> Measurement:
    device = ScriptedDevice(Script(compute_ms=list(compute_ms), enqueue_ms=[0.0], **script))  # type: ignore[arg-type]
    return run(device, terms("isolated"), "latency", LONG)


def noise(sigma: float, count: int = 4000) -> np.ndarray:
    return np.exp(sigma * np.random.RandomState(0).standard_normal(count))


def texts(measurement: Measurement) -> tuple[str, ...]:
    return tuple(remark.text for remark in remarks(measurement))


# ── remarks ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_steady_run_needs_no_remark() -> None:
    assert texts(measured(noise(0.02))) == ()


def test_a_drifting_run_is_reported_with_its_amount() -> None:
    (remark,) = texts(measured(noise(0.005, 4600) * np.linspace(1.0, 1.04, 4600)))
    assert remark.startswith("latency drifted by +3.")


def test_two_modes_are_reported_with_both() -> None:
    upper = np.random.RandomState(1).random_sample(4000) < 0.3
    (remark,) = texts(measured(noise(0.005) * np.where(upper, 1.1, 1.0)))
    assert remark == (
        "latency has two modes, 0.999 ms and 1.100 ms, with 27% of the queries in the upper one: "
        "no single figure describes it"
    )


def test_the_shape_of_latencies_with_a_queue_is_no_remark() -> None:
    modes = list(np.where(np.arange(4000) % 4 == 3, 1.1, 1.0))
    device = ScriptedDevice(Script(compute_ms=modes, enqueue_ms=[0.0]))
    assert texts(run(device, terms("trtexec-11"), "throughput", LONG)) == ()


def test_discards_are_reported_and_told_once() -> None:
    hot = ClockReading(at_ms=0.0, sm_mhz=1980, throttle=("sw_thermal_slowdown",))
    full = ClockReading(at_ms=0.0, sm_mhz=1980)
    once = measured([1.0], clocks=[full, hot, *[full] * 50])
    assert texts(once) == ("2 of 16 groups of samples discarded: sw thermal slowdown (2)",)
    always = measured([1.0], clocks=[hot])
    assert texts(always) == ("16 of 16 groups of samples discarded: sw thermal slowdown (16)",)
    assert trust_of(BenchPoint(batch=8, latency=once), GPU) is Trust.FULL
    assert trust_of(BenchPoint(batch=8, latency=always), GPU) is Trust.NONE
    assert trust_of(BenchPoint(batch=8, latency=once, throughput=always), GPU) is Trust.NONE


@pytest.mark.parametrize(
    ("latencies", "short"),
    [
        (noise(0.2), "latency is unstable"),
        (np.where(np.arange(4000) % 50 == 49, 100.0, 1.0), "latency has a long tail"),
        (noise(0.005) * np.linspace(1.0, 1.04, 4000), "latency drifted"),
        (noise(0.005) * np.where(noise(1.0) > 1.0, 1.1, 1.0), "latency has two modes"),
    ],
)
def test_latencies_that_the_next_run_need_not_repeat_are_unsteady(latencies: np.ndarray, short: str) -> None:
    point = BenchPoint(batch=8, latency=measured(latencies))
    assert trust_of(point, CPU) is Trust.UNSTEADY
    assert doubts_of(point, CPU)[0].short == short


def test_the_worst_doubt_comes_first() -> None:
    spoilt = msgspec.structs.replace(measured(noise(0.2)), untrustworthy=("too hot",))
    doubts = doubts_of(BenchPoint(batch=8, latency=spoilt), CPU)
    assert [doubt.trust for doubt in doubts] == [Trust.NONE, Trust.UNSTEADY]


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────


def with_clocks(*clocks: ClockReading, reference: ClockReference) -> Measurement:
    return msgspec.structs.replace(examples.measurement(), clocks=clocks, clock_reference=reference)


def test_unknown_clocks_are_reported_with_the_reason() -> None:
    reference = ClockReference(problem="NVML: Driver Not Loaded")
    assert clocks_text([with_clocks(reference=reference)]) == "clocks are unknown: NVML: Driver Not Loaded"


def test_clocks_are_reported_as_ranges_with_the_clock_that_judges_them() -> None:
    told = clocks_text(
        [
            with_clocks(
                ClockReading(at_ms=0.0, sm_mhz=345, power_w=120.4, temperature_c=40, throttle=("gpu_idle",)),
                ClockReading(at_ms=1.0, sm_mhz=1965, power_w=690.0, temperature_c=61),
                ClockReading(at_ms=2.0, sm_mhz=1980, throttle=("sw_power_cap",), other_processes=1),
                reference=ClockReference(mhz=1980, kind="maximum"),
            )
        ]
    )
    assert told == (
        "clocks: SM 1965 to 1980 MHz, against the maximum clock of 1980 MHz, 120 to 690 W, 40 to 61 °C, "
        "at the power limit in 1 of 3 readings, as large loads are on large GPUs, "
        "1 other process on the GPU"
    )


def test_what_a_driver_does_not_tell_is_reported() -> None:
    reference = ClockReference(mhz=1980, kind="application", problem="NVML does not report throttle reasons")
    told = clocks_text([with_clocks(ClockReading(at_ms=0.0, sm_mhz=1980), reference=reference)])
    assert told.endswith(", NVML does not report throttle reasons")


# ── hints ───────────────────────────────────────────────────────────────────────────────────────────────


def codes(point: BenchPoint) -> list[str]:
    return [hint.short for hint in hints_of(point, GPU)]


def sampled(terms: dict[str, object] | None = None, **changes: list[float]) -> Measurement:
    """Four queries in one group at their application clock; `terms` are changes to the contract."""
    columns: dict[str, list[float]] = {
        "start_ms": [0.0, 2.0, 4.0, 6.0],
        "end_ms": [2.0, 4.0, 6.0, 8.0],
        "enqueue_ms": [0.1] * 4,
        "gpu_compute_ms": [1.0] * 4,
        "h2d_ms": [0.2] * 4,
        "d2h_ms": [0.2] * 4,
        "inference_stream": [0] * 4,
        "group": [],
    }
    samples = msgspec.convert(columns | changes, type(examples.samples()))
    plain = examples.measurement()
    return msgspec.structs.replace(
        plain,
        samples=samples,
        staged=samples,
        contract=msgspec.structs.replace(plain.contract, **(terms or {})),
        clocks=(ClockReading(at_ms=0.0, sm_mhz=1980),) * 2,
        clock_reference=ClockReference(mhz=1980, kind="application"),
    )


def test_a_point_with_nothing_wrong_gets_no_hint() -> None:
    assert codes(BenchPoint(batch=8, latency=sampled())) == []


@pytest.mark.parametrize(
    ("at", "beyond", "short"),
    [
        ({"enqueue_ms": [0.8] * 4}, {"enqueue_ms": [0.801] * 4}, ENQUEUE_BOUND),
        ({"h2d_ms": [0.8] * 4}, {"h2d_ms": [0.81] * 4}, COPY_BOUND),
        ({"gpu_compute_ms": [0.976, 1.024] * 2}, {"gpu_compute_ms": [0.974, 1.026] * 2}, UNSTABLE),
    ],
)
def test_a_hint_is_given_only_beyond_its_limit(
    at: dict[str, list[float]], beyond: dict[str, list[float]], short: str
) -> None:
    assert codes(BenchPoint(batch=8, latency=sampled(**at))) == []
    assert codes(BenchPoint(batch=8, latency=sampled(**beyond))) == [short]


@pytest.mark.parametrize(
    ("terms", "changes", "text", "remedy"),
    [
        (
            {"graph": False},
            {"enqueue_ms": [0.9] * 4},
            "enqueueing takes 0.900 ms, computing 1.000",
            "--graph",
        ),
        ({"graph": True}, {"enqueue_ms": [0.9] * 4}, "enqueueing takes 0.900 ms", "try a larger --batch"),
        ({"queue_ahead": 0}, {"h2d_ms": [0.9] * 4}, "0.900 ms in and 0.200 ms out", "--contract serving"),
        ({"queue_ahead": 1}, {"h2d_ms": [0.9] * 4}, "copies take 0.900 ms in", "--contract trtexec-11"),
        ({}, {"gpu_compute_ms": [1.0, 1.2] * 2}, "variation is 9.1%, over 2.5%", "--lock-clocks"),
    ],
)
def test_a_hint_has_its_figures_and_a_remedy_that_is_not_in_use_yet(
    terms: dict[str, object], changes: dict[str, list[float]], text: str, remedy: str
) -> None:
    (hint,) = hints_of(BenchPoint(batch=8, latency=sampled(terms, **changes)), GPU)
    assert text in hint.text
    assert remedy in hint.remedy


def test_a_cuda_graph_that_was_refused_is_not_recommended_again() -> None:
    refused = msgspec.structs.replace(
        sampled({"graph": False}, enqueue_ms=[0.9] * 4), notes=("measured without a CUDA graph: refused",)
    )
    (hint,) = hints_of(BenchPoint(batch=8, latency=refused), GPU)
    assert "--graph" not in hint.remedy


def test_hints_come_in_a_fixed_order() -> None:
    columns = {"enqueue_ms": [2.0] * 4, "h2d_ms": [1.0] * 4, "gpu_compute_ms": [0.5, 1.5] * 2}
    slow = (ClockReading(at_ms=0.0, sm_mhz=500),) * 2
    latency = msgspec.structs.replace(sampled({"streams": 2}, **columns), clocks=slow)
    two, one = sampled({"streams": 2}), sampled()
    point = BenchPoint(batch=8, latency=latency, throughput=two, single_stream=one)
    assert codes(point) == [
        ENQUEUE_BOUND,
        COPY_BOUND,
        UNSTABLE,
        STREAMS_GAIN_NOTHING,
    ]  # full clocks elsewhere
    point = BenchPoint(batch=8, latency=latency)
    assert codes(point) == [ENQUEUE_BOUND, COPY_BOUND, UNSTABLE, CLOCKS_BELOW]


def test_streams_are_evaluated_by_the_throughput_of_one() -> None:
    faster = sampled(start_ms=[0.0, 1.0, 2.0, 3.0], end_ms=[1.0, 2.0, 3.0, 4.0])
    nothing = BenchPoint(batch=8, latency=sampled(), throughput=sampled(), single_stream=sampled())
    twice = BenchPoint(batch=8, latency=sampled(), throughput=faster, single_stream=sampled())
    assert codes(nothing) == [STREAMS_GAIN_NOTHING]
    assert codes(twice) == []
    for last_end, found in ((8.41, []), (8.39, [STREAMS_GAIN_NOTHING])):
        one = sampled(end_ms=[2.0, 4.0, 6.0, last_end])
        point = BenchPoint(batch=8, latency=sampled(), throughput=sampled(), single_stream=one)
        assert codes(point) == found
    single = msgspec.structs.replace(nothing, throughput=sampled({"streams": 1}))
    assert codes(single) == []


def test_an_idle_gpus_clock_gives_no_hint() -> None:
    idle = msgspec.structs.replace(
        sampled(),
        clocks=(
            ClockReading(at_ms=0.0, sm_mhz=345, throttle=("gpu_idle",)),
            ClockReading(at_ms=0.0, sm_mhz=1980),
        ),
    )
    assert codes(BenchPoint(batch=8, latency=idle)) == []
    for mhz, found in ((1881, []), (1880, [CLOCKS_BELOW])):
        slow = msgspec.structs.replace(sampled(), clocks=(ClockReading(at_ms=0.0, sm_mhz=mhz),) * 2)
        assert codes(BenchPoint(batch=8, latency=slow)) == found


def test_an_unstable_run_next_to_other_processes_blames_them() -> None:
    beside = msgspec.structs.replace(
        sampled(gpu_compute_ms=[1.0, 1.2, 1.0, 1.2]),
        clocks=(
            ClockReading(at_ms=0.0, sm_mhz=1980),
            ClockReading(at_ms=9.0, sm_mhz=1980, other_processes=2),
        ),
    )
    (hint,) = hints_of(BenchPoint(batch=8, latency=beside), GPU)
    assert hint.text.endswith(", over 2.5%, with 2 other processes on the GPU")
    assert hint.remedy == "measure when the GPU is free, or on another one"


def test_on_the_host_only_stability_gives_a_hint_and_no_clock_is_to_be_locked() -> None:
    everything = sampled(enqueue_ms=[1.0] * 4, h2d_ms=[9.0] * 4, end_ms=[1.0, 3.5, 5.0, 7.5])
    (hint,) = hints_of(BenchPoint(batch=8, latency=everything), CPU)
    assert hint.short == UNSTABLE
    assert "--lock-clocks" not in hint.remedy


def test_a_pass_without_a_sample_gives_no_hint() -> None:
    empty: list[float] = []
    columns = ("start_ms", "end_ms", "enqueue_ms", "gpu_compute_ms", "h2d_ms", "d2h_ms", "inference_stream")
    assert codes(BenchPoint(batch=8, latency=sampled(**dict.fromkeys(columns, empty)))) == []
