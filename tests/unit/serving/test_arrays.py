"""Arrays of others, seen where they lie."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tests.support.serving_pools import OnGpu
from trtopt.errors import DataError
from trtopt.serving.arrays import address_of, described, tensor_of


class Elsewhere:
    """Speaks DLPack for an array of NumPy's, which it says lies somewhere else."""

    def __init__(self, array: np.ndarray, device: tuple[int, int]) -> None:
        self.array, self.device = array, device
        self.stream: object = "not asked"

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: object = None, **_: Any) -> object:
        self.stream = stream
        return self.array.__dlpack__()


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool"]
)
def test_a_capsule_tells_type_shape_and_address(dtype: str) -> None:
    array = np.zeros((2, 3, 4), dtype)[1:]
    tensor = described(array.__dlpack__(), "x", ())
    assert (tensor.dtype, tensor.shape) == (array.dtype, (1, 3, 4))
    assert tensor.device_address == address_of(array) == array.ctypes.data
    assert tensor.host is None


def test_memory_behind_a_capsule_lives_as_long_as_its_tensor() -> None:
    array = np.zeros(4, np.float32)
    gone = weakref.ref(array)
    tensor = described(array.__dlpack__(), "x", ())
    del array
    gc.collect()
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_dlpack_on_the_gpu_is_asked_to_order_its_work_before_the_default_stream() -> None:
    value = Elsewhere(np.zeros((2, 4), np.float32), (2, 0))
    tensor = tensor_of(value, "x")
    assert tensor.host is None
    assert (value.stream, tensor.after) == (1, 1)


def test_dlpack_on_the_host_is_seen_without_a_copy() -> None:
    array = np.zeros((2, 4), np.float32)
    tensor = tensor_of(Elsewhere(array, (1, 0)), "x")
    assert tensor.host is not None
    assert np.shares_memory(tensor.host, array)


def test_page_locked_memory_is_the_hosts_and_the_device_can_read_it_too() -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = tensor_of(Elsewhere(array[1], (3, 0)), "x", is_sample=True)
    assert tensor.host is not None
    assert (tensor.shape, tensor.device_address) == ((1, 4), address_of(array) + 16)
    assert np.array_equal(tensor.host, array[1:])
    assert tensor_of(array, "x").device_address == 0
    assert tensor_of(Elsewhere(array.T, (3, 0)), "x").device_address == 0


def test_a_number_is_seen_as_one_whatever_takes_it() -> None:
    value = np.array(1.0, np.float32)
    for one in (value, Elsewhere(value, (1, 0))):
        assert tensor_of(one, "x").shape == ()
        assert tensor_of(one, "x", is_sample=True).shape == (1,)


@pytest.mark.parametrize("device", [(1, 0), (2, 0), (3, 0)])
def test_a_sample_of_any_kind_is_a_batch_of_one(device: tuple[int, int]) -> None:
    array = np.zeros((3, 4), np.float32)
    for value in (array, Elsewhere(array, device), OnGpu(3)):
        for is_sample, shape in ((True, (1, 3, 4)), (False, (3, 4))):
            tensor = tensor_of(value, "x", is_sample=is_sample)
            assert tensor.shape == shape
            assert tensor.host is None or tensor.host.shape == shape


@pytest.mark.parametrize("device", [(2, 1), (8, 0)])
def test_an_array_on_another_device_is_refused(device: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=f"DLPack {device[0]}:{device[1]}"):
        tensor_of(Elsewhere(np.zeros(4, np.float32), device), "x")


def test_the_cuda_array_interface_is_read() -> None:
    tensor = tensor_of(OnGpu(3, address=4096), "x")
    assert (tensor.dtype, tensor.shape, tensor.device_address) == (np.dtype("float32"), (3, 4), 4096)
    assert tensor.after is None
    assert tensor_of(OnGpu(3, stream=77), "x").after == 77
    old = OnGpu(3, version=2)
    del old.__cuda_array_interface__["stream"]
    assert tensor_of(old, "x").after == 1  # nobody told: the default stream


@pytest.mark.parametrize("strides", [None, (16, 4)])
def test_dense_strides_are_accepted(strides: tuple[int, int] | None) -> None:
    assert tensor_of(OnGpu(3, strides=strides), "x").shape == (3, 4)
    assert tensor_of(OnGpu(1, strides=(999, 4)), "x").shape == (1, 4)  # one row: its stride is never used


def test_an_array_on_the_gpu_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(DataError, match="'x': the array on the GPU is not contiguous"):
        tensor_of(OnGpu(3, strides=(32, 4)), "x")
    with pytest.raises(DataError, match="not contiguous"):
        described(np.zeros((4, 4), np.float32).T.__dlpack__(), "x", ())


@pytest.mark.parametrize("device", [None, (1, 0), (3, 0)])
def test_a_copy_on_the_host_is_the_tensors_own_and_dense(device: tuple[int, int] | None) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = array.T if device is None else Elsewhere(array.T, device)
    tensor = tensor_of(given, "x", is_sample=True, copy=True)
    array[:] = -1
    assert tensor.host is not None
    assert tensor.host.tolist() == [[[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]]
    assert tensor.host.flags.c_contiguous
    assert tensor.device_address == 0


@pytest.mark.parametrize("value", [OnGpu(3), Elsewhere(np.zeros(4, np.float32), (2, 0))])
def test_an_array_on_the_gpu_that_is_to_be_copied_is_refused(value: object) -> None:
    with pytest.raises(DataError, match=r"input 'x': is on the GPU, .*\n.*copy=False"):
        tensor_of(value, "x", copy=True)


def test_what_is_no_array_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="input 'x': list is not an array"):
        tensor_of([1.0], "x")


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="DLPack type 5 of 64 bits"):
        described(np.zeros(4, np.complex64).__dlpack__(), "x", ())
