"""Which GPUs are here, from the driver itself: needs no CUDA binding."""

from __future__ import annotations

import ctypes
import os
import uuid
from functools import cache
from typing import Any

import msgspec

from trtopt.errors import NoGpuError
from trtopt.records import DeviceInfo

_DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
NO_GPU_REMEDY = (
    "`trtopt doctor` shows what works without one; --backend onnxruntime measures the model on the CPU"
)


@cache
def load_driver() -> ctypes.CDLL:
    """The driver's library. Raises OSError where there is none."""
    return ctypes.CDLL(_DRIVER)


@cache
def gpus() -> tuple[DeviceInfo, ...]:
    """All CUDA devices that the driver shows to this process, in its order; none without a driver."""
    try:
        driver = load_driver()
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    version = driver_version()
    return tuple(_describe(driver, ordinal, version) for ordinal in range(count.value))


def names_of_a_kind() -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls each GPU that is of the kind of this process' first one, itself first.

    Engines and timings of one are as good as another's: TensorRT distinguishes GPUs by model and capability.
    """
    here = gpus()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in given.split(",")] if given else list(map(str, range(len(here))))
    kinds = [(device.name, device.compute_capability) for device in here]
    return tuple(name for name, kind in zip(names, kinds, strict=False) if kind == kinds[0])


def first_gpu(binding: str | None = None) -> DeviceInfo:
    """The first CUDA device; `binding` names the CUDA binding that drives it."""
    found = gpus()
    if not found:
        raise NoGpuError("no CUDA device found, or its driver cannot be loaded", NO_GPU_REMEDY)
    return msgspec.structs.replace(found[0], binding=binding)


def _describe(driver: Any, ordinal: int, version: str | None) -> DeviceInfo:
    device, number = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    identity = ctypes.create_string_buffer(16)
    driver.cuDeviceGetUuid(identity, device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    driver.cuDriverGetVersion(ctypes.byref(number))
    return DeviceInfo(
        kind="gpu",
        name=name.value.decode(),
        uuid=f"GPU-{uuid.UUID(bytes=identity.raw)}",
        compute_capability=f"{capability[0]}.{capability[1]}",
        memory_bytes=memory.value,
        driver=version,
        cuda=f"{number.value // 1000}.{number.value % 1000 // 10}",
    )


def driver_version() -> str | None:
    """The driver's version from NVML, such as `580.95.05`; None where NVML is not there."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
