"""What the rules need to know of each TensorRT: which normalisations, activations and types it has.

Sources: the TensorRT 8.6, 10 and 11 release notes and operator support matrices of the ONNX parser.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.errors import UsageError
from trtopt.targets import OPSETS


@dataclass(frozen=True)
class Target:
    """One TensorRT that a graph is rewritten for.

    `opset` is the highest standard opset whose operators its parser reads; `gelu` tells whether it has the
    activation; `int64` whether 64-bit integers stay what they are.
    """

    name: str
    opset: int
    gelu: bool
    int64: bool


TARGETS = {
    target.name: target
    for target in (
        Target("8.6", opset=OPSETS["8.6"].operators, gelu=False, int64=False),
        Target("10", opset=OPSETS["10"].operators, gelu=True, int64=True),
        Target("11", opset=OPSETS["11"].operators, gelu=True, int64=True),
        Target("rtx", opset=OPSETS["rtx"].operators, gelu=True, int64=True),
    )
}

EVERY = tuple(TARGETS)


def target_named(name: str) -> Target:
    """The target called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}", f"choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
