"""Arrays of anybody's, seen without a copy: NumPy, DLPack, `__cuda_array_interface__`."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Shape

_HOST, _LOCKED_HOST = 1, 3  # DLPack's kDLCPU and kDLCUDAHost
_CUDA_DEVICES = {2, 13}  # kDLCUDA and kDLCUDAManaged
_LEGACY_STREAM = 1  # CUDA's default stream, as both protocols write it
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # DLDataTypeCode


class Tensor(msgspec.Struct, frozen=True):
    """An array in host memory (`host`), or one that the device reads where it is (`device_address`).

    The latter is C-contiguous, in the device's memory or page-locked on the host; that has both.

    Device work on it must come after the stream of handle `after`, where one is given. `owner` keeps the
    memory alive.
    """

    dtype: np.dtype[np.generic]
    shape: Shape
    host: NDArray[np.generic] | None
    device_address: int = 0
    after: int | None = None
    owner: object = None


class Region(NamedTuple):
    """Memory that the caller owns, as a `device.api.DeviceBuffer`."""

    address: int
    nbytes: int

    def close(self) -> None:
        """Nothing: the caller releases it."""


def address_of(array: NDArray[np.generic]) -> int:
    """Where a host array lies; several times as fast as `array.ctypes.data`."""
    return int(array.__array_interface__["data"][0])


def tensor_of(value: object, name: str, *, is_sample: bool = False, copy: bool = False) -> Tensor:
    """See an array, or a sample as a batch of one; `name` is the input that it is for.

    With `copy` the tensor has memory of its own, so that the caller may write to the array again.
    """
    if isinstance(value, (np.ndarray, np.generic)):  # at once: for every request it counts
        host = np.array(value, order="C") if copy else np.asarray(value)
        if is_sample:
            host = host[np.newaxis]
        return Tensor(host.dtype, host.shape, host)
    in_front = (1,) if is_sample else ()
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        tensor = _from_dlpack(value, name, in_front)
    elif hasattr(value, "__cuda_array_interface__"):
        tensor = _from_cuda_array_interface(value, name, in_front)
    else:
        raise DataError(
            f"input {name!r}: {type(value).__name__} is not an array",
            "give a NumPy array, or one that speaks DLPack or __cuda_array_interface__ (torch, CuPy, pycuda)",
        )
    return _copied(tensor, name) if copy else tensor


def _copied(tensor: Tensor, name: str) -> Tensor:
    """In memory of its own; on the GPU that would cost each an allocation, which waits for all work there."""
    if tensor.host is None:
        raise DataError(
            f"input {name!r}: is on the GPU, where samples are not copied",
            "submit it with copy=False, and do not write to it before the answer arrives",
        )
    host = np.array(tensor.host, order="C")
    return Tensor(host.dtype, host.shape, host)


def _from_dlpack(value: Any, name: str, in_front: Shape) -> Tensor:
    kind, number = value.__dlpack_device__()
    try:
        if kind in (_HOST, _LOCKED_HOST):
            host = np.from_dlpack(value)
            host = host[np.newaxis] if in_front else host
            is_reachable = kind == _LOCKED_HOST and host.flags.c_contiguous
            return Tensor(host.dtype, host.shape, host, address_of(host) if is_reachable else 0)
        if kind not in _CUDA_DEVICES or number != 0:
            raise DataError(
                f"input {name!r}: the array is on a device that no engine runs on (DLPack {kind:d}:{number})",
                "move it to the host or to the first GPU",
            )
        return described(value.__dlpack__(stream=_LEGACY_STREAM), name, in_front)
    except (BufferError, RuntimeError, TypeError) as error:
        raise DataError(
            f"input {name!r}: the array cannot be shared ({error})", "pass a plain, dense array"
        ) from None


class _Described(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of what an unversioned capsule holds."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def described(capsule: object, name: str, in_front: Shape) -> Tensor:
    """What a DLPack capsule holds, as device memory. Never renamed, it gives its memory back by itself.

    The tensor has the axes `in_front` of those of the capsule.
    """
    held = _Described.from_address(_pointer_in(capsule, b"dltensor"))
    kind = _KINDS.get(held.code)
    if kind is None or held.lanes != 1:
        raise DataError(
            f"input {name!r}: DLPack type {held.code} of {held.bits} bits is not known",
            "give it one of NumPy's element types, or bfloat16",
        )
    dtype = numpy_dtype("bool" if kind == "bool" else f"{kind}{held.bits}")
    shape = tuple(held.shape[axis] for axis in range(held.ndim))
    strides = [held.strides[axis] * dtype.itemsize for axis in range(held.ndim)] if held.strides else None
    _check_dense(shape, strides, dtype, name)
    address = (held.data or 0) + held.byte_offset
    return Tensor(dtype, in_front + shape, None, address, _LEGACY_STREAM, capsule)


def _from_cuda_array_interface(value: Any, name: str, in_front: Shape) -> Tensor:
    interface = value.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    _check_dense(shape, interface.get("strides"), dtype, name)
    after = interface.get("stream", _LEGACY_STREAM)  # before its version 3 it had no such field
    return Tensor(dtype, in_front + shape, None, int(interface["data"][0]), after, value)


def _check_dense(shape: Shape, strides: Any, dtype: np.dtype[np.generic], name: str) -> None:
    if strides is None or 0 in shape:
        return
    dense = dtype.itemsize
    for length, stride in zip(reversed(shape), reversed(tuple(strides)), strict=True):
        if length != 1 and stride != dense:
            raise DataError(
                f"input {name!r}: the array on the GPU is not contiguous",
                "make it contiguous, as with torch's contiguous() or cupy.ascontiguousarray()",
            )
        dense *= length
