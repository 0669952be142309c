"""CUPTI's activity records through cupti-python: which kernels, copies and memsets the device runs.

Only the activity API is used: counters would need privileges. One tracer at a time may use CUPTI in a
process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version as release_of
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import msgspec

from trtopt.errors import DeviceError
from trtopt.extras import install
from trtopt.records import KernelActivity, LaunchCall, NvtxRange, TracedRun

_BUFFER_BYTES = 8 << 20
_KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
_RANGE_KINDS = ("DRIVER", "MARKER")
_RANGE_START, _RANGE_END = 1 << 1, 1 << 2
"""Flags of markers."""
_INJECTION = "NVTX_INJECTION64_PATH"
_FORCED = 1
_PLAIN = "omit --kernels, or "
_REMEDIES = {
    "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": (
        "another profiler uses CUPTI in this process",
        "run without Nsight, nvprof or a profiler's injection variable (CUDA_INJECTION64_PATH)",
    ),
    "ERROR_INSUFFICIENT_PRIVILEGES": (
        "the driver admits profiling by administrators only",
        f"{_PLAIN}have NVreg_RestrictProfilingToAdminUsers=0 set for the driver's module",
    ),
    "ERROR_NOT_INITIALIZED": (
        "CUPTI and the driver do not fit one another",
        "install the release of cupti-python that fits the driver, or a newer driver",
    ),
}
"""Of CUPTI's results by name: what is wrong, and what to do."""
_UNUSABLE = (
    (
        "Failed to dlopen libcupti",
        "its library is not found",
        "pip install nvidia-cuda-cupti-cu12, of the release of cupti-python",
    ),
    ("driver is supported", "the driver is too old", "install a driver of CUDA 12.4 or newer"),
    (
        "is not found",
        "its library, or the driver, is older than cupti-python",
        "pip install --upgrade nvidia-cuda-cupti-cu12, or see with `trtopt doctor` whether there is a driver",
    ),
)
"""Of other failures by what cupti-python says: what is wrong, and what to do."""


def require_cupti() -> None:
    """Find out that CUPTI can be loaded, before anything is measured."""
    _load()


def _load() -> Any:
    try:
        with catch_warnings():  # cupti-python 12.8 imports a module of cuda-python that is deprecated
            filterwarnings("ignore", r"The cuda\.cuda module is deprecated", FutureWarning)
            from cupti import cupti
    except ImportError as error:
        raise DeviceError(f"--kernels: cupti-python cannot be loaded ({error})", install("kernels")) from None
    return cupti


def have_nvtx_inject_cupti() -> None:
    """Have NVTX ranges of this process recorded; before any library that opens some is loaded."""
    present = os.environ.get(_INJECTION)
    if present is not None:
        if Path(present).name.startswith("libcupti."):
            return
        raise DeviceError(f"{_INJECTION} sends NVTX ranges to {present}", f"unset {_INJECTION}")
    try:
        release = release_of("cupti-python").partition(".")[0]
    except PackageNotFoundError:
        raise DeviceError(
            "CUPTI's library is not known: cupti-python has no metadata", install("kernels")
        ) from None
    name = f"libcupti.so.{release}"
    places = (place for folder in sys.path for place in Path(folder).glob(f"nvidia/*/lib/{name}"))
    os.environ[_INJECTION] = str(next(places, name))  # else where the loader finds it


