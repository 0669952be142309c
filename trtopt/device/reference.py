"""ONNX Runtime on the CPU as a judge of numbers: a file goes in, arrays come out, nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import ModelError

Arrays = dict[str, NDArray[Any]]
_ERRORS_ONLY = 4
_ONNX_BFLOAT16 = 16


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

    `prepack` lets ONNX Runtime keep a second copy of weights in the order that its kernels like best.

    Raises:
        CannotRun: ONNX Runtime cannot load it; with its first line.
    """

    def __init__(
        self, model: bytes, weights: Mapping[str, NDArray[Any]] | None = None, *, prepack: bool = False
    ) -> None:
        import onnxruntime

        options = _unoptimised()
        options.enable_cpu_mem_arena = False
        if not prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        self._weights = {name: _shared(array) for name, array in (weights or {}).items()}
        if self._weights:
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
            raise _cannot_run(error) from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._inputs = {item.name: item.type for item in self._session.get_inputs()}

    def fitted(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """Inputs meant for another precision of this model, as FP16 where this one takes FP16."""
        return {
            name: array.astype(np.float16) if self._inputs.get(name) == "tensor(float16)" else array
            for name, array in feed.items()
        }

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name.

        Raises:
            CannotRun: ONNX Runtime fails; with its first line.
        """
        try:
            return dict(zip(self._outputs, self._session.run(self._outputs, dict(feed)), strict=True))
        except Exception as error:  # noqa: BLE001  (as above)
            raise _cannot_run(error) from None


def _shared(array: NDArray[Any]) -> Any:
    """An OrtValue over the array's own memory; BF16 is handed over as the 16-bit integers that it is."""
    import onnxruntime

    if array.dtype.name != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)


def _cannot_run(error: Exception) -> CannotRun:
    told = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CannotRun(f"ONNX Runtime cannot run the model: {told}", "see which node it names")


def hush() -> None:
    """Silence ONNX Runtime for the rest of the process: its remarks say nothing of the user's model."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
