"""Buffers of vectorised inputs and outputs."""

from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.scripted_device.device import ScriptedDevice
from trtopt.device.api import Binding
from trtopt.errors import DataError
from trtopt.measure.loop.inference_stream import array_in, host_buffers


def test_linear_data_is_packed_into_the_buffer_and_read_from_it_again() -> None:
    image = np.arange(12, dtype=np.int8).reshape(1, 3, 2, 2)
    binding = Binding("x", image.dtype, image.shape, is_input=True, layout="chw4")
    with ExitStack() as resources:
        buffer = host_buffers(ScriptedDevice(), (binding,), {"x": image}, resources)["x"]
        assert buffer.array[:8].tolist() == [0, 4, 8, 0, 1, 5, 9, 0]
        np.testing.assert_array_equal(array_in(buffer, binding), image)


@pytest.mark.parametrize("values", [[2**40], [1.5]])
def test_what_the_engines_type_does_not_hold_is_refused(values: list[float]) -> None:
    binding = Binding("x", np.dtype(np.int32), (1,), is_input=True)
    with ExitStack() as resources, pytest.raises(DataError, match="'x'"):
        host_buffers(ScriptedDevice(), (binding,), {"x": np.array(values)}, resources)


def test_an_output_without_values_is_read_from_the_byte_that_it_has() -> None:
    binding = Binding("y", np.dtype(np.float32), (0, 4), is_input=True)
    with ExitStack() as resources:
        buffers = host_buffers(ScriptedDevice(), (binding,), {"y": np.zeros((0, 4))}, resources)
        assert array_in(buffers["y"], binding).shape == (0, 4)
