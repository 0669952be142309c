"""The error for a failed CUDA call, of any binding."""

from __future__ import annotations

from trtopt.errors import DeviceError, DeviceMemoryError


def failure(doing: str, name: str, *, is_out_of_memory: bool) -> DeviceError:
    """The error of a call that was `doing` something; `name` is CUDA's own name for what went wrong."""
    if is_out_of_memory:
        return DeviceMemoryError(f"out of memory: {doing}", "use a smaller batch, or free the GPU")
    return DeviceError(f"CUDA failed: {doing}: {name}", "see whether nvidia-smi shows a healthy GPU")
