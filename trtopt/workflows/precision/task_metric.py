"""A model's task metric, as its file in the collection names it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import DataError, UsageError
from trtopt.export.source_module import sibling_function
from trtopt.export.spec import find, read_spec
from trtopt.records import TensorSpec
from trtopt.records.precision import TaskScore

LABELS = TensorSpec(name="labels", dtype="int64", shape=("samples",))
"""What DATA calls the right answers, one a sample."""
Arrays = dict[str, NDArray[np.generic]]


class Task:
    """Collects one output of both sides, and the labels where there are any, and scores them.

    A metric takes (outputs, labels) where the data has labels, else (reference's outputs, outputs).
    """

    def __init__(self, model: str) -> None:
        path = find(model)
        spec = read_spec(path)
        if spec.metric is None or not spec.outputs:
            raise UsageError(f"--model {model}: its file names no metric", "omit --model")
        self._metric, self._output = spec.metric, spec.outputs[0]
        self._function = sibling_function(path, spec.metric)
        self._kept: tuple[list[NDArray[np.generic]], ...] = ([], [], [])

    def add(self, wanted: Arrays, got: Arrays, labels: NDArray[np.generic] | None) -> None:
        """Take a batch of both sides' outputs."""
        if self._output not in wanted:
            raise UsageError(
                f"the model has no output {self._output!r}",
                "check that --model names the model that it was made from",
            )
        for kept, array in zip(self._kept, (wanted[self._output], got[self._output], labels), strict=True):
            if array is not None:
                kept.append(array)

    def score(self) -> TaskScore:
        """The metric over all added batches; then starts again."""
        reference, checked, labels = (np.concatenate(kept) if kept else None for kept in self._kept)
        self._kept = ([], [], [])
        try:
            if labels is not None:
                scores = self._function(reference, labels), self._function(checked, labels)
            else:
                scores = self._function(reference, reference), self._function(reference, checked)
        except Exception as error:
            raise DataError(
                f"the metric {self._metric} fails on this data: {error}",
                f"does it need an array {LABELS.name!r} in the data?",
            ) from error
        return TaskScore(metric=self._metric, reference=float(scores[0]), checked=float(scores[1]))
