"""ONNX Runtime on the CPU as the numerical reference: a file goes in, arrays come out, nothing is timed.

Models run in a process of their own (`ort_process`): that ONNX Runtime crashes on one is an error.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from trtopt.device.ort.client import OrtDeath, OrtRefusal, ort_process
from trtopt.errors import ModelError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import graphs_of, opset_of

if TYPE_CHECKING:
    import onnx


Arrays = dict[str, NDArray[Any]]
_FLOATS = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16"}


def open_reference(path: Path) -> Callable[[Arrays], Arrays]:
    """What runs an ONNX file with no graph optimisation, so that failures name the file's own nodes."""
    return Unoptimised(path, prepack=True).run


class CannotRun(ModelError):
    """ONNX Runtime cannot load or run a model on the inputs that it was given."""


class CannotLoad(CannotRun):
    """ONNX Runtime cannot load a model, whatever its inputs: of no use with other data."""


class OperatorMissing(CannotLoad):
    """The model has an operator that ONNX Runtime has not."""


class Crashed(CannotRun):
    """The process in which ONNX Runtime loaded or ran a model died."""

    def __init__(self, death: OrtDeath, doing: str) -> None:
        self.death, self.doing = death, doing
        super().__init__(
            f"ONNX Runtime cannot run the model: its process {death.how} while {doing}", death.cause
        )


@contextmanager
def crash_context(what: str) -> Iterator[None]:
    """Where a model crashes ONNX Runtime, add to the error which model it is, or on which samples."""
    try:
        yield
    except Crashed as crash:
        raise Crashed(crash.death, f"{crash.doing} ({what})") from None


class Unoptimised:
    """A model in memory or in a file, opened to run unoptimised.

    Weights are initializers that the model has in the file `WEIGHTS_FILE` of `model_file`, `packed` the bytes
    of its PACKED_FILE. What is mapped from files is shared, not copied, and may be deleted once it is open.
    `prepack` lets ONNX Runtime keep a second copy of weights in the order that its kernels like best.
    """

    def __init__(
        self,
        model: bytes | Path,
        weights: Mapping[str, NDArray[Any]] | None = None,
        packed: Sequence[NDArray[Any]] = (),
        *,
        prepack: bool = False,
    ) -> None:
        self._process = ort_process()
        try:
            self._session, self._inputs = self._process.open(model, weights or {}, packed, prepack=prepack)
        except OrtRefusal as error:
            raise _cannot_load(str(error), model) from None
        except OrtDeath as death:
            raise Crashed(death, "loading it") from None
        weakref.finalize(self, self._process.drop, self._session).atexit = False

    def fit(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """Inputs meant for another precision of this model, in the width that this one takes."""
        return {
            name: array.astype(numpy_dtype(_FLOATS[self._inputs[name]]), copy=False)
            if self._inputs.get(name) in _FLOATS
            else array
            for name, array in feed.items()
        }

    def run(self, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name."""
        try:
            return self._process.run(self._session, feed)
        except OrtRefusal as error:
            raise _cannot_run(error) from None
        except OrtDeath as death:
            raise Crashed(death, "running it") from None


def _cannot_load(told: str, model: bytes | Path) -> CannotLoad:
    import onnx

    content = model.read_bytes() if isinstance(model, Path) else model
    if missing := missing_operator(told, onnx.ModelProto.FromString(content)):
        return OperatorMissing(*missing)
    problem = f"ONNX Runtime cannot run the model: {told.splitlines()[0]}"
    return CannotLoad(problem, "see what it names, and export the model again")


def _cannot_run(error: OrtRefusal) -> CannotRun:
    problem = str(error).splitlines()[0]
    return CannotRun(f"ONNX Runtime cannot run the model: {problem}", "see which node it names")


_UNKNOWN = re.compile(r"(\w+)\(-?\d+\) is not a registered function/op|No Op registered for (\w+)")
_UNIMPLEMENTED = re.compile(r"Could not find an implementation for (\w+)\(\d+\)")
_OLDEST_OPSET = 7
"""ONNX Runtime has every standard operator of newer ones, though not for every type."""


def missing_operator(told: str, model: onnx.ModelProto) -> tuple[str, str] | None:
    """If its message says that ONNX Runtime lacks an operator: which, with its first node, and the remedy."""
    old, unknown = _UNIMPLEMENTED.search(told), _UNKNOWN.search(told)
    if old and opset_of(model) < _OLDEST_OPSET:
        operator, version = old[1], f" of opset {opset_of(model)}"
        remedy = "export the model again with opset 13 or newer"
    elif unknown:
        operator, version = unknown[1] or unknown[2], ""
        remedy = "build with a TensorRT that has a plugin for it, or replace the operator"
    else:
        return None
    nodes = (node for graph in graphs_of(model.graph) for node in graph.node)
    name = next((node.name for node in nodes if node.op_type == operator), "")
    return f"ONNX Runtime has no operator {operator!r}{version} (node {name!r})", remedy
