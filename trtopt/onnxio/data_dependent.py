"""Which nodes make tensors whose size depends on the values of the inputs, and which outputs have it.

Only the main graph is read: which branch runs and how often a loop does decides a size, what happens inside
does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_EVERY = tuple(range(8))
SIZING_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "NonZero": (0,),
    "NonMaxSuppression": _EVERY,
    "Unique": (0,),
    "Compress": (1,),
    "TopK": (1,),
    "Range": _EVERY,
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Reshape": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1,),
    "Resize": (2, 3),
    "OneHot": (1,),
    "If": (0,),
    "Loop": (0, 1),
}
"""Operators whose output has a size that the values of these operands decide."""


def data_dependent_outputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Outputs whose size may depend on the inputs' values, each with the first node that makes it so.

    Later nodes may make the size a fixed one again: an output of known shape is none of these.
    """
    causes: dict[str, str] = {}
    for node, decides, sized in _walk(graph):
        if not sized:
            continue
        own = node.name or node.op_type
        cause = own if decides else next((causes[name] for name in node.input if name in causes), own)
        causes.update(dict.fromkeys(filter(None, node.output), cause))
    return {value.name: causes[value.name] for value in graph.output if value.name in causes}


def _walk(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, bool, bool]]:
    """Each node, whether values decide its output's size, and whether that size depends on values at all."""
    constants = {item.name for item in graph.initializer}
    by_value = {value.name for value in graph.input} - constants
    by_size: set[str] = set()
    for node in graph.node:
        operands = SIZING_OPERANDS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        decides = any(node.input[place] in by_value for place in operands if place < len(node.input))
        is_measure = node.op_type in ("Shape", "Size")  # its value is a size, and its size is fixed
        inherits = not is_measure and any(name in by_size for name in node.input)
        if decides or inherits:
            by_size.update(filter(None, node.output))
        sources = by_size if is_measure else by_value | by_size
        if any(name in sources for name in node.input):
            by_value.update(filter(None, node.output))
        yield node, decides, decides or inherits
