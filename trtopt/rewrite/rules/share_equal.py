"""Equal initializers are merged, and so are identical nodes with identical inputs.

Two nodes are the same if operator, attributes and inputs are, and nothing in them is random, has state or a
subgraph. Initializers are compared by type, shape and bytes. Cleaning only: TensorRT merges most itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import STANDARD, Scope

_NEVER = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
          "Bernoulli", "Dropout", "DequantizeLinear", "QuantizeLinear"}  # fmt: skip


def _content(scope: Scope, tensor: Any) -> Any:
    """What identifies a constant; its own identity if its values cannot be read or are a large weight."""
    value = scope.value(tensor) if scope.is_small(tensor) else None
    if value is None:
        return id(tensor)
    return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())


def _signature(node: Any) -> Any:
    plain = (int, float, str, list, tuple)
    foreign = node.domain not in STANDARD  # who knows what it does
    if foreign or node.op in _NEVER or not all(isinstance(item, plain) for item in node.attrs.values()):
        return None
    attrs = tuple(sorted((key, repr(item)) for key, item in node.attrs.items()))
    return (
        node.op,
        attrs,
        tuple("" if item.is_empty() else id(item) for item in node.inputs),
    )


def _find(scope: Scope) -> Iterator[Match]:
    constants: dict[Any, Any] = {}
    seen: dict[Any, Any] = {}
    for node in scope.nodes():
        for tensor in list(node.inputs):
            if scope.is_small(tensor) and scope.is_read_only_here(tensor):
                first = constants.setdefault(_content(scope, tensor), tensor)
                if first is not tensor and tensor.outputs and not scope.is_fixed(tensor):
                    yield Match(node, {"drop": tensor, "keep": first})
        signature = _signature(node)
        first = node if signature is None else seen.setdefault(signature, node)
        same = [out.is_empty() for out in first.outputs] == [out.is_empty() for out in node.outputs]
        if first is not node and same:
            yield Match(node, {"twin": first})


def _check(scope: Scope, match: Match) -> str | None:
    if "twin" in match.parts and any(scope.is_fixed(out) for out in match.node.outputs):
        return "both results are outputs of the graph, or one is"
    return None


def _apply(scope: Scope, match: Match) -> None:
    if "twin" not in match.parts:
        scope.rewire(match.parts["drop"], match.parts["keep"])
        return
    for own, same in zip(list(match.node.outputs), match.parts["twin"].outputs, strict=True):
        scope.rewire(own, same)
    scope.kill(match.node)


RULE = Rule("share-equal", "B", "", _find, _check, _apply, stage=Stage.SELECTION)