class CuptiRecorder:
    """Records what the device runs; see `device.api.ActivityRecorder`. Open it before a graph is captured."""

    def __init__(self, *, ranges: bool = False) -> None:
        self._cupti = _load()
        self._seen: list[KernelActivity] = []
        self._calls: list[LaunchCall] = []
        self._begun: dict[int, NvtxRange] = {}
        self._ended_ns: dict[int, int] = {}
        self._enabled = ExitStack()
        try:
            self._checked("registering buffers", self._register)
            for name in (*_KINDS, *(_RANGE_KINDS if ranges else ())):
                kind = int(getattr(self._cupti.ActivityKind, name))
                self._checked(f"recording {name}", partial(self._cupti.activity_enable, kind))
                self._enabled.callback(self._disable, kind)
        except BaseException:
            self.close()
            raise

    def _register(self) -> None:
        self._cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._receive)

    def _receive(self, activities: Iterable[Any]) -> None:
        """Called by CUPTI with full buffers, whose records do not outlive the call."""
        kinds = self._cupti.ActivityKind
        for one in activities:
            if one.kind == int(kinds.DRIVER):
                self._calls.append(_call(one))
            elif one.kind == int(kinds.MARKER):
                self._mark(one)
            elif (activity := self._record(one)) is not None:
                self._seen.append(activity)

    def _mark(self, one: Any) -> None:
        """Keep the start or the end of a range; only starts have a name, and either may come first."""
        if one.flags_ & _RANGE_END:
            self._ended_ns[int(one.id)] = int(one.timestamp)
        elif one.flags_ & _RANGE_START:
            thread = getattr(one.object_id, "threadId", None)
            self._begun[int(one.id)] = NvtxRange(
                name="" if one.name is None else str(one.name),
                domain="" if one.domain is None else str(one.domain),
                start_ns=int(one.timestamp),
                end_ns=0,
                thread=None if thread is None else int(thread),
            )

    def _record(self, one: Any) -> KernelActivity | None:
        kinds = self._cupti.ActivityKind
        is_kernel = one.kind in (int(kinds.CONCURRENT_KERNEL), int(kinds.KERNEL))
        is_copy = one.kind == int(kinds.MEMCPY)
        if not is_kernel and not is_copy and one.kind != int(kinds.MEMSET):
            return None
        other = self._cupti.ActivityMemcpyKind(one.copy_kind).name if is_copy else "memset"
        found = KernelActivity(
            kind="kernel" if is_kernel else "copy" if is_copy else "memset",
            name=demangle(one.name) if is_kernel else other,
            start_ns=int(one.start),
            end_ns=int(one.end),
            correlation_id=int(one.correlation_id),
            stream=int(one.stream_id),
            graph_node=int(one.graph_node_id),
        )
        if not is_kernel:
            return msgspec.structs.replace(found, nbytes=int(one.bytes))
        return msgspec.structs.replace(
            found,
            grid=(int(one.grid_x), int(one.grid_y), int(one.grid_z)),
            block=(int(one.block_x), int(one.block_y), int(one.block_z)),
            registers=int(one.registers_per_thread),
            shared_bytes=int(one.static_shared_memory) + int(one.dynamic_shared_memory),
        )

    def record(self, work: Callable[[], None]) -> TracedRun:
        self._flush()
        work()
        return self._flush()

    def _flush(self) -> TracedRun:
        """What was recorded since the last call; a range of which only one end was is left out."""
        self._checked("reading records", lambda: self._cupti.activity_flush_all(_FORCED))
        ranges = (
            msgspec.structs.replace(one, end_ns=self._ended_ns[number])
            for number, one in self._begun.items()
            if number in self._ended_ns
        )
        found = TracedRun(activities=tuple(self._seen), calls=tuple(self._calls), ranges=tuple(ranges))
        for kept in (self._seen, self._calls, self._begun, self._ended_ns):
            kept.clear()
        return found

    def dropped(self) -> int:
        """How many records did not fit the buffers since the last call."""
        count = ctypes.c_size_t()
        self._checked(
            "counting dropped records",
            lambda: self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count)),
        )
        return count.value

    def _checked(self, doing: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (self._cupti.cuptiError, RuntimeError) as error:
            raise _failure(doing, str(error)) from None

    def _disable(self, kind: int) -> None:
        with suppress(self._cupti.cuptiError, RuntimeError):
            self._cupti.activity_disable(kind)

    def close(self) -> None:
        self._enabled.close()


def _call(one: Any) -> LaunchCall:
    return LaunchCall(
        correlation_id=int(one.correlation_id),
        start_ns=int(one.start),
        end_ns=int(one.end),
        thread=int(one.thread_id),
    )


def _failure(doing: str, said: str) -> DeviceError:
    name = said.partition(" ")[0]
    for sign, problem, remedy in _UNUSABLE:
        if sign in said:
            return DeviceError(f"CUPTI cannot be used: {problem} ({said})", remedy)
    problem, remedy = _REMEDIES.get(name, (said, "omit --kernels"))
    return DeviceError(f"CUPTI refuses {doing}: {problem} ({name})", remedy)


@cache
def demangle(name: str) -> str:
    """A C++ symbol as it was written, where the system's C++ library can tell; any other name unchanged."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    call, free = library.__cxa_demangle, ctypes.CDLL(None).free
    call.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    status = ctypes.c_int()
    text = call(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        free(text)
