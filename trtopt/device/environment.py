"""What this machine has: for `trtopt doctor`."""

from __future__ import annotations

import importlib
import platform
import shlex
from importlib import metadata

from trtopt.device.backends import CUDA_BINDINGS
from trtopt.device.cuda import probe
from trtopt.device.ort.host import cpu_name
from trtopt.device.ort.runtime import backend as onnxruntime_backend
from trtopt.device.tensorrt.library import INSTALL, load_library
from trtopt.errors import BackendMissingError
from trtopt.extras import EXTRAS, RTX_EXTRA
from trtopt.records import Component, MachineSurvey

_LOADED = {"tensorrt", RTX_EXTRA, "pycuda"}
"""Extras whose packages are imported to see whether they work."""


def survey() -> MachineSurvey:
    """Look at the machine; imports every library that is there."""
    return MachineSurvey(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        gpus=probe.gpus(),
        tensorrt=_tensorrt("tensorrt"),
        tensorrt_rtx=_tensorrt("tensorrt-rtx"),
        onnxruntime=Component(name="onnxruntime", version=onnxruntime_backend().version),
        cuda_bindings=tuple(_module(name, module) for name, module in CUDA_BINDINGS.items()),
        nvml=_nvml(),
        optional=tuple(_installed(name) for name in _packages()),
    )


def _tensorrt(name: str) -> Component:
    try:
        return Component(name=name, version=load_library(name).backend.version)
    except BackendMissingError as error:
        return Component(name=name, version=None, problem=error.problem, remedy=INSTALL[name])


def _module(name: str, module: str) -> Component:
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        return Component(name=name, version=None, problem=str(error), remedy=f"pip install {name}")
    version = getattr(imported, "VERSION_TEXT", None) or getattr(imported, "__version__", "unknown")
    return Component(name=name, version=str(version))


def _packages() -> list[str]:
    """The packages of all other extras, each once."""
    extras = [extra for name, extra in EXTRAS.items() if name not in _LOADED]
    return list(dict.fromkeys(package for extra in extras for package in extra.packages))


def _installed(name: str) -> Component:
    """A package by its metadata: importing torch takes seconds."""
    try:
        return Component(name=name, version=metadata.version(name.partition("[")[0]))
    except metadata.PackageNotFoundError:
        remedy = shlex.join(["pip", "install", name])
        return Component(name=name, version=None, problem="not installed", remedy=remedy)


def _nvml() -> Component:
    version = probe.driver_version()
    if version is not None:
        return Component(name="nvml", version=version)
    return Component(
        name="nvml",
        version=None,
        problem="no driver, or nvidia-ml-py is not installed",
        remedy="pip install nvidia-ml-py",
    )
