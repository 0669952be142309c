"""Which precisions are worth trying with a backend on a device.

Source of the compute capabilities: the hardware support matrices of TensorRT 10 and 11.
"""

from __future__ import annotations

from trtopt.device.backends import ONNXRUNTIME
from trtopt.device.tensorrt.flavours import flavour_of
from trtopt.records import Backend, DeviceInfo

_LEAST_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}
_ON_CPU = ("fp32", "fp16", "int8")


def precisions_on(backend: Backend, device: DeviceInfo) -> tuple[str, ...]:
    """Floats first, then what needs Q/DQ. FP32 only on the CPU: GPUs run FP16 at least as fast."""
    if backend.name == ONNXRUNTIME:
        return _ON_CPU
    has = _capability(device)
    offered = flavour_of(backend.name, backend.version).precisions
    return tuple(name for name in offered if has >= least_capability(name))


def least_capability(precision: str) -> tuple[int, int]:
    """The compute capability, (major, minor), that it takes at least."""
    return _LEAST_CAPABILITY.get(precision, (0, 0))


def _capability(device: DeviceInfo) -> tuple[int, int]:
    major, _, minor = (device.compute_capability or "0.0").partition(".")
    return int(major), int(minor)
