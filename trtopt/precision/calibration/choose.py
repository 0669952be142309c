"""The method that suits a model best: least output error on samples that calibration has not seen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.fit import rows_of, sample_axes, samples_in
from trtopt.precision.deviation import Deviation, decibels
from trtopt.records import TensorSpec
from trtopt.records.precision import MethodScore

EVERY = 8
"""One sample of so many is held out."""


class Part(SampleSource):
    """The samples of a source that are held out, or all others. A fixed batch is kept whole.

    `sha256` is of all samples of the source that the last reading saw, those of the other part included; it
    does not depend on how they are cut into batches. `numbers` are the positions in the source of the samples
    in the batch read last.
    """

    def __init__(self, source: SampleSource, *, held: bool, every: int = EVERY) -> None:
        super().__init__(source.name, [])
        self._source, self._held, self._every = source, held, every
        self._digests: dict[str, Any] = {}
        self.numbers: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def sha256(self) -> str:
        """One hash over the names and contents of all inputs."""
        whole = hashlib.sha256()
        for name in sorted(self._digests):
            whole.update(f"{name}:{self._digests[name].hexdigest()};".encode())
        return whole.hexdigest()

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[dict[str, NDArray[Any]]]:
        """As the source's, of this part's samples."""
        is_open = any(isinstance(axis, str) for spec in inputs for axis in spec.shape[:1])
        rows = rows_of(inputs, size)
        axes = sample_axes(inputs) or {name: 0 for name, number in rows.items() if number and is_open}
        first = seen = 0
        self._digests = {name: hashlib.sha256() for name in rows}
        for batch in self._source.batches(inputs, size):
            for name, array in batch.items():
                self._digests[name].update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            count = next((batch[name].shape[axis] for name, axis in axes.items()), 1)
            numbers = np.arange(first, first + count)
            apart = numbers % self._every == self._every - 1 if self._every else np.zeros(count, bool)
            mine = apart == self._held
            there = samples_in(batch, inputs)
            self.numbers = numbers[mine] if axes else np.arange(seen, seen + there)
            first, seen = first + count, seen + there
            if mine.all():
                yield batch
            elif mine.any():
                yield {
                    name: array.compress(mine, axes[name]) if name in axes else array
                    for name, array in batch.items()
                }


Arrays = Mapping[str, NDArray[Any]]
_ENOUGH = 16
_CLEAR_DB = 3.0
"""What a method that clips must gain on fewer than `_ENOUGH` samples: half of the error's power."""


def is_float(array: NDArray[Any]) -> bool:
    """Whether the array holds floating-point numbers."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def best_of(scores: Sequence[MethodScore], held: int, careful: str) -> str:
    """The best method or, unless it is clearly better on `held` samples that are few, the `careful` one.

    What the others clip is rare: a few samples may have none of it.
    """
    found = {item.method: item.sqnr_db for item in scores}
    lead = scores[0].sqnr_db - found[careful]
    return scores[0].method if held >= _ENOUGH or lead >= _CLEAR_DB else careful


def score(
    methods: Sequence[str], held: Iterable[tuple[Arrays, Arrays]], run: Callable[[str, Arrays], Arrays]
) -> tuple[MethodScore, ...]:
    """Each method's signal-to-noise ratio, averaged over outputs, best first; equal ones in the given order.

    `held` are (inputs, the float model's outputs); `run` answers with the quantised model's outputs.
    """
    found: dict[str, dict[str, Deviation]] = {method: {} for method in methods}
    for inputs, reference in held:
        for method, outputs in found.items():
            made = run(method, inputs)
            for name, array in reference.items():
                if is_float(array) and array.shape == made[name].shape:
                    outputs.setdefault(name, Deviation(name)).add(array, made[name])
    scores = []
    for method, outputs in found.items():
        ratios = [decibels(item.result()) for item in outputs.values()]
        scores.append(MethodScore(method=method, sqnr_db=round(float(np.mean(ratios)) if ratios else 0.0, 3)))
    return tuple(sorted(scores, key=lambda item: -item.sqnr_db))
