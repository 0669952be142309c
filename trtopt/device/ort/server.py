"""The process in which ONNX Runtime runs models of strangers: it holds sessions and answers requests.

Native code can crash on a model: here it takes no command along. See `ort_process` for the other side.
"""

from __future__ import annotations

import ctypes
import os
from socket import socket
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from trtopt.device.ort.reference import (
    Answered,
    Close,
    Mapped,
    Open,
    Refused,
    Reply,
    Request,
    Run,
    ort_value,
)
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.processes.messages import frame_for_reading, receive, send

_ERRORS_ONLY = 4
_NICENESS = 10
"""An engine may be being built, whose builder times kernels: that goes before what can wait."""
_NOT_NUMPYS = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e5m2)": "float8_e5m2",
}
"""Types of which ONNX Runtime gives no array, or one of integers."""


class _Session:
    """A model that runs unoptimised."""

    def __init__(self, request: Open) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # As the file has them: by default all weights may be dequantised before the first product.
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.force_spinning_stop", "1")  # the cores are the asker's then
        options.enable_cpu_mem_arena = False
        if not request.prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        arrays = request.held | {name: _mapped(place) for name, place in request.mapped.items()}
        self._weights = {name: ort_value(array) for name, array in arrays.items()}
        for name, value in self._weights.items():
            options.add_initializer(name, value)  # shared; `add_external_initializers` would copy it
        model = request.path or request.model.tobytes()
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        outputs = self._session.get_outputs()
        self._outputs = [output.name for output in outputs]
        self.inputs = {item.name: item.type for item in self._session.get_inputs()}
        self._takes_arrays = _NOT_NUMPYS.keys().isdisjoint(
            (*self.inputs.values(), *(output.type for output in outputs))
        )

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self._outputs, self._answers(feed), strict=True))

    def _answers(self, feed: dict[str, Any]) -> list[Any]:
        if self._takes_arrays:
            return list(self._session.run(self._outputs, feed))
        given = {name: ort_value(array) for name, array in feed.items()}
        return [_array_of(value) for value in self._session.run_with_ort_values(self._outputs, given)]


def _mapped(place: Mapped) -> NDArray[Any]:
    dtype = numpy_dtype(place.dtype)
    size = int(np.prod(place.shape, dtype=np.int64)) * dtype.itemsize
    data = np.memmap(place.path, np.uint8, "r", place.offset, (size,))
    return np.asarray(data).view(dtype).reshape(place.shape)


def _array_of(value: Any) -> NDArray[Any]:
    """The array in an OrtValue, a copy."""
    name = _NOT_NUMPYS.get(value.data_type())
    if name is None:
        return np.asarray(value.numpy())
    dtype, shape = numpy_dtype(name), value.shape()
    bits = ctypes.string_at(value.data_ptr(), int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    found: NDArray[Any] = np.frombuffer(bits, dtype).reshape(shape)
    return found


def _reply(sessions: dict[int, _Session], request: Open | Run) -> Reply:
    try:
        if isinstance(request, Run):
            return Answered(sessions[request.session].run(request.feed))
        sessions[request.session] = _Session(request)
        return Answered(sessions[request.session].inputs)
    except Exception as error:  # noqa: BLE001  (ONNX Runtime's exceptions share no public base)
        return Refused(str(error).strip() or type(error).__name__)


def main(channel: socket) -> None:
    """Answer requests until the client is gone."""
    os.nice(_NICENESS)
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
    sessions: dict[int, _Session] = {}
    while True:
        request: Request = receive(channel, Request)
        if isinstance(request, Close):
            for number in request.sessions:
                sessions.pop(number, None)
            continue
        reply = frame_for_reading(_reply(sessions, request))
        del request  # what came in is not held while the next is awaited
        send(channel, reply)
