"""NVML's readings of a GPU: clocks, power, temperature, throttle reasons, and other processes.

Only `NvmlGpu` talks to the driver. Pure functions interpret its answers. Application clocks are
deprecated since CUDA 13.0 (NVML, Deprecation and/or Removal Notices): a driver may refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec

from trtopt.device.api import ClockSensor, DeviceMemory, Holder
from trtopt.device.clocks import UnknownClocks
from trtopt.errors import DeviceError, UsageError
from trtopt.records import ClockReading, ClockReference, DeviceInfo

REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h: nvmlClocksEventReason…, before: ThrottleReason)."""

_SM = 1  # NVML_CLOCK_SM
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_OLDER_REASONS = "GetCurrentClocksThrottleReasons"
_INSTALL = "install NVML's binding with: pip install nvidia-ml-py"


def reasons_of(mask: int | None) -> tuple[str, ...]:
    """The names of a mask's bits; a bit that NVML has learnt since is named by its number."""
    bits = (1 << index for index in range((mask or 0).bit_length()))
    return tuple(REASONS.get(bit, f"unknown_{bit:#x}") for bit in bits if (mask or 0) & bit)


def reading_of(query: Callable[..., Any], at_ms: float) -> ClockReading:
    """A reading by NVML's functions, of which `query` gives the answers, or None.

    Functions under newer drivers' names are tried first.
    """
    reasons, temperature = query("GetCurrentClocksEventReasons"), query("GetTemperatureV", _GPU_SENSOR)
    power_mw, energy_mj = query("GetPowerUsage"), query("GetTotalEnergyConsumption")
    processes = query("GetComputeRunningProcesses_v3")
    return ClockReading(
        at_ms=at_ms,
        sm_mhz=query("GetClockInfo", _SM),
        power_w=None if power_mw is None else power_mw / 1e3,
        energy_j=None if energy_mj is None else energy_mj / 1e3,
        temperature_c=query("GetTemperature", _GPU_SENSOR) if temperature is None else temperature,
        throttle=reasons_of(query(_OLDER_REASONS) if reasons is None else reasons),
        # all but one, which is this: in a container the driver may number processes as the host does
        other_processes=None if processes is None else max(0, len({one.pid for one in processes}) - 1),
    )


def reference_of(application: int | None, default: int | None, maximum: int | None) -> ClockReference:
    """What to compare the SM clock with: the first of the three that the driver reports."""
    if application:
        return ClockReference(mhz=application, kind="application")
    if default:
        return ClockReference(mhz=default, kind="default application")
    if maximum:
        return ClockReference(mhz=maximum, kind="maximum")
    return ClockReference(problem="the driver reports neither an application clock nor a maximum")


def refusal_of(error: str, doing: str) -> DeviceError | UsageError:
    """The error for a refused change of clocks, from NVML's words."""
    if "Permission" in error:
        return DeviceError(
            f"--lock-clocks: {doing} needs a permission that this process lacks",
            "run as root; or omit it, after sudo nvidia-smi --lock-gpu-clocks=MHZ",
        )
    if "Invalid Argument" in error:
        return UsageError(
            f"--lock-clocks: {doing}: the GPU has no such clock",
            "nvidia-smi --query-supported-clocks=graphics --format=csv lists them",
        )
    return DeviceError(f"--lock-clocks: {doing}: {error}", "this GPU or driver cannot do it: omit it")


