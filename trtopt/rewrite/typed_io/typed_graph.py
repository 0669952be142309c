"""A model with other types and layouts of inputs and outputs, verified against the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx

from trtopt.onnxio.graph_walk import opset_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.records.tensors import IoRequest, TypedTensor
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.rewrite.typed_io.graph_edits import Edit, type_input, type_output
from trtopt.rewrite.typed_io.recorded import record, recorded_in
from trtopt.rewrite.typed_io.requested import edits_for
from trtopt.rewrite.typed_io.verification import verified

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

    Raises:
        UsageError: a request that does not fit the model's tensors.
        UnsupportedOpError: it needs a newer opset, in which a node has no form.
        ModelError: one of the models does not run, or the outputs differ.
        DataError: `data` does not fit the new inputs.
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
