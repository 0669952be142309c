"""A typed graph on new inputs against the original on the converted ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trtopt.data import feeds
from trtopt.errors import ModelError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.printable import counted
from trtopt.records.tensors import TypedTensor
from trtopt.rewrite import equivalence
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.rewrite.typed_io.graph_edits import TO_NCHW, TO_NHWC

Array = np.ndarray[Any, Any]


def to_model(array: Array, tensor: TypedTensor, *, only_type: bool = False) -> Array:
    """What the graph makes of a new input before the model's own input, by NumPy."""
    if tensor.scale is not None:
        array = array.astype(np.float32) * np.float32(tensor.scale)
    if tensor.layout == "nhwc" and not only_type:
        array = array.transpose(TO_NCHW)
    if tensor.mean and not only_type:
        axes = (-1, *[1] * (array.ndim - 2)) if len(tensor.mean) > 1 else ()
        mean, std = (np.asarray(numbers).reshape(axes) for numbers in (tensor.mean, tensor.std))
        array = (array.astype(np.float64) - mean) / std
    return np.ascontiguousarray(array.astype(numpy_dtype(tensor.model_dtype)))


def _from_model(array: Array, tensor: TypedTensor | None, *, only_type: bool) -> Array:
    """What the new output must be, given the model's own."""
    if tensor is None:
        return array
    if tensor.scale is not None:
        levels = np.rint(array.astype(np.float32) / np.float32(tensor.scale))
        quantised: Array = np.clip(levels, -128, 127).astype(np.int8)
        return quantised
    moved = array.transpose(TO_NHWC) if tensor.layout == "nhwc" and not only_type else array
    dtype = tensor.model_dtype if tensor.dtype == "int8" else tensor.dtype
    with np.errstate(over="ignore"):  # told by `_overflow`
        return np.ascontiguousarray(moved.astype(numpy_dtype(dtype)))


def _overflow(feed: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> str | None:
    """The output whose new type does not hold the model's values, in words."""
    for name, array in before.items():
        narrow = after[name]
        if narrow.dtype.kind in "fV" and np.isfinite(array).all() and not np.isfinite(narrow).all():
            largest = float(np.abs(array.astype(np.float32)).max())
            return f"--io {name}: the output reaches {largest:.6g}, beyond {narrow.dtype} ({feed})"
    return None


def verified(
    before: ModelFile,
    after: ModelFile,
    tensors: Sequence[TypedTensor],
    data: str | Path | None,
    *,
    only_type: bool = False,
) -> tuple[Deviation, ...]:
    """The new model on new inputs against the old one on the converted ones.

    16-bit arithmetic is emulated in both: ONNX Runtime rounds it in other places once a Q is gone, and a
    level of INT8 that flips for that is no error of ours. A Q that moves changes no bit then.

    Raises:
        ModelError: an output differs by more than the arithmetic's rounding, or its type does not hold it.
    """
    old, new = (in_fp32(replace(model, spool=None)) for model in (before, after))
    by_name = {one.name: one for one in tensors}
    real = () if data is None else (feeds.from_data(data, after.proto),)

    def run(seeded: Sequence[feeds.Feed]) -> tuple[tuple[Deviation, ...], list[str]]:
        given = (*seeded, *real)
        converted = [
            replace(
                feed,
                values={
                    name: to_model(array, by_name[name], only_type=only_type) if name in by_name else array
                    for name, array in feed.values.items()
                },
            )
            for feed in given
        ]
        computed = equivalence.run(old, converted)
        reference = [
            {
                name: _from_model(array, by_name.get(name), only_type=only_type)
                for name, array in outputs.items()
            }
            for outputs in computed
        ]
        found = equivalence.compare(reference, new, given, "B" if only_type else "N", emulated=True)
        if any(item.error == float("inf") for item in found):
            equivalence.run(new, given)  # raises the reason, if it does not run
        decisive = {feed.name for feed in real or given}
        overflows = [
            _overflow(feed.name, *outputs)
            for feed, *outputs in zip(given, computed, reference, strict=True)
            if feed.name in decisive
        ]
        return found, list(filter(None, overflows))

    checked, overflows = feeds.on_seeded(after.proto, run, spared=bool(real))
    if overflows:
        raise ModelError(
            overflows[0], "leave it in fp32, or request bf16" + ("" if real else "; --data gives real inputs")
        )
    worst = max(checked, key=lambda item: item.error)
    if not all(item.ok for item in checked):
        raise ModelError(
            f"output {worst.output!r} moved by {worst.error:.3g} with the requested inputs and outputs, "
            f"beyond its bound {worst.bound:.3g} ({worst.feed})",
            "please report the model; build it without --io and --normalize",
        )
    return checked


def describe(tensors: Sequence[TypedTensor], checked: Sequence[Deviation]) -> list[str]:
    """A line for each tensor, and what the verification found."""
    lines = [str(one) for one in tensors]
    if checked:
        worst = max(item.error for item in checked)
        runs = len({item.feed for item in checked})
        lines.append(f"inputs and outputs verified on {counted(runs, 'input')}: largest error {worst:.3g}")
    return lines
