"""Packing: each element lies where TensorRT's documents put it, and comes back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from trtopt.data.packing import on_host, pack_array, quantize_array, unpack_array, unvectorise, vectorise
from trtopt.errors import DataError
from trtopt.records import TensorSpec
from trtopt.records.tensors import VECTORS, TypedTensor, stored_shape

SPEC = TensorSpec(name="x", dtype="int8", shape=("N", 3, 2, 2))
FLOATS = TensorSpec(name="y", dtype="float16", shape=("N", 3, 2, 2))
INT8 = TypedTensor(name="x", role="input", dtype="int8", layout="chw4", model_dtype="float32", scale=0.5)


def place(layout: str, n: int, c: int, h: int, w: int) -> tuple[int, ...]:
    """The subscript of an element, as the documents of `TensorFormat` give it."""
    width = VECTORS[layout]
    return (n, h, w, c) if layout.startswith("hwc") else (n, c // width, h, w, c % width)


@st.composite
def images(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 35), st.integers(1, 3), st.integers(1, 3)))
    return draw(arrays(np.int8, shape))


@given(images(), st.sampled_from(sorted(VECTORS)))
def test_every_element_lies_where_tensorrt_reads_it_and_comes_back(
    image: np.ndarray[Any, Any], layout: str
) -> None:
    stored = vectorise(image, layout)
    assert stored.flags.c_contiguous
    reference = np.zeros(stored_shape(layout, image.shape), image.dtype)
    for index in np.ndindex(image.shape):
        n, c, h, w = index
        reference[place(layout, n, c, h, w)] = image[index]
    np.testing.assert_array_equal(stored, reference)
    np.testing.assert_array_equal(unvectorise(stored, layout, image.shape[1]), image)


@given(
    arrays(np.float32, (5,), elements=st.floats(-60, 60, width=32)), st.sampled_from([0.25, 0.5, 1.0, 2.0])
)
def test_floats_are_quantised_as_by_quantizelinear(values: np.ndarray[Any, Any], scale: float) -> None:
    levels = [max(-128, min(127, round(float(value) / scale))) for value in values]  # half to even
    assert quantize_array("x", values, scale, saturate=True).tolist() == levels


def test_a_batch_of_floats_becomes_what_the_engine_reads_and_an_output_floats_again() -> None:
    image = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    stored = pack_array(SPEC, image, INT8)
    assert (stored.dtype, stored.shape) == (np.dtype(np.int8), (1, 1, 2, 2, 4))
    assert stored[0, 0, 1, 1].tolist() == [6, 14, 22, 0]
    np.testing.assert_array_equal(unpack_array(SPEC, stored, INT8), image)


@pytest.mark.parametrize(
    ("spec", "tensor", "array", "words"),
    [
        (SPEC, INT8, np.zeros((2, 3, 2), np.float32), "expected"),
        (SPEC, INT8, np.zeros((2, 4, 2, 2), np.float32), "expected"),
        (
            SPEC,
            INT8,
            np.stack([np.zeros((3, 2, 2)), np.full((3, 2, 2), 64.0)]),
            "64.0 of sample 1 is outside",
        ),
        (SPEC, INT8, np.full((1, 3, 2, 2), np.nan), "nan of sample 0 is not finite"),
        (SPEC, None, np.zeros((2, 3, 2, 2)), r"type float64 does not fit int8 \(sample 0\)"),
        (SPEC, None, np.full((2, 3, 2, 2), 200), "200 of sample 0 does not fit int8"),
        (FLOATS, None, np.full((2, 3, 2, 2), 1e6), "1000000.0 of sample 0 does not fit float16"),
        (FLOATS, None, np.full((2, 3, 2, 2), 2049), "2049 of sample 0 does not fit float16"),
        (FLOATS, None, np.full((2, 3, 2, 2), "1"), "type <U1 does not fit"),
        (FLOATS, None, np.full((2, 3, 2, 2), 1j), "type complex128 does not fit"),
        (SPEC, INT8, np.zeros((2, 3, 2, 2), np.uint8), "uint8 values: levels of int8 or numbers"),
    ],
)
def test_what_the_input_cannot_take_is_named_with_its_sample(
    spec: TensorSpec, tensor: TypedTensor | None, array: np.ndarray[Any, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        pack_array(spec, array, tensor)
    assert caught.value.remedy


def test_values_beyond_int8_are_clipped_on_request() -> None:
    image = np.full((1, 3, 2, 2), -1e9, np.float32)
    assert pack_array(SPEC, image, INT8, saturate=True)[..., :3].max() == -128


def test_an_output_in_another_format_is_refused() -> None:
    for shape in ((1, 3, 2, 2), (1, 2, 2, 2, 4)):  # two vectors are too many for three channels
        with pytest.raises(DataError, match="is not chw4"):
            unpack_array(SPEC, np.zeros(shape, np.int8), INT8)
    with pytest.raises(DataError, match="holds float32 values, the engine's are int8"):
        unpack_array(SPEC, np.zeros((1, 1, 2, 2, 4), np.float32), INT8)
    with pytest.raises(DataError, match=r"shape \(1, 2, 3, 2\), expected \('N', 3, 2, 2\)"):
        unpack_array(FLOATS, np.zeros((1, 2, 3, 2), np.float16), None)


def test_a_linear_array_lies_as_the_engine_reads_it() -> None:
    array = np.zeros((2, 2, 2, 3), np.float16).transpose(0, 3, 1, 2)
    assert pack_array(FLOATS, array, None).flags.c_contiguous


class OnGpu:
    """An array of Numba's kind: on the GPU, with a method that copies it to the host."""

    __cuda_array_interface__ = ("shape", "typestr", "data", "version")

    def copy_to_host(self) -> np.ndarray[Any, Any]:
        return np.ones(3)


def test_arrays_of_others_come_to_the_host() -> None:
    torch = pytest.importorskip("torch")
    assert on_host(torch.full((2,), 1.5, dtype=torch.bfloat16)).tolist() == [1.5, 1.5]
    assert on_host(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert on_host(OnGpu()).tolist() == [1.0, 1.0, 1.0]


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(DataError, match="list: no array"):
        on_host([[1, 2], [3]])
