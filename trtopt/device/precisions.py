"""Which precisions are worth trying with a backend on a device."""

from __future__ import annotations

from trtopt.records import Backend, DeviceInfo
from trtopt.targets import LEAST_CAPABILITY, ONNXRUNTIME, target_of

_ON_CPU = ("fp32", "fp16", "int8")


def precisions_on(backend: Backend, device: DeviceInfo) -> tuple[str, ...]:
    """Floats first, then what needs Q/DQ. FP32 only on the CPU: GPUs run FP16 at least as fast."""
    if backend.name == ONNXRUNTIME:
        return _ON_CPU
    has = _capability(device)
    offered = target_of(backend).precisions
    return tuple(name for name in offered if has >= least_capability(name))


def least_capability(precision: str) -> tuple[int, int]:
    """The compute capability, (major, minor), that it takes at least."""
    return LEAST_CAPABILITY.get(precision, (0, 0))


def _capability(device: DeviceInfo) -> tuple[int, int]:
    major, _, minor = (device.compute_capability or "0.0").partition(".")
    return int(major), int(minor)
