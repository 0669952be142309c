"""Cast(Norm(Cast(x, FP32), γ, β), T) → Norm(x, γ, β), where T is FP16 or BF16 and holds γ and β.

Norm is LayerNormalization or RMSNormalization. With `stash_type` 1, the default, it computes moments and
quotient in FP32 by itself, from whatever type. What differs is that the quotient is rounded to T before γ and
β come, not after. Both must have values that T holds, as weights of T that were widened have; Gemma's 1 + γ
has not, and keeps its casts. RMSNormalization of T with γ in FP32, which PyTorch's exporter writes and ONNX
Runtime refuses, has no Cast in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Array, Scope

_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Cast"):
        norm = scope.producer(node.inputs[0], "LayerNormalization", "RMSNormalization")
        if norm is None or node.attrs["to"] not in _HALF:
            continue
        first = scope.producer(norm.inputs[0], "Cast")
        widens = first is not None and first.attrs["to"] == onnx.TensorProto.FLOAT
        source = first.inputs[0] if first is not None and widens else norm.inputs[0]
        if scope.element(source) == node.attrs["to"]:
            constants = [_narrowed(scope, item, node.attrs["to"]) for item in norm.inputs[1:]]
            yield Match(node, {"norm": norm, "source": source, "constants": constants})


def _narrowed(scope: Scope, constant: Any, to: int) -> Array | None:
    value = scope.value(constant)
    if value is None:
        return None
    with np.errstate(over="ignore"):
        narrow = value.astype(onnx.helper.tensor_dtype_to_np_dtype(to))
    return narrow if np.array_equal(narrow.astype(value.dtype), value) else None


def _check(scope: Scope, match: Match) -> str | None:
    norm = match.parts["norm"]
    if norm.attrs.get("stash_type", 1) != onnx.TensorProto.FLOAT:
        return "the moments are not in FP32"
    if len(norm.outputs) > 1 or scope.only_use(norm.outputs[0]) is None:
        return "the moments or the result in FP32 are used elsewhere"
    if any(values is None for values in match.parts["constants"]):
        return "scale or shift are computed, or have values that the narrow type does not hold"
    return None


def _apply(scope: Scope, match: Match) -> None:
    norm, values = match.parts["norm"], match.parts["constants"]
    constants = [scope.constant(item, old.name) for item, old in zip(values, norm.inputs[1:], strict=True)]
    scope.replace(match.node, norm.op, [match.parts["source"], *constants], dict(norm.attrs))


RULE = Rule(
    "norm-casts",
    "N",
    "no FP32 in front of and behind INormalization",
    _find,
    _check,
    _apply,
    stage=Stage.NORMALISATION,
    after=("rms-norm",),
    evidence=(layers("does it itself"),),
)
