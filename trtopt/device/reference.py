"""ONNX Runtime on the CPU as a judge of numbers: a file goes in, arrays come out, nothing is timed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.ort_weights import session_over
from trtopt.dtypes import numpy_dtype
from trtopt.errors import ModelError

Arrays = dict[str, NDArray[Any]]
_ERRORS_ONLY = 4
_ONNX_BFLOAT16 = 16
_BFLOAT16 = "tensor(bfloat16)"


def _unoptimised() -> Any:
    """Session options under which the graph runs as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
    return options


def open_reference(path: Path) -> Callable[[Arrays], Arrays]:
    """Load an ONNX file with no graph optimisation, so that failures name the file's own nodes.

    Returns:
        A function from inputs by name to outputs by name. It raises ModelError with the runtime's words.

    Raises:
        ModelError: the runtime refuses the file.
    """
    import onnxruntime

    options = _unoptimised()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions share no public base
        raise ModelError(f"ONNX Runtime refuses the file: {error}", "this is a bug in the export") from error
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, inputs), strict=True))
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime failed: {error}", "see which node it names; export that part another way"
            ) from error

    return run


def run_unoptimised(
    model: bytes, weights: Mapping[str, NDArray[Any]], feeds: Sequence[Mapping[str, NDArray[Any]]]
) -> list[Arrays]:
    """Run a model in memory, its large weights given as arrays that are shared and not copied.

    Returns:
        The outputs by name for each feed.

    Raises:
        ModelError: ONNX Runtime cannot load or run it; with its first line.
    """
    session = Unoptimised(model, weights)
    return [session.run(feed) for feed in feeds]


class CannotRun(ModelError):
    """ONNX Runtime cannot load or run a model on the inputs that it was given."""


class Unoptimised:
    """A model in memory, opened to run as it is written; its large weights are shared and not copied.

    These are initializers that the model has in the file `ort_weights.WEIGHTS_FILE`. `prepack` lets ONNX
    Runtime keep a second copy of weights in the order that its kernels like best.

    Raises:
        CannotRun: ONNX Runtime cannot load it; with its first line.
    """

    def __init__(
        self, model: bytes, weights: Mapping[str, NDArray[Any]] | None = None, *, prepack: bool = False
    ) -> None:
        options = _unoptimised()
        options.enable_cpu_mem_arena = False
        if not prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        self._weights = {name: _shared(array) for name, array in (weights or {}).items()}
        try:
            self._session = session_over(model, self._weights, options)
        except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
            raise _cannot_run(error) from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}
        types = (*self._inputs.values(), *(output.type for output in self._session.get_outputs()))
        self._takes_arrays = _BFLOAT16 not in types

    def fitted(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """Inputs meant for another precision of this model, in 16 bits where this one takes those."""
        halves = {"tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16"}
        return {
            name: array.astype(numpy_dtype(halves[self._inputs[name]]))
            if self._inputs.get(name) in halves
            else array
            for name, array in feed.items()
        }

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name.

        Raises:
            CannotRun: ONNX Runtime fails; with its first line.
        """
        try:
            return dict(zip(self._outputs, self._answers(feed), strict=True))
        except Exception as error:  # noqa: BLE001  (as above)
            raise _cannot_run(error) from None

    def _answers(self, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        if self._takes_arrays:
            return list(self._session.run(self._outputs, dict(feed)))
        given = {name: _shared(array) for name, array in feed.items()}
        return [_array_of(value) for value in self._session.run_with_ort_values(self._outputs, given)]


def _shared(array: NDArray[Any]) -> Any:
    """An OrtValue over the array's own memory; BF16 is handed over as the 16-bit integers that it is."""
    import onnxruntime

    if array.dtype.name != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)


def _array_of(value: Any) -> NDArray[Any]:
    """The array in an OrtValue, a copy; ONNX Runtime itself gives none of BF16."""
    if value.data_type() != _BFLOAT16:
        return np.asarray(value.numpy())
    size = int(np.prod(value.shape(), dtype=np.int64)) * 2
    bits = ctypes.string_at(value.data_ptr(), size)
    found: NDArray[Any] = np.frombuffer(bits, numpy_dtype("bfloat16")).reshape(value.shape())
    return found


def _cannot_run(error: Exception) -> CannotRun:
    told = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CannotRun(f"ONNX Runtime cannot run the model: {told}", "see which node it names")


def hush() -> None:
    """Silence ONNX Runtime for the rest of the process: its remarks say nothing of the user's model."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
