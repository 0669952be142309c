"""What each TensorRT can do: the one table of its versions.

A new version takes one row in `ROWS`. Everything else reads the table: the choices of `--target`, the builder
and the runtime, the rewrite rules and the form of Q/DQ.
`tests/unit/device/tensorrt/test_contract.py` holds the rows to the API of 8.6, 10.0, 10.16, 11.4 and
TensorRT-RTX 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtopt.errors import ArtifactError, UsageError

if TYPE_CHECKING:
    from trtopt.records import Backend

HEAD_SIZES = range(16, 257, 8)
"""Of attention that TensorRT fuses."""
INTEGER_ARITHMETIC = frozenset(
    ("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
)
"""ONNX's operators on integers that no TensorRT imports: it takes QuantizeLinear and DequantizeLinear."""

TENSORRT = "tensorrt"
RTX = "tensorrt-rtx"
ONNXRUNTIME = "onnxruntime"
BACKENDS = (TENSORRT, RTX, ONNXRUNTIME)
"""The values of `--backend`, besides auto."""
DISPLAYED = {TENSORRT: "TensorRT", RTX: "TensorRT-RTX", ONNXRUNTIME: "ONNX Runtime"}
"""Each as a reader knows it."""
NOT_TENSORRT = "measured on ONNX Runtime, which says nothing about TensorRT"
"""What a choice of precision on the CPU is worth: its INT8 kernels are others."""
MODULES = {TENSORRT: "tensorrt", RTX: "tensorrt_rtx"}
"""The Python module of each backend."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One line of TensorRT versions: those of `backend` from `since` on, up to the next row.

    Members of enums are given by name and looked up in the installed binding: their integers moved in 11.0.
    """

    name: str
    """As `--target` gives it. Rows of one name differ in what changed between minor versions."""
    backend: str
    since: tuple[int, int]

    # ONNX, by the parsers' release notes and operator support matrices
    operator_opset: int
    """The newest opset whose operators may be written into a graph."""
    documented_opset: int
    """The newest that the parser's documents name."""
    loaded_opset: int
    """The newest that a model may declare."""
    int64: bool
    """Whether 64-bit integers stay what they are."""
    instance_norm: bool
    """Whether InstanceNormalization is a layer, not a plugin that calls cuDNN."""
    shape_ends: bool
    """Whether the parser reads Shape's attributes `start` and `end`."""
    computed_kernels: bool
    """Whether Conv takes its kernel's size from weights that are computed."""
    integer_functions: bool
    """Whether Sign, Relu and Pow are imported for integers."""
    most_elements: int | None
    """Of one tensor."""
    io_formats: Mapping[str, tuple[str, ...]]
    """The types that inputs and outputs may have, with the vectorised formats of each besides the linear."""

    # types and Q/DQ
    weakly_typed: bool
    """Takes 16-bit types in the graph as permission and needs builder flags for them, `PRECISION_FLAGS`."""
    precisions: tuple[str, ...]
    """Those that may be faster than FP32, as the GPU allows, floats first."""
    qdq_opsets: Mapping[str, int]
    """Each precision that Q/DQ can have, with the least opset that they need."""
    half_scales: bool
    """Whether Q/DQ may have 16-bit scales."""
    stored_weights: bool
    """Whether weights may be stored in their narrow type, with a DQ alone."""

    # fusions
    fuses_scaled_query: bool
    """Whether fused attention needs the scale before the first product."""
    half_gelu_pays: bool
    """Whether a GELU between INT8 products takes less time with casts to FP16 around it."""

    # API
    network_flags: tuple[str, ...]
    """Passed to `create_network`."""
    device_memory: str
    """The engine's attribute with the size of its activation memory."""
    progress_monitor: bool
    timing_cache: bool
    tactic_sources: tuple[str, ...]
    """All that there are."""
    tiling: bool
    """Whether the builder searches for layers to run tile by tile."""
    build_routes: bool
    """Whether internal options of the builder can be set."""
    editable_cache: bool
    """Whether timing caches can list their entries."""
    async_allocator: bool
    compute_capability_choice: bool
    needs_gpu_to_build: bool
    registers_plugins: bool
    """Whether TensorRT's own plugins have to be registered."""
    reports_hardware_compatibility: bool
    triton_releases: str
    """The containers of Triton that have it, by their release notes and NVIDIA's compatibility matrix."""
    profile_sharing: str | None
    """The preview feature without which one context at a time may use an optimisation profile."""

    @property
    def algorithm_selector(self) -> bool:
        """Whether IAlgorithmSelector chooses tactics; where caches are editable it is deprecated."""
        return self.timing_cache and not self.editable_cache


