"""Choosing and opening backends, and what this machine has."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from trtopt.device.api import Device, EngineBuilder, Target
from trtopt.device.cuda import probe
from trtopt.device.nvml import NvmlGpu
from trtopt.device.ort.host import needs_gpu
from trtopt.errors import BackendMissingError, UsageError
from trtopt.extras import RTX_EXTRA, install
from trtopt.records import Backend, DeviceInfo, Plugin
from trtopt.targets import BACKENDS, LEAST_CAPABILITY, ONNXRUNTIME, RTX, TENSORRT, target_of

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


CUDA_BINDINGS = {"cuda-python": "cuda.bindings", "pycuda": "pycuda"}
BINDING_VARIABLE = "TRTOPT_CUDA"


@dataclass(frozen=True)
class BackendChoice:
    """A backend and why it was taken."""

    name: str
    reason: str


def choose_for_building(requested: str) -> BackendChoice:
    """What to build with: `requested`, or for `auto` the best that this machine has."""
    if requested != "auto":
        return _requested(requested)
    has_gpu = bool(probe.gpus())
    if has_gpu and _is_installed("tensorrt"):
        return BackendChoice(TENSORRT, "found TensorRT and a GPU")
    if _is_installed("tensorrt_rtx"):
        why = "TensorRT is not installed" if has_gpu else "no GPU found, and TensorRT-RTX builds without one"
        return BackendChoice(RTX, why)
    raise BackendMissingError(
        "no TensorRT that can build here is installed",
        f"{install(RTX_EXTRA)} (builds without a GPU), or {install('tensorrt')} (needs one); "
        "--backend onnxruntime prepares the model for this CPU",
    )


def choose_for_running(requested: str | None, built_with: str | None = None) -> BackendChoice:
    """What to run with: `requested`; else what built the engine if there is a GPU, else the CPU."""
    if requested not in ("auto", None):
        return _requested(requested)
    if built_with == ONNXRUNTIME:
        return BackendChoice(ONNXRUNTIME, "that is what the engines were built with")
    if not probe.gpus():
        return BackendChoice(ONNXRUNTIME, "no GPU found, so ONNX Runtime runs the model on the CPU")
    name = built_with or (TENSORRT if _is_installed("tensorrt") else RTX)
    return BackendChoice(name, "found a GPU")


def _requested(name: str) -> BackendChoice:
    if name not in BACKENDS:
        raise UsageError(f"--backend {name}: no such backend", f"choose among auto, {', '.join(BACKENDS)}")
    return BackendChoice(name, "requested")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def open_builder(name: str) -> EngineBuilder:
    """The builder of a backend."""
    if name == ONNXRUNTIME:
        from trtopt.device.ort.builder import OnnxRuntimeBuilder

        return OnnxRuntimeBuilder()
    from trtopt.device.tensorrt.builder import TensorRTBuilder
    from trtopt.device.tensorrt.library import load_library

    library = load_library(name)
    if library.target.needs_gpu_to_build or probe.gpus():
        return TensorRTBuilder(library, probe.first_gpu())
    return TensorRTBuilder(library, DeviceInfo(kind="none", name="none: built without a GPU"))


def places_to_build(name: str, at_once: int) -> tuple[str | None, ...]:
    """Where builds run at a time, as CUDA_VISIBLE_DEVICES names GPUs; None: on what this process sees.

    Several go to the GPUs of one kind in turn: on a GPU of their own they do not disturb each other.
    """
    names = probe.names_of_a_kind() if at_once > 1 and name != ONNXRUNTIME else ()
    return tuple(names[one % len(names)] if names else None for one in range(at_once))


def open_target(name: str, plugins: tuple[Plugin, ...] = (), *, shares_cores: bool = False) -> Target:
    """The runtime of a backend, on the first device; `shares_cores`: others have work for the processor."""
    if name == ONNXRUNTIME:
        from trtopt.device.ort.runtime import OnnxRuntimeTarget

        return OnnxRuntimeTarget(shares_cores=shares_cores)
    from trtopt.device.tensorrt.library import load_library
    from trtopt.device.tensorrt.runtime import TensorRTTarget

    return TensorRTTarget(load_library(name), open_cuda_device(), plugins)


def check_device_options(name: str, *, memory: bool, cuda_profiler: bool, kernels: bool = False) -> None:
    """Refuse what the device that a backend runs on cannot do, before anything is built for it."""
    given = {"--memory": memory, "--cuda-profiler": cuda_profiler, "--kernels": kernels}
    refused = [option for option, is_given in given.items() if is_given and name == ONNXRUNTIME]
    if refused:
        raise needs_gpu(refused[0])
    if kernels:
        from trtopt.device.cuda.cupti import require_cupti

        probe.first_gpu()  # the absence of a GPU is the better message than the absence of CUPTI
        require_cupti()


def open_clock_control(name: str) -> NvmlGpu:
    """The means to lock the clocks of the device that a backend runs on."""
    if name == ONNXRUNTIME:
        raise needs_gpu("--lock-clocks")
    return NvmlGpu(probe.first_gpu())


def open_cuda_device() -> Device:
    """The first CUDA device, through the binding that `TRTOPT_CUDA` names or the first one installed."""
    probe.first_gpu()  # the absence of a GPU is the better message than the absence of a binding
    name = os.environ.get(BINDING_VARIABLE) or next(
        (name for name, module in CUDA_BINDINGS.items() if _is_installed(module)), None
    )
    if name is None:
        raise BackendMissingError(
            "no CUDA binding is installed", "pip install cuda-python (no compiler needed), or pycuda"
        )
    if name == "cuda-python":
        from trtopt.device.cuda import cuda_python

        return cuda_python.open_device()
    if name == "pycuda":
        from trtopt.device.cuda import pycuda

        return pycuda.open_device()
    raise UsageError(
        f"{BINDING_VARIABLE}={name}: no such CUDA binding", f"choose among {', '.join(CUDA_BINDINGS)}"
    )
