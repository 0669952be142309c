"""How large values get where they enter and leave the subgraphs of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from trtopt.onnxio.graph_walk import graphs_of, subgraphs_of

_FIRST_CARRIED = {"Loop": (2, 1), "Scan": (0, 0)}
"""Which input and output of the body is the first that the node's own inputs and outputs stand for."""


def with_borders(graph: onnx.GraphProto, ranges: Mapping[str, float]) -> dict[str, float]:
    """The largest |x| by tensor, completed by what is known of subgraphs' inputs and outputs from outside.

    What runs inside is not measured, but a node's results are, and with them what its subgraphs make: of a
    Loop the last of each carried value, all of what it collects. Intermediate values stay unknown.
    """
    found = dict(ranges)
    for part in graphs_of(graph):
        for node in part.node:
            for inner in subgraphs_of(node):
                skipped, kept = _FIRST_CARRIED.get(node.op_type, (0, 0))
                results = [item.name for item in inner.output][kept:]
                _raise(found, results, node.output)
                if node.op_type in _FIRST_CARRIED:
                    entries = [item.name for item in inner.input][skipped:]
                    _raise(found, entries, node.input[skipped:])
                    _raise(found, entries, node.output[: _carried(node, inner)])
    return found


def _carried(node: onnx.NodeProto, body: onnx.GraphProto) -> int:
    """How many values go round."""
    if node.op_type == "Loop":
        return len(body.input) - 2
    scanned = next((item.i for item in node.attribute if item.name == "num_scan_inputs"), 0)
    return len(body.input) - scanned


def _raise(ranges: dict[str, float], inner: Sequence[str], outer: Sequence[str]) -> None:
    for name, other in zip(inner, outer, strict=False):
        if other in ranges:
            ranges[name] = max(ranges.get(name, 0.0), ranges[other])
