"""Buffers of vectorised inputs and outputs."""

from contextlib import ExitStack

import numpy as np

from tests.support.scripted_device.device import ScriptedDevice
from trtopt.device.api import Binding
from trtopt.measure.loop.buffers import array_in, host_buffers


def test_linear_data_is_packed_into_the_buffer_and_read_from_it_again() -> None:
    image = np.arange(12, dtype=np.int8).reshape(1, 3, 2, 2)
    binding = Binding("x", image.dtype, image.shape, is_input=True, layout="chw4")
    with ExitStack() as resources:
        buffer = host_buffers(ScriptedDevice(), (binding,), {"x": image}, resources)["x"]
        assert buffer.array[:8].tolist() == [0, 4, 8, 0, 1, 5, 9, 0]
        np.testing.assert_array_equal(array_in(buffer, binding), image)
