"""What a look at samples shows: preprocessing left out, types converted, samples that no batch takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtopt.data.reader import Arrays
from trtopt.data.source import SampleSource
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.printable import counted
from trtopt.records import TensorSpec

_BYTE = 255
_BRIGHT = 200
"""A picture in bytes reaches it; few other whole numbers up to 255 do."""
_SAMPLES = 8


def range_notes(inputs: Sequence[TensorSpec], source: SampleSource) -> tuple[str, ...]:
    """Floating-point inputs whose first samples are converted, or whole numbers up to 255; samples left out.

    A function of the user's is not called for this: what it does may end the process.
    """
    if source.is_function:
        return ()
    first: Arrays = next(iter(source.batches(inputs, _SAMPLES)), {})
    return (*_converted(inputs, source), *_unscaled(first), *_left_out(source.left_out(inputs)))


def _converted(inputs: Sequence[TensorSpec], source: SampleSource) -> Iterator[str]:
    """Conversions to floats of which the types alone do not say that they lose nothing."""
    stored = source.types(inputs)
    for spec in inputs:
        given, dtype = stored[spec.name], numpy_dtype(spec.dtype)
        if dtype.kind in "fV" and given.kind in "fiu" and not np.can_cast(given, dtype):
            yield f"input {spec.name!r}: the data is {given} and was converted to {spec.dtype}"


def _left_out(samples: int) -> Iterator[str]:
    if samples:
        yield f"the last {counted(samples, 'sample')} fill no batch of the model's size and were not used"


def _unscaled(arrays: Arrays) -> Iterator[str]:
    for name, array in arrays.items():
        if array.dtype.kind in "iubOSU" or not array.size:
            continue
        values = np.asarray(array, np.float32)
        high = float(values.max())
        if values.min() >= 0 and _BRIGHT <= high <= _BYTE and bool((values == np.round(values)).all()):
            yield (f"input {name!r}: values reach {high:g}: if the model expects normalised input, scale it")
