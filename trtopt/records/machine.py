"""Records of the machine: devices and what is installed."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record


class DeviceInfo(Record, frozen=True, kw_only=True):
    """The device an engine was made on or a measurement was taken on."""

    kind: Literal["gpu", "cpu", "none", "scripted"]
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    cache_bytes: int | None = None
    """The last cache in front of the memory: of a GPU its L2 cache."""
    binding: str | None = None
    """The CUDA binding and its version."""


class Component(Record, frozen=True, kw_only=True):
    """A library: its version, or why it cannot be used and how to get it."""

    name: str
    version: str | None
    problem: str | None = None
    remedy: str | None = None


class MachineSurvey(Record, frozen=True, kw_only=True):
    """Everything that determines which commands work on this machine."""

    schema: str = "trtopt.doctor/1"
    python: str
    platform: str
    cpu: str
    gpus: tuple[DeviceInfo, ...]
    tensorrt: Component
    tensorrt_rtx: Component
    onnxruntime: Component
    cuda_bindings: tuple[Component, ...]
    nvml: Component
    binding_variable: str
    optional: tuple[Component, ...] = ()
    """Packages that single commands need, by their package names."""
    cluster: str | None = None
    """What the Ray cluster of RAY_ADDRESS offers, or why it cannot be reached; None: no address is given."""
