"""The recorder over a stand-in with no more than the names of cupti-python 12.8.0 (tests/data)."""

from __future__ import annotations

import ctypes
import enum
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.paths import DATA
from trtopt.device.cuda.cupti import CuptiRecorder, demangle, have_nvtx_inject_cupti, require_cupti
from trtopt.errors import DeviceError
from trtopt.records import KernelActivity, LaunchCall, TracedRun

SURFACE = json.loads((DATA / "cupti-12.8.0.json").read_text())


class Error(Exception):
    """Its text is the result's name and number, as cupti-python writes it."""

    def __init__(self, status: int) -> None:
        self.status = status
        name = next(name for name, number in SURFACE["Result"].items() if number == status)
        super().__init__(f"{name} ({status})")


class Cupti(ModuleType):
    """Keeps the records that it is given until they are flushed; `refuses` is a function and its result."""

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.cuptiError = Error
        for name in ("ActivityKind", "ActivityMemcpyKind"):
            setattr(self, name, enum.IntEnum(name, SURFACE[name]))
        for name in SURFACE["functions"]:
            setattr(self, name, lambda *given, name=name: self._called(name, *given))
        self.calls: list[tuple[Any, ...]] = []
        self.pending: list[Any] = []
        self.refuses: tuple[str, str] | None = None
        self.lost = 0

    def _called(self, name: str, *given: Any) -> None:
        self.calls.append((name, *given))
        if self.refuses is not None and self.refuses[0] == name:
            raise Error(SURFACE["Result"][self.refuses[1]])
        if name == "activity_register_callbacks":
            assert given[0]() == (8 << 20, 0)
            self.deliver: Callable[[list[Any]], None] = given[1]
        if name == "activity_flush_all":
            self.deliver(self.pending)
            self.pending = []
        if name == "activity_get_num_dropped_records":
            ctypes.c_size_t.from_address(given[2]).value = self.lost

    def record(self, kind: str, struct: str, **fields: Any) -> SimpleNamespace:
        assert set(fields) <= set(SURFACE[struct])
        blank = dict.fromkeys(SURFACE[struct], 0)
        return SimpleNamespace(**blank | {"kind": SURFACE["ActivityKind"][kind]} | fields)


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> Cupti:
    made = Cupti()
    package = ModuleType("cupti")
    package.cupti = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", made)
    return made


def test_kernels_copies_and_memsets_are_read_and_other_records_are_not(cupti: Cupti) -> None:
    recorder = CuptiRecorder()
    cupti.pending = [cupti.record("CONCURRENT_KERNEL", "ActivityKernel9", name="of an earlier run")]

    def work() -> None:
        cupti.pending = [
            cupti.record(
                "CONCURRENT_KERNEL", "ActivityKernel9", name="_Z3addPfS_", start=10, end=30, grid_x=7,
                grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1, registers_per_thread=40,
                static_shared_memory=16, dynamic_shared_memory=1024, correlation_id=5,
                graph_node_id=9, stream_id=3,
            ),
            cupti.record("MEMCPY", "ActivityMemcpy6", copy_kind=8, start=30, end=35, bytes=64),
            cupti.record("MEMSET", "ActivityMemset4", start=35, end=36, bytes=4),
            cupti.record("RUNTIME", "ActivityMemset4"),
        ]  # fmt: skip

    kernel, copy, memset = recorder.record(work).activities
    assert kernel == KernelActivity(
        kind="kernel", name="add(float*, float*)", start_ns=10, end_ns=30, correlation_id=5, stream=3,
        graph_node=9, grid=(7, 1, 1), block=(128, 1, 1), registers=40, shared_bytes=1040,
    )  # fmt: skip
    assert (copy.kind, copy.name, copy.nbytes) == ("copy", "DTOD", 64)
    assert (memset.kind, memset.nbytes) == ("memset", 4)
    assert recorder.record(lambda: None) == TracedRun()


