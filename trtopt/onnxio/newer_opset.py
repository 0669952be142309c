"""Models of older opsets written in the form of a newer one: what ONNX changed from opset 8 on, and how.

An operator gets a new version when its meaning changes, when an attribute becomes an input, and when it
merely learns a type. `CHANGES` has a function for each version that reads a node otherwise than the one
before. All others up to `NEWEST` were read, and differ in types, words, or attributes that default to the old
way. `tests/unit/onnxio/test_newer_opset.py` holds this to ONNX's own history, and each to ONNX Runtime.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import UnsupportedOpError
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    REDUCTIONS,
    attribute,
    graphs_of,
    name_apart,
    names_in,
    opset_of,
    reads_of,
    refill,
    take_name,
)
from trtopt.onnxio.model_file import is_external
from trtopt.onnxio.shape_inference import inferred, tensor_types

OLDEST = 7
"""The oldest opset that ONNX Runtime is sure to run."""
NEWEST = 21
"""The newest opset whose changes are listed here; no target needs a model raised any further."""


class NoNewerFormError(Exception):
    """The node has no form in the newer version: the text continues "node 'n' (Op) …"."""


Change: TypeAlias = "Callable[[onnx.NodeProto, _Raiser], list[onnx.NodeProto] | None]"
"""Makes of a node what says the same in the version that the change is for: it alone, or it and others."""


def _take(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The attribute's value; the node loses it."""
    value = attribute(node, name, default)
    for entry in [entry for entry in node.attribute if entry.name == name]:
        node.attribute.remove(entry)
    return value


def _set(node: onnx.NodeProto, name: str, value: Any) -> None:
    _take(node, name)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _append(node: onnx.NodeProto, values: Any, dtype: Any, name: str, around: _Raiser) -> None:
    """One more input, a constant; an empty name where there are no values."""
    array = None if values is None else np.array(values, dtype)
    like = f"{node.name}:{name}"
    node.input.append("" if array is None else around.constant(array, like))


def _trim(node: onnx.NodeProto) -> None:
    """Take the empty names off the end of the node's inputs."""
    while node.input and not node.input[-1]:
        node.input.pop()


def _added(
    node: onnx.NodeProto, op: str, inputs: list[str], around: _Raiser, **attributes: Any
) -> onnx.NodeProto:
    """A node of one output next to `node`, named after it."""
    like = f"{node.name}/{op}"
    return onnx.helper.make_node(op, inputs, [around.name(f"{like}:0")], around.name(like), **attributes)


# ── attributes that became inputs ───────────────────────────────────────────────────────────────────────


def _into_inputs(*names: str, dtype: Any = np.int64) -> Change:
    """Attributes, of integers or of that type (None: the first input's), that became inputs in this order."""

    def change(node: onnx.NodeProto, around: _Raiser) -> None:
        kind = dtype or _numpy_type(node.input[0], around)
        for name in names:
            _append(node, _take(node, name), kind, name, around)
        _trim(node)

    return change


def _numpy_type(tensor: str, around: _Raiser) -> Any:
    """The tensor's element type; FP32 where it is not known: a wrong guess does not load, so errs never."""
    kind = around.type_of(tensor).elem_type or onnx.TensorProto.FLOAT
    if kind not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
        raise NoNewerFormError("takes no such type at its opset")
    return onnx.helper.tensor_dtype_to_np_dtype(kind)


def _pad(node: onnx.NodeProto, around: _Raiser) -> None:
    _append(node, _take(node, "pads"), np.int64, "pads", around)
    value = _take(node, "value", 0.0)
    _append(node, value or None, _numpy_type(node.input[0], around), "value", around)
    _trim(node)


def _dft(node: onnx.NodeProto, around: _Raiser) -> None:
    node.input.extend([""] * (2 - len(node.input)))
    _append(node, _take(node, "axis", 1), np.int64, "axis", around)


def _split_evenly(node: onnx.NodeProto, around: _Raiser) -> None:
    if len(node.input) < 2 or not node.input[1]:
        _set(node, "num_outputs", len(node.output))


# ── training ────────────────────────────────────────────────────────────────────────────────────────────


def _dropout(node: onnx.NodeProto, around: _Raiser) -> None:
    """Nothing is dropped either way; what the mask holds then, and its type, changed."""
    if len(node.output) > 1 and around.is_read(node.output[1]):
        raise NoNewerFormError("has a mask that is read: what it holds has changed")
    del node.output[1:]
    _take(node, "ratio")


def _per_channel_norm(node: onnx.NodeProto, around: _Raiser) -> None:
    if not _take(node, "spatial", 1):
        raise NoNewerFormError("normalises each activation (spatial=0)")


def _untrained_norm(node: onnx.NodeProto, around: _Raiser) -> None:
    if any(node.output[1:]):
        raise NoNewerFormError("is in training mode: it has more than one output")
    del node.output[1:]


# ── resizing ────────────────────────────────────────────────────────────────────────────────────────────


