"""What NVML's answers mean; and what comes of it where NVML is not there."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from tests.support import examples
from trtopt.device.clocks import IDLE, SLOWDOWNS
from trtopt.device.cuda import probe
from trtopt.device.nvml import (
    REASONS,
    NvmlGpu,
    open_sensor,
    reading_of,
    reasons_of,
    reference_of,
    refusal_of,
)
from trtopt.errors import DeviceError, TrtoptError, UsageError
from trtopt.records import ClockReading, ClockReference

needs_no_gpu = pytest.mark.skipif(bool(probe.gpus()), reason="tells what happens where no GPU is")


def test_the_names_of_reasons_are_those_that_condemn_a_group() -> None:
    assert SLOWDOWNS | {IDLE, "sw_power_cap"} <= set(REASONS.values())


def test_the_bits_are_those_of_the_installed_binding() -> None:
    pynvml = pytest.importorskip("pynvml")
    spelled = {
        "nvmlClocksThrottleReason" + "".join(word.capitalize() for word in name.split("_")): bit
        for bit, name in REASONS.items()
    }
    known = {name: bit for name, bit in spelled.items() if hasattr(pynvml, name)}
    assert len(known) >= 9
    assert {name: getattr(pynvml, name) for name in known} == known


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (None, ()),
        (0, ()),
        (0x1, ("gpu_idle",)),
        (0x4, ("sw_power_cap",)),
        (0x48, ("hw_slowdown", "hw_thermal_slowdown")),
        (0x880, ("hw_power_brake_slowdown", "unknown_0x800")),
        (1 << 63, ("unknown_0x8000000000000000",)),
    ],
)
def test_a_mask_is_reported_by_the_names_of_its_bits(mask: int | None, names: tuple[str, ...]) -> None:
    assert reasons_of(mask) == names


@given(st.integers(0, 2**64 - 1))
def test_every_bit_of_a_mask_has_one_name(mask: int) -> None:
    assert len(set(reasons_of(mask))) == mask.bit_count()


NEWER = {"GetCurrentClocksEventReasons": 0x4, "GetTemperatureV": 61}
OLDER = {"GetCurrentClocksThrottleReasons": 0x4, "GetTemperature": 61}


@pytest.mark.parametrize("driver", [NEWER, OLDER])
def test_answers_become_a_reading_in_the_records_units(driver: dict[str, object]) -> None:
    answers = {
        ("GetClockInfo", 1): 1980,
        ("GetPowerUsage",): 321500,
        ("GetTotalEnergyConsumption",): 10**12 + 500,
        ("GetComputeRunningProcesses_v3",): [SimpleNamespace(pid=pid) for pid in (7, 8, 9)],
    }
    assert reading_of(lambda *words: answers.get(words, driver.get(words[0])), 12.5) == ClockReading(
        at_ms=12.5,
        sm_mhz=1980,
        power_w=321.5,
        energy_j=10.0**9 + 0.5,
        temperature_c=61,
        throttle=("sw_power_cap",),
        other_processes=2,
    )


def test_what_nvml_does_not_answer_stays_unknown() -> None:
    assert reading_of(lambda *words: None, 1.0) == ClockReading(at_ms=1.0)


@pytest.mark.parametrize(
    ("pids", "others"), [(None, None), ((), 0), ((7,), 0), ((7, 7), 0), ((7, 8), 1), ((1, 2, 3), 2)]
)
def test_one_of_the_processes_on_the_gpu_is_this_one(
    pids: tuple[int, ...] | None, others: int | None
) -> None:
    processes = None if pids is None else [SimpleNamespace(pid=pid) for pid in pids]
    found = reading_of(lambda name, *_: processes if name == "GetComputeRunningProcesses_v3" else None, 0.0)
    assert found.other_processes == others


@pytest.mark.parametrize(
    ("told", "mhz", "kind"),
    [
        ((1755, 1830, 1980), 1755, "application"),
        ((None, 1830, 1980), 1830, "default application"),
        ((None, None, 1980), 1980, "maximum"),
        ((0, 0, 1980), 1980, "maximum"),
    ],
)
def test_clocks_are_evaluated_by_the_best_reference_that_the_driver_tells(
    told: tuple[int | None, ...], mhz: int, kind: str
) -> None:
    reference = reference_of(*told)
    assert (reference.mhz, reference.kind, reference.problem) == (mhz, kind, None)


def test_a_driver_that_tells_no_reference_is_reported() -> None:
    reference = reference_of(None, None, None)
    assert reference.mhz is None
    assert reference.problem is not None
    assert "neither an application clock nor a maximum" in reference.problem


@pytest.mark.parametrize(
    ("words", "kind", "remedy"),
    [
        ("Insufficient Permissions", DeviceError, "run as root"),
        ("Invalid Argument", UsageError, "--query-supported-clocks"),
        ("Not Supported", DeviceError, "omit it"),
        ("GPU is lost", DeviceError, "omit it"),
    ],
)
def test_a_refused_lock_names_its_reason_and_a_remedy(
    words: str, kind: type[TrtoptError], remedy: str
) -> None:
    refusal = refusal_of(words, "locking the clocks at 1500 MHz")
    assert type(refusal) is kind
    assert "--lock-clocks" in refusal.problem
    assert "locking the clocks at 1500 MHz" in refusal.problem
    assert remedy in refusal.remedy


@needs_no_gpu
def test_where_nvml_cannot_start_the_clocks_are_unknown_and_it_names_the_reason() -> None:
    pytest.importorskip("pynvml")
    sensor = open_sensor(examples.GPU)
    assert sensor.reference == ClockReference(problem=sensor.reference.problem)
    assert sensor.reference.problem is not None
    assert sensor.reference.problem.startswith("NVML: ")
    assert sensor.read(3.0) == ClockReading(at_ms=3.0)


def test_without_the_binding_the_clocks_are_unknown_and_it_says_which_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_sensor(examples.GPU).reference.problem == "nvidia-ml-py is not installed"
    with pytest.raises(DeviceError) as caught:
        NvmlGpu(examples.GPU)
    assert "pip install" in caught.value.remedy


@needs_no_gpu
def test_where_nvml_cannot_start_no_clock_can_be_locked() -> None:
    pytest.importorskip("pynvml")
    with pytest.raises(DeviceError, match="NVML: "):
        NvmlGpu(examples.GPU)