def test_what_was_enabled_is_disabled_in_reverse_order_and_once(cupti: Cupti) -> None:
    recorder = CuptiRecorder()
    enabled = [call[1] for call in cupti.calls if call[0] == "activity_enable"]
    assert enabled == [SURFACE["ActivityKind"][name] for name in ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")]
    recorder.close()
    recorder.close()
    assert [call[1] for call in cupti.calls if call[0] == "activity_disable"] == enabled[::-1]


def marker(cupti: Cupti, number: int, flags: int, at: int, name: str | None) -> SimpleNamespace:
    return cupti.record(
        "MARKER", "ActivityMarker2", id=number, flags_=flags, timestamp=at, name=name, domain="TensorRT",
        object_id=SimpleNamespace(threadId=7),
    )  # fmt: skip


def test_calls_and_ranges_are_recorded_on_request_and_ranges_paired_by_their_numbers(cupti: Cupti) -> None:
    recorder = CuptiRecorder(ranges=True)
    enabled = [call[1] for call in cupti.calls if call[0] == "activity_enable"]
    assert enabled[3:] == [SURFACE["ActivityKind"][name] for name in ("DRIVER", "MARKER")]

    def work() -> None:
        cupti.pending = [
            marker(cupti, 1, 2, 10, "outer"),
            marker(cupti, 2, 2, 20, "inner"),
            cupti.record("DRIVER", "ActivityAPI", start=22, end=25, correlation_id=5, thread_id=7),
            marker(cupti, 2, 4, 30, None),
            marker(cupti, 3, 2, 35, "never closed"),
            marker(cupti, 1, 4, 40, None),
        ]

    found = recorder.record(work)
    assert found.calls == (LaunchCall(correlation_id=5, start_ns=22, end_ns=25, thread=7),)
    assert [(one.name, one.start_ns, one.end_ns, one.thread) for one in found.ranges] == [
        ("outer", 10, 40, 7), ("inner", 20, 30, 7),
    ]  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with the metadata of cupti-python 12.8.0, and nothing injected into NVTX yet."""
    info = tmp_path / "cupti_python-12.8.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cupti-python\nVersion: 12.8.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")
    monkeypatch.delenv("NVTX_INJECTION64_PATH")
    return tmp_path


def test_nvtx_injects_the_library_of_cupti_pythons_release(site: Path) -> None:
    for place in ("nvidia/cuda_cupti/lib/libcupti.so.12", "nvidia/cu13/lib/libcupti.so.13"):
        (site / place).parent.mkdir(parents=True)
        (site / place).touch()
    have_nvtx_inject_cupti()
    assert os.environ["NVTX_INJECTION64_PATH"] == str(site / "nvidia/cuda_cupti/lib/libcupti.so.12")


def test_a_library_that_no_package_brings_is_left_to_the_loader(site: Path) -> None:
    have_nvtx_inject_cupti()
    assert os.environ["NVTX_INJECTION64_PATH"] == "libcupti.so.12"


def test_ranges_that_another_tool_receives_are_not_taken_from_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    with pytest.raises(DeviceError, match="sends NVTX ranges to /opt/nsight"):
        have_nvtx_inject_cupti()
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/usr/local/cuda/lib64/libcupti.so")
    have_nvtx_inject_cupti()
    assert os.environ["NVTX_INJECTION64_PATH"] == "/usr/local/cuda/lib64/libcupti.so"


def test_dropped_records_are_counted(cupti: Cupti) -> None:
    recorder = CuptiRecorder()
    cupti.lost = 17
    assert recorder.dropped() == 17


@pytest.mark.parametrize(
    ("result", "problem", "remedy"),
    [
        ("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "another profiler uses CUPTI", "CUDA_INJECTION64_PATH"),
        ("ERROR_INSUFFICIENT_PRIVILEGES", "administrators only", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ERROR_MIG_DEVICE_NOT_SUPPORTED", "MIG", "omit --kernels"),
        ("ERROR_HARDWARE", "ERROR_HARDWARE", "omit --kernels"),
    ],
)
def test_a_refusal_says_why_and_leaves_nothing_enabled(
    cupti: Cupti, result: str, problem: str, remedy: str
) -> None:
    cupti.refuses = ("activity_register_callbacks", result)
    with pytest.raises(DeviceError, match=problem) as caught:
        CuptiRecorder()
    assert remedy in caught.value.remedy
    cupti.refuses = ("activity_enable", result)
    with pytest.raises(DeviceError, match=result):
        CuptiRecorder()


@pytest.mark.parametrize(
    ("said", "problem", "remedy"),
    [
        ("Failed to dlopen libcupti (libcupti.so.12: cannot open)", "library is not found", "cupti-cu12, of"),
        ("only CUDA 12.4 or later driver is supported", "driver is too old", "CUDA 12.4 or newer"),
        ("function cuptiActivityEnableHWTrace is not found", "older than cupti-python", "--upgrade"),
        ("CUDA driver is not found (libcuda.so.1)", "or the driver, is older", "trtopt doctor"),
    ],
)
def test_a_library_that_does_not_fit_is_no_refusal(
    cupti: Cupti, monkeypatch: pytest.MonkeyPatch, said: str, problem: str, remedy: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(cupti, "activity_register_callbacks", fail)
    with pytest.raises(DeviceError, match=problem) as caught:
        CuptiRecorder()
    assert remedy in caught.value.remedy


def test_without_cupti_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(DeviceError) as caught:
        require_cupti()
    assert caught.value.remedy == "pip install cupti-python"


def test_names_that_are_no_symbols_stay_what_they_are() -> None:
    assert demangle("sm80_xmma_gemm_f16f16") == "sm80_xmma_gemm_f16f16"
    assert demangle("_Znonsense") == "_Znonsense"


def test_a_deprecated_module_that_cupti_python_imports_is_no_warning_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "cupti"
    package.mkdir()
    (package / "__init__.py").write_text("")
    warning = "The cuda.cuda module is deprecated and will be removed in a future release"
    (package / "cupti.py").write_text(f"import warnings\nwarnings.warn({warning!r}, FutureWarning)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("cupti", "cupti.cupti"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    require_cupti()
    for name in ("cupti", "cupti.cupti"):
        sys.modules.pop(name)
