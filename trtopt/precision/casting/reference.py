"""What a model takes and gives on its first samples, kept in files until another has run on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from trtopt.data.feeds import inputs_of
from trtopt.data.reader import Arrays
from trtopt.onnxio.model_file import array_of, spooled


class Reference:
    """Picks a model's inputs and outputs out of what is observed of it; the files go into `folder`."""

    def __init__(self, model: onnx.ModelProto, folder: Path, samples: int) -> None:
        self._folder, self._samples = folder, samples
        self._inputs = frozenset[str](item.name for item in inputs_of(model))
        self._outputs = [item.name for item in model.graph.output if item.type.HasField("tensor_type")]
        self.names = self._inputs.union(self._outputs)
        """The tensors that must be observed."""
        self._batches: dict[int, dict[str, onnx.TensorProto]] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Keep what belongs to a batch that begins among the first samples; see `observe.Visitor`."""
        if name in self.names and first < self._samples and values.dtype.kind not in "OSU":
            self._batches.setdefault(first, {})[name] = spooled(values, name, self._folder)

    def pairs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and outputs by name, a batch at a time, mapped from the files."""
        for kept in self._batches.values():
            arrays = {name: array_of(tensor, self._folder) for name, tensor in kept.items()}
            yield (
                {name: array for name, array in arrays.items() if name in self._inputs},
                {name: arrays[name] for name in self._outputs if name in arrays},
            )
