"""A graph at an engine's own shapes, with all computed that is constant there.

TensorRT refuses some models only for what is open in them or left to it to compute: a Squeeze without axes
whose batch might be 1, weights in INT8 that no DequantizeLinear reads, outputs without a type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtopt.data import feeds
from trtopt.errors import ModelError
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.prepare import prepare
from trtopt.onnxio.shape_inference import declare_outputs, fix_inputs
from trtopt.rewrite import equivalence
from trtopt.rewrite.driver import RuleFailed, rewrite
from trtopt.rewrite.rules.cleaning import erase_identity
from trtopt.rewrite.rules.folding import fold_constants, fold_shapes, growing_weights
from trtopt.targets import Target

_FOLDING = (erase_identity, fold_shapes, fold_constants, growing_weights())


def folded_at(
    model: ModelFile, shapes: Mapping[str, Sequence[int | None]], target: Target
) -> ModelFile | None:
    """The model at `shapes`, None among them leaves an axis open; None if nothing changes or can be proved.

    Where a rule was applied it was run, as the model was, on one random input of these shapes.
    """
    try:
        proto, _ = prepare(model.proto)
        fix_inputs(proto.graph, shapes)
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        declare_outputs(proto)
        folded = rewrite(replace(model, proto=proto), _FOLDING, target)
        if not folded.applied and (proto.graph.input, proto.graph.output) == (
            model.proto.graph.input,
            model.proto.graph.output,
        ):
            return None
        given = feeds.seeded(proto)[: bool(folded.applied)]
        checked = equivalence.compare(equivalence.run(model, given), folded.model, given, "B")
    except (ModelError, RuleFailed):
        return None
    return folded.model if all(one.ok for one in checked) else None
