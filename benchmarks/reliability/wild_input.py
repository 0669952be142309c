"""Input for the digits model of which one sample writes where no memory is: a sticky CUDA error.

    trtopt sweep models/digits/digits.onnx --data wild_input:images …

Sample 20 launches a kernel that stores to address 16 in the context that is current. A batch of 32 reads it,
one of 8 does not. Needs the driver alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WILD = 20
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry wild()
{
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 16;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


def images() -> Iterator[dict[str, NDArray[np.float32]]]:
    """64 images of noise, [1, 1, 8, 8] each."""
    random = np.random.default_rng(0)
    for sample in range(64):
        if sample == WILD:
            write_anywhere()
        yield {"images": random.random((1, 1, 8, 8), dtype=np.float32)}


def write_anywhere() -> None:
    """Leave this process's CUDA context with an illegal access."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    for result in (
        cuda.cuModuleLoadData(ctypes.byref(module), KERNEL),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"wild"),
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    ):
        if result:
            raise RuntimeError(f"the CUDA driver answered {result}: there was no kernel to go wrong")
