"""What profilers are shown: ranges and the captured stretch, over the scripted device and in devices."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import SCRIPT, counted, run, terms
from tests.unit.measure.test_engine import job_in
from trtopt.device.nvtx import NvtxMarks, require_nvtx
from trtopt.device.ort.host import HostDevice
from trtopt.errors import BackendMissingError, DeviceError
from trtopt.measure.engine import bench_engine
from trtopt.records import ClockReading


def nested(marks: list[tuple[str, float]]) -> list[str]:
    """The names of the ranges, each behind a blank for every range that it lies in."""
    found, depth = [], 0
    for text, _ in marks:
        kind, _, name = text.partition(" ")
        depth -= kind == "end"
        if kind == "begin":
            found.append(" " * depth + name)
        depth += kind == "begin"
    assert depth == 0
    return found


def test_passes_warm_ups_and_groups_are_ranges_and_only_samples_are_captured(tmp_path: Path) -> None:
    device = ScriptedDevice(Script())
    job = job_in(tmp_path, layers=True, memory=True)
    bench_engine(ScriptedTarget(device), job, lambda phase, fraction: None)
    sampled = [" warm-up", " captured", "  group 0", "  stages 0"]
    alone = [*sampled, "  bare loop 0"]
    assert nested(device.marks) == ["latency", *alone, "throughput", *sampled, "layers", "memory"]


def test_capturing_begins_after_the_warm_up_and_ends_with_the_last_query() -> None:
    device = ScriptedDevice(SCRIPT)
    made = run(device, terms("isolated"), "latency", counted(queries=4))
    marks = dict(device.marks)
    last_warm_up_ms, first_ms = made.warmups.end_ms[-1], made.samples.start_ms[0]
    assert marks["begin captured"] == marks["end warm-up"]
    assert made.bare is not None
    assert (marks["end captured"] - marks["begin captured"]) * 1e3 == pytest.approx(made.bare.end_ms[-1])
    assert (marks["end warm-up"] - marks["begin warm-up"]) * 1e3 == pytest.approx(last_warm_up_ms)
    assert first_ms == pytest.approx(0.0)


def test_every_group_of_samples_is_a_range() -> None:
    device = ScriptedDevice(Script(clocks=[ClockReading(at_ms=0.0, sm_mhz=1980)], compute_ms=[10.0]))
    made = run(device, terms("isolated"), "latency", counted(queries=50))
    groups = [name for name in nested(device.marks) if name.startswith(" group")]
    assert groups == [f" group {index}" for index in range(len(made.groups))]
    assert len(groups) > 1


def test_a_failing_device_leaves_no_range_open() -> None:
    device = ScriptedDevice(Script(fail_at=("wait", 3)))
    with pytest.raises(DeviceError):
        run(device, terms("isolated"), "latency", counted(queries=4, warmups=2))
    nested(device.marks)


# ── real devices ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package `nvtx` that writes its ranges down."""
    written: list[str] = []

    @contextmanager
    def annotate(message: str, *, domain: str) -> Iterator[None]:
        written.append(f"{domain}: {message}")
        yield
        written.append("end")

    module: Any = ModuleType("nvtx")
    module.annotate, module.__spec__ = annotate, object()
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return written


def test_ranges_are_those_of_the_package_nvtx_and_only_if_asked(nvtx: list[str]) -> None:
    with HostDevice().annotate("unseen"):
        assert nvtx == []
    device = HostDevice()
    device.profilers = NvtxMarks(nvtx=True)
    with device.annotate("a pass"):
        assert nvtx == ["trtopt: a pass"]
    assert nvtx == ["trtopt: a pass", "end"]


def test_without_the_package_the_error_names_it_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    for ask in (require_nvtx, lambda: NvtxMarks(nvtx=True)):
        with pytest.raises(BackendMissingError, match="'nvtx' is not installed") as caught:
            ask()
        assert caught.value.remedy == "pip install nvtx"
