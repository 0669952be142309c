"""The one table of differences between the flavours and versions of TensorRT.

Names of enum members are strings and are looked up in the installed binding: their integers moved in 11.0.
`tests/unit/test_tensorrt_contract.py` holds this table to the API of 8.6, 10.16, 11.4 and TensorRT-RTX 1.7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtopt.records import Backend
from trtopt.targets import OPSETS

TENSORRT = "tensorrt"
RTX = "tensorrt-rtx"
MODULES = {TENSORRT: "tensorrt", RTX: "tensorrt_rtx"}


@dataclass(frozen=True)
class Flavour:
    """What one flavour and version does differently.

    `network_flags` are passed to `create_network`; a `weakly_typed` builder needs flags for the types that
    the graph contains; `max_opset` is the newest opset that its parser takes; `precisions` are
    those that may be faster than FP32, as the GPU allows, floats first; `profile_sharing` is the preview
    feature without which one context at a time may use an engine's range of shapes; an `editable_cache` is a
    timing cache that tells its entries.
    """

    name: str
    network_flags: tuple[str, ...]
    weakly_typed: bool
    progress_monitor: bool
    timing_cache: bool
    editable_cache: bool
    compute_capability_choice: bool
    needs_gpu_to_build: bool
    device_memory: str
    async_allocator: bool
    max_opset: int
    precisions: tuple[str, ...]
    reports_hardware_compatibility: bool = True
    profile_sharing: str | None = None


_FROM_10 = ("fp16", "bf16", "int8", "fp8")

_TENSORRT_8 = Flavour(
    name=TENSORRT,
    network_flags=("EXPLICIT_BATCH",),
    weakly_typed=True,
    progress_monitor=False,
    timing_cache=True,
    editable_cache=False,
    compute_capability_choice=False,
    needs_gpu_to_build=True,
    device_memory="device_memory_size",
    async_allocator=False,
    max_opset=OPSETS["8.6"].read,
    precisions=("fp16", "int8"),
    profile_sharing="PROFILE_SHARING_0806",
)
_TENSORRT_10 = Flavour(
    name=TENSORRT,
    network_flags=("STRONGLY_TYPED",),
    weakly_typed=False,
    progress_monitor=True,
    timing_cache=True,
    editable_cache=True,
    compute_capability_choice=False,
    needs_gpu_to_build=True,
    device_memory="device_memory_size_v2",
    async_allocator=True,
    max_opset=OPSETS["10"].read,
    precisions=_FROM_10,
)
_TENSORRT_11 = Flavour(
    name=TENSORRT,
    network_flags=(),  # always strongly typed
    weakly_typed=False,
    progress_monitor=True,
    timing_cache=True,
    editable_cache=True,
    compute_capability_choice=False,
    needs_gpu_to_build=True,
    device_memory="device_memory_size_v2",
    async_allocator=True,
    max_opset=OPSETS["11"].read,
    precisions=_FROM_10,
)
_RTX = Flavour(
    name=RTX,
    network_flags=(),
    weakly_typed=False,
    progress_monitor=True,
    timing_cache=False,  # accepted, without effect
    editable_cache=False,
    compute_capability_choice=True,
    needs_gpu_to_build=False,
    device_memory="device_memory_size_v2",
    async_allocator=True,
    max_opset=OPSETS["rtx"].read,
    precisions=_FROM_10,
    reports_hardware_compatibility=False,  # reading it logs an error
)

PRECISION_FLAGS = {"float16": "FP16", "bfloat16": "BF16", "int8": "INT8", "float8_e4m3fn": "FP8"}
"""On a weakly typed builder: the flag that a type in the graph needs."""


def flavour_of(name: str, version: str) -> Flavour:
    """The row for a flavour and version such as "10.16.1.11"; versions to come get the newest row.

    Raises:
        ValueError: older than 8.6, or a name that is no flavour.
    """
    if name == RTX:
        return _RTX
    if name != TENSORRT:
        raise ValueError(f"{name!r} is no flavour of TensorRT")
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (8, 6):
        raise ValueError(f"TensorRT {version} is older than 8.6")
    if major == 10 and minor < 8:  # the flag came with 10.8, the wider figure of memory with 10.1
        early = replace(_TENSORRT_10, editable_cache=False)
        return replace(early, device_memory="device_memory_size") if minor == 0 else early
    return {8: _TENSORRT_8, 9: _TENSORRT_8, 10: _TENSORRT_10}.get(major, _TENSORRT_11)


def is_weakly_typed(backend: Backend) -> bool:
    """Whether a backend's builder takes 16-bit types in the graph as permission, not as an order."""
    return backend.name in MODULES and flavour_of(backend.name, backend.version).weakly_typed


NUMPY_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3fn",
    "INT4": "int4",
    "FP4": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}
"""TensorRT's data types by NumPy name: `trt.nptype` fails under newer NumPy on 8.6."""