def _upsample(node: onnx.NodeProto, around: _Raiser) -> None:
    """A Resize of opset 10, whose rounding is known: scales are 1 or more."""
    node.op_type = "Resize"
    if attribute(node, "mode", b"nearest") == b"nearest":
        _set(node, "nearest_mode", "floor")


def _resize(node: onnx.NodeProto, around: _Raiser) -> None:
    """Asymmetric, the only mode of opset 10; the default of 11 is half pixels."""
    image, scales = node.input
    node.input[:] = [image, "", scales]
    if attribute(node, "mode", b"nearest") == b"nearest" and attribute(node, "nearest_mode") is None:
        _set(node, "nearest_mode", _rounding(around.value_of(scales)))
    _set(node, "coordinate_transformation_mode", "asymmetric")


def _rounding(scales: NDArray[Any] | None) -> str:
    """As ONNX Runtime rounds at opset 10: down along axes that grow, up along those that shrink."""
    if scales is None:
        raise NoNewerFormError(
            "computes its scales at run time, and the nearest pixel depends on whether an axis shrinks"
        )
    if (scales < 1).any() and (scales > 1).any():
        raise NoNewerFormError("shrinks one axis and enlarges another to the nearest pixel")
    return "ceil" if (scales < 1).any() else "floor"


def _resize_by_sizes(node: onnx.NodeProto, around: _Raiser) -> None:
    """Opset 11 needs empty scales in front of sizes, 13 none."""
    if attribute(node, "coordinate_transformation_mode") == b"tf_half_pixel_for_nn":
        raise NoNewerFormError("uses 'tf_half_pixel_for_nn', which opset 13 took away")
    if len(node.input) > 3 and node.input[3]:
        node.input[2] = ""


def _rename_modes(node: onnx.NodeProto, around: _Raiser) -> None:
    old = attribute(node, "mode", b"bilinear")
    _set(node, "mode", {b"bilinear": "linear", b"bicubic": "cubic"}.get(old, old))


# ── others whose meaning changed ────────────────────────────────────────────────────────────────────────


def _along_all_behind(node: onnx.NodeProto, around: _Raiser) -> list[onnx.NodeProto]:
    """Before opset 13 Softmax and its kin run over their axis and all behind it, taken as one."""
    axis = attribute(node, "axis", 1)
    dims = around.type_of(node.input[0]).shape.dim
    behind = dims[axis % len(dims) + 1 :] if dims else None
    if behind is not None and all(item.HasField("dim_value") and item.dim_value == 1 for item in behind):
        _set(node, "axis", axis)
        return [node]
    shape = _added(node, "Shape", [node.input[0]], around)
    flat = _added(node, "Flatten", [node.input[0]], around, axis=axis)
    result = node.output[0]
    node.input[0], node.output[0] = flat.output[0], around.name(f"{result}:flat")
    _set(node, "axis", -1)
    back = _added(node, "Reshape", [node.output[0], shape.output[0]], around)
    back.output[0] = result
    return [shape, flat, node, back]


def _scatter(node: onnx.NodeProto, around: _Raiser) -> None:
    node.op_type = "ScatterElements"


def _refuse(why: str) -> Change:
    """No form of a newer version says the same."""

    def change(node: onnx.NodeProto, around: _Raiser) -> None:
        raise NoNewerFormError(why)

    return change


CHANGES: dict[tuple[str, int], Change] = {
    ("BatchNormalization", 9): _per_channel_norm,
    ("BatchNormalization", 14): _untrained_norm,
    ("Clip", 11): _into_inputs("min", "max", dtype=None),
    ("DFT", 20): _dft,
    ("Dropout", 10): _dropout,
    ("Dropout", 12): _dropout,
    ("GridSample", 20): _rename_modes,
    ("GroupNormalization", 21): _refuse("has scales for groups of channels, which only opsets 18 to 20 have"),
    ("Hardmax", 13): _along_all_behind,
    ("LogSoftmax", 13): _along_all_behind,
    ("Pad", 11): _pad,
    ("ReduceSum", 13): _into_inputs("axes"),
    ("Resize", 11): _resize,
    ("Resize", 13): _resize_by_sizes,
    ("RoiAlign", 16): lambda node, _: _set(node, "coordinate_transformation_mode", "output_half_pixel"),
    ("Scan", 9): _refuse("scans each sample of a batch, which only opset 8 can"),
    ("Scatter", 11): _scatter,
    ("Slice", 10): _into_inputs("starts", "ends", "axes"),
    ("Softmax", 13): _along_all_behind,
    ("Split", 13): _into_inputs("split"),
    ("Split", 18): _split_evenly,
    ("Squeeze", 13): _into_inputs("axes"),
    ("TopK", 10): lambda node, around: _append(node, [_take(node, "k")], np.int64, "k", around),
    ("Unsqueeze", 13): _into_inputs("axes"),
    ("Upsample", 9): _into_inputs("scales", dtype=np.float32),
    ("Upsample", 10): _upsample,
    **{(kind, 18): _into_inputs("axes") for kind in REDUCTIONS if kind != "ReduceSum"},
}
"""By operator and the version that changed it."""


