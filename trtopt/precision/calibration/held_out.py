"""Held-out samples: calibration does not see them, so that its methods are compared on unseen data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.fit import rows_of
from trtopt.data.reader import Arrays, samples_in
from trtopt.records import TensorSpec

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

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """As the source's, of this part's samples."""
        is_open = any(isinstance(axis, str) for spec in inputs for axis in spec.shape[:1])
        rows = rows_of(inputs, size)
        first = seen = 0
        self._digests = {name: hashlib.sha256() for name in rows}
        for batch in self._source.batches(inputs, size):
            for name, array in batch.items():
                self._digests[name].update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            count = next((len(batch[name]) for name, number in rows.items() if number), 1) if is_open else 1
            numbers = np.arange(first, first + count)
            apart = numbers % self._every == self._every - 1 if self._every else np.zeros(count, bool)
            mine = apart == self._held
            self.numbers = numbers[mine] if is_open else np.arange(seen, seen + samples_in(batch))
            first, seen = first + count, seen + samples_in(batch)
            if mine.all():
                yield batch
            elif mine.any():
                yield {name: array if rows[name] is None else array[mine] for name, array in batch.items()}
