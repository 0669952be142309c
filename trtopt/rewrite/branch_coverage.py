"""Which branches of Ifs a check has run: of what no input reaches, equal outputs say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from trtopt.data.feeds import Feed
from trtopt.onnxio.graph_walk import OWN_DOMAINS, name_of, parts_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.printable import counted
from trtopt.rewrite import equivalence

_WATCHED = "trtopt.condition."
_NAMED = 3
_REMEDY = "`trtopt rewrite --data` checks it on samples that reach it"


def notes_on_branches(model: ModelFile, inputs: Sequence[Feed]) -> list[str]:
    """A note on every If of the graph of which `inputs` take one branch alone, and on Ifs inside subgraphs.

    The first few are named. A model without Ifs is not run.

    Raises:
        Unrunnable: ONNX Runtime cannot run the model on `inputs`.
    """
    main, *inner = (
        [node for node in part.node if node.op_type == "If" and node.domain in OWN_DOMAINS]
        for part in parts_of(model.proto)
    )
    notes = []
    if main:
        missed = [
            f"the {'else' if taken else 'then'} branch of If {name_of(node)!r}"
            for node, (taken, *others) in zip(main, _taken(model, main, inputs), strict=True)
            if not others
        ]
        more = f" and of {counted(len(missed) - _NAMED, 'other')}" if len(missed) > _NAMED else ""
        if missed:
            notes.append(f"the check did not run {', '.join(missed[:_NAMED])}{more}: {_REMEDY}")
    if nested := sum(map(len, inner)):
        notes.append(f"which branches the check ran of {counted(nested, 'If')} inside subgraphs is not known")
    return notes


def _taken(model: ModelFile, ifs: Sequence[onnx.NodeProto], inputs: Sequence[Feed]) -> list[set[bool]]:
    """The conditions that each If had: one value or both."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model.proto)
    names = [f"{_WATCHED}{number}" for number in range(len(ifs))]
    for node, name in zip(ifs, names, strict=True):
        watched.graph.node.append(onnx.helper.make_node("Identity", [node.input[0]], [name]))
        watched.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None))
    runs = equivalence.run(replace(model, proto=watched), inputs)
    return [{bool(np.any(run[name])) for run in runs} for name in names]