# A model raised to a newer opset: every node in the form of that opset, everything else as it was.
#
# ONNX's own version converter is not used: it turns an asymmetric Resize into another, loses names and knows
# no subgraphs.


_IR_VERSIONS = ((21, 10), (19, 9), (15, 8), (0, 7))


def raise_opset(model: onnx.ModelProto, to: int) -> None:
    """Write the model's nodes as opset `to`, 13 or newer, wants them, in place; one that is as new stays.

    Nodes keep their names, metadata and order; new ones are named after the node that they belong to.
    """
    now = opset_of(model)
    if now >= to:
        return
    if model.functions:
        raise UnsupportedOpError(
            f"opset {now} cannot be raised to {to}: the model has functions",
            "inline them, with trtopt rewrite MODEL -o INLINED.onnx",
        )
    name_apart(model.graph)
    raiser = _Raiser(model, now, to)
    for part in reversed(list(graphs_of(model.graph))):  # inner graphs first: nodes around them are copied
        nodes = [made for node in part.node for made in raiser.raised(node, now)]
        refill(part.node, nodes)
        part.initializer.extend(raiser.made)
        raiser.made.clear()
    for entry in model.opset_import:
        if entry.domain in OWN_DOMAINS:
            entry.version = to
    least = next(ir for opset, ir in _IR_VERSIONS if to >= opset)
    model.ir_version = max(model.ir_version, least)


@cache
def _history() -> dict[str, list[int]]:
    """The opsets in which each of ONNX's own operators was new or changed, in order."""
    found = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in OWN_DOMAINS:
            found[schema.name].add(schema.since_version)
    return {name: sorted(versions) for name, versions in found.items()}


class _Raiser:
    """What a change may read of the model around a node, what it may add to it, and all changes of a node."""

    def __init__(self, model: onnx.ModelProto, now: int, to: int) -> None:
        self._now, self._to = now, to
        parts = list(graphs_of(model.graph))
        nodes = [node for part in parts for node in part.node]
        is_changed = any((node.op_type, step) in CHANGES for node in nodes for step in self._steps(node, now))
        self._types = tensor_types(inferred(model)) if is_changed else {}
        self._constants = {item.name: item for part in parts for item in part.initializer}
        for node in nodes:
            if node.op_type == "Constant" and node.domain in OWN_DOMAINS:
                values = [item.t for item in node.attribute if item.name == "value"]
                self._constants |= dict(zip(node.output, values, strict=False))
        self._read = {item.name for part in parts for item in part.output}.union(*map(reads_of, nodes))
        self._taken = self._read | names_in(model.graph) | {node.name for node in nodes}
        self.made: list[onnx.TensorProto] = []
        """New constants of the graph that is being raised."""

    def type_of(self, tensor: str) -> onnx.TypeProto.Tensor:
        """Its type and shape as far as they are known; nothing in it where they are not."""
        return self._types.get(tensor) or onnx.TypeProto.Tensor()

    def value_of(self, tensor: str) -> NDArray[Any] | None:
        """The values of a small constant, a new one too; None for any other tensor."""
        found = self._constants.get(tensor)
        return None if found is None or is_external(found) else onnx.numpy_helper.to_array(found)

    def is_read(self, tensor: str) -> bool:
        """Whether a node reads the tensor, or it is an output."""
        return bool(tensor) and tensor in self._read

    def constant(self, values: NDArray[Any], like: str) -> str:
        """The name of a new constant."""
        name = self.name(like)
        self._constants[name] = onnx.numpy_helper.from_array(np.asarray(values), name)
        self.made.append(self._constants[name])
        return name

    def name(self, like: str) -> str:
        """A name that nothing in the model has."""
        return take_name(like, self._taken)

    def raised(self, node: onnx.NodeProto, now: int) -> list[onnx.NodeProto]:
        """The nodes with the meaning at the new opset that `node` has at opset `now`."""
        steps = self._steps(node, now)
        if not steps:
            return [node]
        step = steps[0]
        if step == _history()[node.op_type][0]:
            raise self._refused(node, now, f"is not of opset {now}; at {step} ONNX has another of that name")
        change = CHANGES.get((node.op_type, step))
        if change is None and OLDEST < step <= NEWEST:
            return self.raised(node, step)
        if change is None:
            raise self._refused(node, now, f"changed at opset {step} in a way that trtopt does not know")
        op = node.op_type
        try:
            made = change(node, self) or [node]
        except NoNewerFormError as error:
            node.op_type = op
            raise self._refused(node, now, str(error)) from None
        return [done for item in made for done in self.raised(item, step)]

    def _steps(self, node: onnx.NodeProto, now: int) -> list[int]:
        own = node.domain in OWN_DOMAINS
        return [step for step in _history().get(node.op_type, ()) if own and now < step <= self._to]

    def _refused(self, node: onnx.NodeProto, now: int, why: str) -> UnsupportedOpError:
        return UnsupportedOpError(
            f"opset {now} cannot be raised to {self._to}: node {node.name!r} ({node.op_type}) {why}",
            f"export the model again at opset {self._to}",
        )
