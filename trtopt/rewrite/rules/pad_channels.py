"""Conv → activations → Conv with C channels between → the same with C rounded up to a multiple of 8.

The new channels have zero weights and zero bias in the first Conv and zero weights in the second, so whatever
the activations make of 0 adds nothing: Σ over more channels of w·a with w = 0. Tensor Cores work on 8 FP16
channels at a time. Only whole chains are padded, so no Pad or Slice is needed. Off unless asked for: measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trtopt.rewrite.affine import why_not_scale
from trtopt.rewrite.rule import Match, Rule
from trtopt.rewrite.scope import Scope

_MULTIPLE = 8
_FINITE_AT_ZERO = ("Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "Gelu", "Softplus",
                   "MaxPool", "AveragePool")  # fmt: skip


def _find(scope: Scope) -> Iterator[Match]:
    for node in scope.nodes("Conv"):
        channels = int(node.inputs[1].shape[0]) if scope.is_constant(node.inputs[1]) else 0
        if channels % _MULTIPLE:
            yield Match(node, {"channels": channels})


def _end(scope: Scope, node: Any) -> Any | None:
    """The Conv at the other end of the chain that begins at `node`."""
    user = scope.only_use(node.outputs[0], "Conv", *_FINITE_AT_ZERO)
    while user is not None and user.op != "Conv":
        if len(user.outputs) > 1:
            return None
        user = scope.only_use(user.outputs[0], "Conv", *_FINITE_AT_ZERO)
    return user


def _check(scope: Scope, match: Match) -> str | None:
    end = _end(scope, match.node)
    if end is None or scope.producer(end.inputs[0]) is None:
        return "its channels reach something else than one Conv through activations"
    if match.node.attrs.get("group", 1) != 1 or end.attrs.get("group", 1) != 1:
        return "a grouped convolution ties its channels"
    if match.parts["channels"] < _MULTIPLE:
        return "with fewer than 8 channels, padding costs more than it brings"
    return why_not_scale(scope, match.node) or why_not_scale(scope, end)


def _apply(scope: Scope, match: Match) -> None:
    node, end = match.node, _end(scope, match.node)
    more = -match.parts["channels"] % _MULTIPLE
    for user, place, axis in ((node, 1, 0), (node, 2, 0), (end, 1, 1)):
        if user is None or len(user.inputs) <= place or user.inputs[place].is_empty():
            continue
        value = np.asarray(scope.value(user.inputs[place]))
        widths = [(0, more if index == axis else 0) for index in range(value.ndim)]
        user.inputs[place] = scope.constant(np.pad(value, widths), user.inputs[place].name)


RULE = Rule("pad-channels", "N", "Tensor Core kernels", _find, _check, _apply, default=False)