_8_6 = Target(
    name="8.6",
    backend=TENSORRT,
    since=(8, 6),
    operator_opset=17,
    documented_opset=17,
    loaded_opset=19,  # Q/DQ of opset 19 with FP32 scales
    int64=False,
    instance_norm=False,
    shape_ends=False,
    computed_kernels=False,
    integer_functions=False,
    most_elements=2**31 - 1,
    io_formats={
        "float32": ("chw32",),
        "float16": ("chw2", "hwc8"),
        "int8": ("chw4", "chw32"),
        "uint8": (),
    },
    weakly_typed=True,
    precisions=("fp16", "int8"),
    qdq_opsets={"int8": 13},
    half_scales=False,
    stored_weights=False,
    fuses_scaled_query=False,
    half_gelu_pays=True,  # BERT-base took 4.8 % less time at batch 8 on an H100 (benchmarks/kernels)
    network_flags=("EXPLICIT_BATCH",),
    device_memory="device_memory_size",
    progress_monitor=False,
    timing_cache=True,
    tactic_sources=("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
    tiling=False,
    build_routes=False,
    editable_cache=False,
    async_allocator=False,
    compute_capability_choice=False,
    needs_gpu_to_build=True,
    registers_plugins=True,
    reports_hardware_compatibility=True,
    triton_releases="23.05 to 24.04",
    profile_sharing="PROFILE_SHARING_0806",
)
_10_0 = replace(
    _8_6,
    name="10",
    since=(10, 0),
    operator_opset=22,
    documented_opset=24,
    loaded_opset=24,
    int64=True,
    instance_norm=True,
    shape_ends=True,
    computed_kernels=True,
    integer_functions=True,
    most_elements=None,
    io_formats={
        "float32": ("chw32",),
        "float16": ("chw2", "hwc8", "hwc16"),
        "bfloat16": ("chw2", "hwc8"),
        "int8": ("chw4", "chw32"),
        "uint8": (),
    },
    weakly_typed=False,
    precisions=("fp16", "bf16", "int8", "fp8"),
    qdq_opsets={"int8": 19, "fp8": 19, "int4": 21},
    half_scales=True,
    stored_weights=True,
    fuses_scaled_query=True,
    half_gelu_pays=False,  # it is in FP16 anyway
    network_flags=("STRONGLY_TYPED",),
    progress_monitor=True,
    async_allocator=True,
    triton_releases="24.05 to 24.06",
    profile_sharing=None,
)
_10_1 = replace(_10_0, since=(10, 1), device_memory="device_memory_size_v2", triton_releases="24.06 to 24.12")
_10_8 = replace(_10_1, since=(10, 8), editable_cache=True, tiling=True, triton_releases="25.01 or newer")
_11 = replace(
    _10_8,
    name="11",
    since=(11, 0),
    operator_opset=24,
    documented_opset=25,
    loaded_opset=25,
    tactic_sources=("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
    network_flags=(),  # always strongly typed
    triton_releases="newer than 25.12",
)
_11_1 = replace(_11, since=(11, 1), build_routes=True)
_RTX = replace(
    _11,
    name="rtx",
    backend=RTX,
    since=(1, 0),
    operator_opset=25,  # 1.7 has no importers for operators of opset 26
    io_formats={  # those that 1.7 was seen to build
        "float32": ("chw32",),
        "float16": ("chw2", "chw4", "chw32", "hwc8", "hwc16"),
        "bfloat16": ("chw2", "chw4", "hwc8"),
        "int8": ("chw4", "chw32", "hwc16"),
        "uint8": (),
    },
    fuses_scaled_query=False,
    timing_cache=False,  # accepted, without effect
    editable_cache=False,
    compute_capability_choice=True,
    needs_gpu_to_build=False,
    registers_plugins=False,
    reports_hardware_compatibility=False,  # reading it logs an error
)

ROWS = (_8_6, _10_0, _10_1, _10_8, _11, _11_1, _RTX)
"""The table; the rows of each backend from the oldest to the newest."""

DEFAULT = "10"
"""The `--target` that graphs are written for where no TensorRT is here to decide."""

PRECISION_FLAGS = {"float16": "FP16", "bfloat16": "BF16", "int8": "INT8", "float8_e4m3fn": "FP8"}
"""On a weakly typed builder: the flag that a type in the graph needs."""

LEAST_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}
"""The compute capability that a precision takes, by the hardware support matrices of TensorRT 10 and 11."""

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


def target_names() -> tuple[str, ...]:
    """The values of `--target`."""
    return tuple(dict.fromkeys(row.name for row in ROWS))


def targets_where(holds: Callable[[Target], bool]) -> tuple[str, ...]:
    """The names of the targets whose newest row has a property."""
    return tuple(name for name in target_names() if holds(target_named(name)))


def target_named(name: str) -> Target:
    """The newest row called `name`."""
    for row in reversed(ROWS):
        if row.name == name:
            return row
    raise UsageError(f"unknown target {name!r}", f"choose among {', '.join(target_names())}")


def target_of_version(backend: str, version: str) -> Target:
    """The row for an installed version such as "10.16.1.11"; versions to come get the newest row.

    ValueError: older than the oldest row, or a name that is no TensorRT's.
    """
    rows = [row for row in ROWS if row.backend == backend]
    if not rows:
        raise ValueError(f"{backend!r} is no TensorRT")
    found = re.match(r"(\d+)\.(\d+)", version)
    given = (int(found[1]), int(found[2])) if found else (0, 0)
    fitting = [row for row in rows if row.since <= given]
    if not fitting:
        raise ValueError(f"{backend} {version} is older than {'.'.join(map(str, rows[0].since))}")
    return fitting[-1]


def target_of(backend: Backend) -> Target:
    """The row for a backend; what is no TensorRT gets the newest one's graphs."""
    if backend.name not in MODULES:
        return [row for row in ROWS if row.backend == TENSORRT][-1]
    try:
        return target_of_version(backend.name, backend.version)
    except ValueError as error:  # only a damaged file can name such a version
        raise ArtifactError(str(error), "build the engines again with a newer TensorRT") from None
