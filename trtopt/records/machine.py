"""Records of the machine: devices, backends, clocks, and what is installed."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Result


class DeviceInfo(Record, frozen=True, kw_only=True):
    """The device an engine was made on or a measurement was taken on."""

    kind: Literal["gpu", "cpu", "none", "scripted"]
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    binding: str | None = None
    """The CUDA binding and its version."""


class Backend(Record, frozen=True, kw_only=True):
    """What builds and runs: `name` is `tensorrt`, `tensorrt-rtx` or `onnxruntime`."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Environment(Record, frozen=True, kw_only=True):
    """Where a measurement was taken."""

    device: DeviceInfo
    backend: Backend
    trtopt: str
    python: str
    platform: str
    cpu: str
    git_revision: str | None = None
    cpus: tuple[int, ...] = ()
    """The cores that the host threads were allowed to run on, by number; empty where unknown."""
    node: str | None = None
    """The host of a cluster that it was taken on; None: this one."""


class ClockReading(Record, frozen=True, kw_only=True):
    """The device's readings between groups of samples; None: not reported.

    `energy_j` is the energy drawn since some earlier time, such as its driver's start. `throttle` holds what
    NVML gives as reasons for the clock (its constants' names in snake case); `other_processes` is the number
    of other processes on the device.
    """

    at_ms: float
    sm_mhz: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    other_processes: int | None = None


class ClockReference(Record, frozen=True, kw_only=True):
    """The SM clock that readings are compared with, and its kind.

    The application clock is the best reference; where the driver no longer has one, its default, then the
    device's maximum clock. `problem` says what could not be read, and why.
    """

    mhz: int | None = None
    kind: Literal["application", "default application", "maximum"] | None = None
    problem: str | None = None


class Component(Record, frozen=True, kw_only=True):
    """A library: its version, or why it cannot be used and how to get it."""

    name: str
    version: str | None
    problem: str | None = None
    remedy: str | None = None


class MachineSurvey(Result, Record, frozen=True, kw_only=True):
    """Everything that determines which commands work on this machine."""

    schema: str = "trtopt.doctor/2"
    python: str
    platform: str
    cpu: str
    gpus: tuple[DeviceInfo, ...]
    tensorrt: Component
    tensorrt_rtx: Component
    onnxruntime: Component
    cuda_bindings: tuple[Component, ...]
    nvml: Component
    optional: tuple[Component, ...] = ()
    """Packages that single commands need, by their package names."""


class MeasuredRunSpread(Record, frozen=True, kw_only=True):
    """How much separate runs of one engine differ on a device, as `trtopt compare --control` measured it.

    `deviation` is the standard deviation of the logarithm of a run's median latency.
    """

    schema: str = "trtopt.runspread/2"
    created: str
    device: DeviceInfo
    deviation: float
    runs: int