class NvmlGpu:
    """One GPU as NVML knows it: a `device.api.ClockSensor`, and what changes its clocks for all who use it.

    It is found by UUID: CUDA_VISIBLE_DEVICES renumbers CUDA's devices, not NVML's.
    """

    def __init__(self, info: DeviceInfo) -> None:
        try:
            import pynvml
        except ImportError:
            raise DeviceError("nvidia-ml-py is not installed", _INSTALL) from None
        self._nvml: Any = pynvml
        self.failures: dict[str, str] = {}
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(info.uuid or "")
        except pynvml.NVMLError as error:
            raise DeviceError(f"NVML: {error}", "see whether nvidia-smi shows the GPU") from None

    def call(self, name: str, *arguments: object) -> Any:
        """One of NVML's device functions."""
        return getattr(self._nvml, f"nvmlDevice{name}")(self._handle, *arguments)

    def query(self, name: str, *arguments: object) -> Any:
        """A function's result; None if it fails, with the reason in `failures`."""
        try:
            return self.call(name, *arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            self.failures[name] = str(error)
            return None

    def change(self, doing: str, name: str, *arguments: object) -> None:
        """Call a function that changes the GPU's settings."""
        try:
            self.call(name, *arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            raise refusal_of(str(error), doing) from None

    @cached_property
    def reference(self) -> ClockReference:
        """What to compare the SM clock with."""
        return reference_of(
            self.query("GetApplicationsClock", _SM),
            self.query("GetDefaultApplicationsClock", _SM),
            self.query("GetMaxClockInfo", _SM),
        )

    def read(self, at_ms: float) -> ClockReading:
        """Query NVML."""
        return reading_of(self.query, at_ms)

    def lock(self, mhz: int | None) -> int:
        """Have the driver lock the clock, by default at the reference; returns that clock.

        Raises:
            DeviceError: no permission, or the device cannot do it; nothing was changed.
            UsageError: the device has no such clock; nothing was changed.
        """
        target = self.reference.mhz if mhz is None else mhz
        if target is None:
            raise DeviceError("--lock-clocks: the driver reports no clock to lock at", "give one in MHz")
        self.change(f"locking the clocks at {target} MHz", "SetGpuLockedClocks", target, target)
        return target

    def unlock(self) -> None:
        """Release the clock to the driver."""
        self.change("unlocking the clocks", "ResetGpuLockedClocks")


@contextmanager
def locked_clocks(control: NvmlGpu, mhz: int | None) -> Iterator[int]:
    """Lock the clocks at `mhz` (None: at the device's reference), and always unlock them at the end.

    They are unlocked also if a signal interrupts the locking: only a refusal proves that nothing was changed.
    Yields the clock in MHz.
    """
    refused = False
    try:
        try:
            locked = control.lock(mhz)
        except (DeviceError, UsageError):
            refused = True
            raise
        yield locked
    finally:
        if not refused:
            control.unlock()


def open_sensor(info: DeviceInfo) -> ClockSensor:
    """A sensor of that GPU; if it is none, or NVML does not report its clock, one with the reason."""
    if info.kind != "gpu":
        return UnknownClocks("there is no GPU: no tactic is timed")
    try:
        gpu = NvmlGpu(info)
    except DeviceError as error:
        return UnknownClocks(error.problem)
    if gpu.read(0.0).sm_mhz is None:
        return UnknownClocks(f"NVML does not report the SM clock: {gpu.failures['GetClockInfo']}")
    if _OLDER_REASONS in gpu.failures:
        problem = f"NVML does not report throttle reasons: {gpu.failures[_OLDER_REASONS]}"
        gpu.reference = msgspec.structs.replace(gpu.reference, problem=problem)
    return gpu


def holders_of(info: DeviceInfo) -> tuple[Holder, ...]:
    """The processes that have memory of that GPU, the largest first; none where NVML does not report them."""
    try:
        processes = NvmlGpu(info).query("GetComputeRunningProcesses_v3") or ()
    except DeviceError:
        return ()
    holders = (Holder(process.pid, process.usedGpuMemory) for process in processes)
    return tuple(sorted(holders, key=lambda holder: -(holder.nbytes or 0)))


def device_memory_of(info: DeviceInfo) -> DeviceMemory | None:
    """That GPU's memory, without a CUDA context of one's own; None where NVML does not report it."""
    try:
        memory = NvmlGpu(info).query("GetMemoryInfo")
    except DeviceError:
        return None
    return None if memory is None else DeviceMemory(memory.free, memory.total, holders_of(info))
