"""A model raised to the opset that its Q/DQ need."""

from __future__ import annotations

import onnx
import onnx.version_converter

from trtopt.errors import ModelError
from trtopt.onnxgraph import OWN_DOMAINS, opset_of, parts_of
from trtopt.precision.emission.form import Form

_IR_VERSIONS = ((21, 10), (19, 9), (15, 8), (0, 7))


def fit_opset(model: onnx.ModelProto, form: Form) -> onnx.ModelProto:
    """The model at an opset that has the form's operators and that the target reads.

    Where no operator of the model changed in between, only the number is raised, in place.

    Raises:
        ModelError: the model's opset is newer than the target reads, or the converter fails.
    """
    now = opset_of(model)
    if now > form.most:
        raise ModelError(
            f"the model's opset {now} is newer than the target reads (up to {form.most})",
            f"export with --opset {form.most} or lower",
        )
    if now >= form.opset:
        return model
    if any(_changed(node, now, form.opset) for part in parts_of(model) for node in part.node):
        try:
            model = onnx.version_converter.convert_version(model, form.opset)
        except Exception as error:  # noqa: BLE001  (the converter throws RuntimeError and C++ classes)
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"the model cannot be raised from opset {now} to {form.opset}: {first}",
                f"export with --opset {form.opset}",
            ) from None
    for entry in model.opset_import:
        if entry.domain in OWN_DOMAINS:
            entry.version = form.opset
    least = next(ir for opset, ir in _IR_VERSIONS if form.opset >= opset)
    model.ir_version = max(model.ir_version, least)
    return model


def _changed(node: onnx.NodeProto, old: int, new: int) -> bool:
    """Whether the operator means something else, or takes other inputs, at the new opset.

    An operator gets a new version also when it merely learns new types; these that only widened are known.
    """
    if node.domain not in OWN_DOMAINS or node.op_type in _ONLY_WIDENED:
        return False
    if not onnx.defs.has(node.op_type, old, "") or not onnx.defs.has(node.op_type, new, ""):
        return True
    before, after = (onnx.defs.get_schema(node.op_type, opset, "") for opset in (old, new))
    return bool(before.since_version != after.since_version)


_ONLY_WIDENED = {
    "Add", "AveragePool", "Cast", "CastLike", "Constant", "ConstantOfShape", "Conv", "ConvTranspose",
    "DequantizeLinear", "Equal", "Flatten", "Identity", "If", "IsInf", "IsNaN", "Loop", "Mul", "Pad",
    "PRelu", "QuantizeLinear", "Relu", "Reshape", "Scan", "Shape", "Size", "Squeeze", "Sub", "Transpose",
    "Unsqueeze", "BatchNormalization", "Div", "Pow", "LeakyRelu", "Where",
}  # fmt: skip
"""Operators whose versions from 13 to 24 differ in types, and in attributes that default to the old way."""
