"""ONNX Runtime on the CPU as a judge of numbers: a file goes in, arrays come out, nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trtopt.errors import ModelError

Arrays = dict[str, NDArray[Any]]
_ERRORS_ONLY = 4


def open_reference(path: Path) -> Callable[[Arrays], Arrays]:
    """Load an ONNX file with no graph optimisation, so that failures name the file's own nodes.

    Returns:
        A function from inputs by name to outputs by name. It raises ModelError with the runtime's words.

    Raises:
        ModelError: the runtime refuses the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS_ONLY
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
