"""Arithmetic that depends on large weights only → the resulting weight, where the model grows no larger.

Weight normalisation and standardised convolutions leave such nodes behind. TensorRT computes them at every
build, but folding, casting and quantising before the build need the result. Results up to 1 MiB are stored
in any case, larger ones if they take the place of the weights they are made of. ONNX Runtime evaluates the
nodes; what it cannot stays, and so do Q and DQ (see `fold-constants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import onnx_graphsurgeon as gs

from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.rewrite.evidence import builds, quantises
from trtopt.rewrite.match import is_private
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.rules.fold_constants import IR_VERSION, SIZE_CAP, is_stored, may_evaluate, result_bytes
from trtopt.rewrite.scope import Scope


def _find(scope: Scope) -> Iterator[Match]:
    known: dict[int, Any] = {}
    for node in scope.nodes():
        made = [item for item in node.inputs if not (item.is_empty() or scope.is_constant(item))]
        if may_evaluate(scope, node) and all(id(scope.producer(item)) in known for item in made):
            known[id(node)] = node
    for node in known.values():
        if (
            len(node.outputs) == 1
            and is_stored(scope, node.outputs[0])
            and any(id(user) not in known for user in node.outputs[0].outputs)
        ):
            nodes = _cone(scope, node, known.values())
            weights = {id(item): item for each in nodes for item in each.inputs if scope.is_constant(item)}
            large = [item for item in weights.values() if not scope.is_small(item)]
            if large:
                yield Match(node, {"nodes": nodes, "weights": large})


def _cone(scope: Scope, root: Any, among: Iterable[Any]) -> list[Any]:
    """`root` and those of the nodes that it depends on, in order."""
    wanted: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) not in wanted:
            wanted.add(id(node))
            makers = [scope.producer(tensor) for tensor in node.inputs]
            pending += [maker for maker in makers if maker is not None]
    return [node for node in among if id(node) in wanted]


_WIDEST = 8
"""How much larger FP32 is than the narrowest type that weights are stored in."""


def _check(scope: Scope, match: Match, *, may_grow: bool = False) -> str | None:
    node, nodes, weights = match.node, match.parts["nodes"], match.parts["weights"]
    size, cone = result_bytes(scope, node), {id(each) for each in nodes}
    if scope.static_shape(node.outputs[0]) is None:
        return "the size of the result is not known"
    own = is_private(scope, nodes[:-1], node) and all(
        id(user) in cone for weight in weights for user in weight.outputs
    )
    given = sum(weight._values.nbytes for weight in weights)
    if size > SIZE_CAP and not (size <= _WIDEST * given if may_grow else own and size <= given):
        return (
            "the result would be stored in addition to the weight, which is used elsewhere too or is smaller"
        )
    graph = gs.Graph(nodes, outputs=list(node.outputs), opset=scope.opset, ir_version=IR_VERSION)
    made = ModelFile(gs.export_onnx(graph, do_type_check=False), scope.context.folder, external=False)
    try:
        match.parts["value"] = Unoptimised(*runnable(made)).run({})[node.outputs[0].name]
    except ModelError as error:
        return error.problem
    return None


def _apply(scope: Scope, match: Match) -> None:
    node = match.node
    scope.bypass(node, scope.constant(match.parts["value"], node.outputs[0].name))


RULE = Rule(
    "fold-weights",
    "B",
    "weights where TensorRT and INT8 want them",
    _find,
    _check,
    _apply,
    stage=Stage.CLEANING,
    after=("move-constant",),
    evidence=(
        builds("no convolution with computed weights without it"),
        quantises("convolutions and products whose weights are computed"),
    ),
)

GROWING = replace(RULE, check=partial(_check, may_grow=True))
"""The rule where the model may grow, up to weights as wide as FP32."""
