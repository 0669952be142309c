"""Lists of cores, what NVML's words mean, and threads that stay where they are told to."""

import os
import threading

import pytest
from hypothesis import given, strategies as st

from tests.support.examples import GPU
from trtopt.device import affinity
from trtopt.device.affinity import confine, listed, parse_cores, present_cores
from trtopt.device.nvml import cores_near, cores_of
from trtopt.errors import UsageError
from trtopt.records import DeviceInfo

CPU = DeviceInfo(kind="cpu", name="A CPU")
HERE = sorted(os.sched_getaffinity(0))
CORES = st.frozensets(st.integers(0, 300), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), (" 2 - 4 , 3", {2, 3, 4}), ("7-7", {7})],
)
def test_a_list_names_its_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", ",", "0,", "x", "-1", "3-1", "0-", "0:3", "1.5", "123456", "0-3 8"])
def test_what_is_no_list_of_cores_is_refused_and_shown(text: str) -> None:
    with pytest.raises(UsageError, match=f"--cpu-affinity {text}: not a list of cores"):
        parse_cores(text)


@given(CORES)
def test_a_list_of_cores_reads_back_as_what_it_was_made_from(cores: frozenset[int]) -> None:
    assert parse_cores(listed(cores)) == cores


def test_runs_of_cores_are_listed_as_ranges() -> None:
    assert listed([8, 2, 1, 0, 3, 10, 11]) == "0-3,8,10-11"


@given(CORES)
def test_nvmls_words_hold_one_bit_a_core(cores: frozenset[int]) -> None:
    words = [sum(1 << core % 64 for core in cores if core // 64 == index) for index in range(5)]
    assert cores_of(words) == cores


def test_threads_stay_on_the_cores_that_were_requested() -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(present_cores())

    def work() -> None:
        confine(str(HERE[-1]), CPU)
        look()
        inner = threading.Thread(target=look)
        inner.start()
        inner.join()

    outer = threading.Thread(target=work)
    outer.start()
    outer.join()
    assert seen == [(HERE[-1],), (HERE[-1],)]
    assert sorted(os.sched_getaffinity(0)) == HERE  # other threads stay where they were


@pytest.mark.parametrize("asked", ["99999", f"{HERE[0]},99999"])
def test_cores_that_this_process_cannot_have_are_refused_and_nothing_changes(asked: str) -> None:
    with pytest.raises(UsageError, match=f"--cpu-affinity {asked}: this process may not use all") as caught:
        confine(asked, CPU)
    assert listed(HERE) in caught.value.remedy
    assert sorted(os.sched_getaffinity(0)) == HERE


def test_auto_needs_a_gpu_and_an_nvml_that_tells() -> None:
    with pytest.raises(UsageError, match="A CPU is not a GPU"):
        confine("auto", CPU)
    assert cores_near(GPU) is None  # there is no such GPU
    with pytest.raises(UsageError, match="NVML does not report which cores are near the A GPU"):
        confine("auto", GPU)


def test_auto_takes_the_near_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "cores_near", lambda info: frozenset({HERE[-1], 99999}))
    seen: list[object] = []
    thread = threading.Thread(target=lambda: (confine("auto", GPU), seen.append(present_cores())))
    thread.start()
    thread.join()
    assert seen == [(HERE[-1],)]
    monkeypatch.setattr(affinity, "cores_near", lambda info: frozenset({99999}))
    with pytest.raises(UsageError, match="none of them near the GPU"):
        confine("auto", GPU)
