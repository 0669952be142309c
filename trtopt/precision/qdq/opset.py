"""A model raised to the opset that its Q/DQ need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import opset_of
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.precision.qdq.qdq_format import QdqFormat

if TYPE_CHECKING:
    import onnx


def fit_opset(model: onnx.ModelProto, form: QdqFormat) -> None:
    """Raise the model, in place, to an opset that has the form's operators and that the target reads.

    Raises:
        ModelError: the model's opset is newer than the target reads, or cannot be raised.
    """
    now = opset_of(model)
    if now > form.most:
        raise ModelError(
            f"the model's opset {now} is newer than the target reads (up to {form.most})",
            f"export the model again at opset {form.most} or lower",
        )
    raise_opset(model, form.opset)
