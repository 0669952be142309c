"""Log(Softmax(x)) → LogSoftmax(x).

The same function, without the logarithm of a value that may have been rounded to 0: where the parts give
−∞, the whole gives the finite value. Enables TensorRT's SoftMax + Log fusion.
"""

from __future__ import annotations

from trtopt.rewrite.evidence import layers
from trtopt.rewrite.match import behind
from trtopt.rewrite.rule import Match, Rule, Stage
from trtopt.rewrite.scope import Scope


def _check(scope: Scope, match: Match) -> str | None:
    if scope.only_use(match.node.inputs[0]) is None:
        return "the probabilities are used elsewhere"
    return None


def _apply(scope: Scope, match: Match) -> None:
    first = match.parts["first"]
    scope.replace(match.node, "LogSoftmax", [first.inputs[0]], dict(first.attrs))


RULE = Rule(
    "log-softmax",
    "N",
    "SoftMax+Log",
    behind(("Log",), "Softmax"),
    _check,
    _apply,
    stage=Stage.ACTIVATION,
    after=("softmax",),
    evidence=(layers("does it itself"),),
)
