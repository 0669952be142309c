"""A model with other types and layouts of inputs and outputs, verified against the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import ModelError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import opset_of
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.printable import counted
from trtopt.records.tensors import IoRequest, TypedTensor
from trtopt.rewrite import equivalence
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.rewrite.typed_io.graph_edits import TO_NCHW, TO_NHWC, Edit, type_input, type_output
from trtopt.rewrite.typed_io.requested import edits_for, record, recorded_in

_BF16_OPSET = 13
"""The least in which Cast knows BF16."""
_BROADCAST_OPSET = 7
"""The least in which arithmetic broadcasts as it does today."""


@dataclass(frozen=True)
class TypedGraph:
    """The graph with its new inputs and outputs, what they are, and the verification."""

    model: ModelFile
    tensors: tuple[TypedTensor, ...] = ()
    checked: tuple[Deviation, ...] = ()


def type_graph(
    model: ModelFile, request: IoRequest, *, data: str | Path | None = None, check: bool = True
) -> TypedGraph:
    """The model with the requested types, layouts and normalisation, run against the original.

    INT8 tensors get their layout alone here; see `move_quantisation`. `data` has the new inputs.
    """
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    recorded = {one.name: one for one in recorded_in(model.proto)}
    edits = list(edits_for(made, request, recorded))
    _apply(made.proto, edits)
    tensors = tuple(edit.tensor for edit in edits)
    checked = verified(model, made, tensors, data) if check and tensors else ()
    for one in tensors:
        known = recorded.get(one.name)
        recorded[one.name] = msgspec.structs.replace(known, layout=one.layout) if known else one
    if tensors:
        record(made.proto, recorded.values())
    return TypedGraph(made, tuple(recorded.values()), checked)


def typed_reference(model: ModelFile, tensors: Sequence[TypedTensor]) -> ModelFile:
    """The original model with the inputs and outputs of one that was made of it, as a reference for that.

    What it has so already stays.
    """
    made = replace(model, proto=onnx.ModelProto())
    made.proto.CopyFrom(model.proto)
    values = {item.name: item for item in (*made.proto.graph.input, *made.proto.graph.output)}
    same = {one.name for one in recorded_in(model.proto)}
    edits = [Edit(one, values[one.name]) for one in tensors if one.name not in same and one.name in values]
    _apply(made.proto, [edit for edit in edits if edit.held == edit.tensor.model_dtype])
    return made


def _apply(model: onnx.ModelProto, edits: Sequence[Edit]) -> None:
    """Write changes into the graph, in place, after raising its opset if that lacks what they need."""
    takes_bf16 = any(edit.tensor.dtype == "bfloat16" for edit in edits)
    if edits and opset_of(model) < (_BF16_OPSET if takes_bf16 else _BROADCAST_OPSET):
        raise_opset(model, _BF16_OPSET)
    for edit in edits:
        (type_input if edit.tensor.role == "input" else type_output)(model, edit)


# ── verification against the original ─────────────────────────────────────────────────────────────────────


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
