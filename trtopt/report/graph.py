"""Graphs: parts of one, and how two differ."""

from __future__ import annotations

from trtopt.records import Extraction, TensorSpec
from trtopt.report.view import Lines, View, view_of


@view_of.register
def extraction_view(part: Extraction) -> View:
    """How large it is, and what it takes and gives."""
    lines = [
        f"{part.out}: {part.nodes} of {part.nodes_before} nodes",
        *(f"  input {_tensor_line(one)}" for one in part.inputs),
        *(f"  output {_tensor_line(one)}" for one in part.outputs),
    ]
    return View("", [Lines(lines, is_copied=True)])


def _tensor_line(one: TensorSpec) -> str:
    return f"{one.name} {one.dtype}[{', '.join(map(str, one.shape))}]"
