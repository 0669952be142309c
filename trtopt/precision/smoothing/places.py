"""Where outlying channels of an activation can be made smaller and rows of weights larger, exactly.

Behind a normalisation, γ and β take the division; what reads it and has no such weights, as the residual of
BERT's blocks, reads it times s: one multiplication that can fuse with the addition behind it. Behind GELU and
SiLU, whole or by their last multiplication, one more multiplication divides, which can fuse with theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtopt.precision.placement.view import Node, Use, View, attribute, is_op
from trtopt.precision.placement.weighted import Weighted, weighted

_NORMS = ("LayerNormalization", "RMSNormalization")
_POINTWISE = ("Mul", "Gelu", "Swish")
"""Not Relu: as a rule it is computed together with the layer before it."""


@dataclass(frozen=True)
class Place:
    """An activation that layers with weights read; `others` read it too and must not notice.

    `maker` is a normalisation (`is_norm`) or what computes element by element.
    """

    maker: Node
    is_norm: bool
    readers: tuple[Weighted, ...]
    others: tuple[Use, ...]

    @property
    def tensor(self) -> str:
        """The activation."""
        return str(self.maker.output[0])


def find(view: View) -> tuple[list[Place], list[str]]:
    """Where smoothing is exact, and for each other normalisation why it is not."""
    found, declined = [], []
    for node in view.nodes:
        is_norm = is_op(node, *_NORMS)
        if not is_norm and not is_op(node, *_POINTWISE):
            continue
        readers, others = _readers(view, node)
        if is_norm and (why_not := _why_not(view, node, readers, others)):
            declined.append(f"{node.name}: {why_not}")
        elif readers:
            found.append(Place(node, is_norm, tuple(readers), tuple(others)))
    return found, declined


def _readers(view: View, maker: Node) -> tuple[list[Weighted], list[Use]]:
    """The layers whose weights can take the factor, and the other readers of the activation."""
    readers, others = [], []
    for use in view.uses(maker.output[0]):
        item = weighted(view, use.node) if use.index == 0 and is_op(use.node, "MatMul", "Gemm") else None
        if item is not None and _takes_factors(view, item):
            readers.append(item)
        else:
            others.append(use)
    return readers, others


def _takes_factors(view: View, item: Weighted) -> bool:
    """Whether its weight is a constant matrix on the right whose rows are the activation's channels."""
    weight = view.constants.get(item.node.input[1]) if item.weight == 1 else None
    return weight is not None and len(weight.dims) == 2 and not attribute(item.node, "transA")


def _why_not(view: View, norm: Node, readers: list[Weighted], others: list[Use]) -> str | None:
    if norm.output[0] in view.outputs:
        return "its result is an output"
    inside = next((use.node for use in others if use.index < 0), None)
    if inside is not None:
        return f"the subgraph of {inside.name} ({inside.op_type}) reads it too"
    axis = attribute(norm, "axis", -1)
    shape = view.shape(norm.input[1])
    if not readers or (axis not in (-1,) and (view.shape(norm.input[0]) or ())[axis + 1 :] != ()):
        return "no layer with weights reads it, or it normalises several axes"
    if any(name not in view.constants for name in norm.input[1:] if name) or shape is None or len(shape) != 1:
        return "its scale is not one constant a channel"
    return None
