"""Whether a model's own functions can be inlined: ONNX's inliner trusts that they end, and soon."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import onnx

from trtopt.errors import InvalidModelError
from trtopt.onnxio.graph_walk import graphs_of

if TYPE_CHECKING:
    from trtopt.onnxio.graph_walk import Part

_MOST_NODES = 1_000_000
_Key = tuple[str, str, str]


def check_functions(model: onnx.ModelProto) -> None:
    """Check a model's functions: none may call itself, and the graph may not become too large by them.

    Raises:
        InvalidModelError: one does, or it would.
    """
    calls = {_key(item.domain, item.name, item): _called(item) for item in model.functions}
    sizes: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = sum(sizes.get(each, 1) * n for each, n in calls[key].items()) if key in calls else 1
    except CycleError as error:
        _, name, _ = error.args[1][0]
        raise InvalidModelError(f"function {name!r} calls itself", "export the model again") from None
    total = sum(sizes.get(key, 1) * count for key, count in _called(model.graph).items())
    if total > _MOST_NODES:
        raise InvalidModelError(
            f"its functions call one another until the graph has {total} nodes, above {_MOST_NODES}",
            "export the model again, without functions",
        )


def _called(part: Part) -> Counter[_Key]:
    """The operators and functions of a graph's nodes, subgraphs included, and how often each occurs."""
    return Counter(_key(node.domain, node.op_type, node) for graph in graphs_of(part) for node in graph.node)


def _key(domain: str, name: str, item: object) -> _Key:
    return domain, name, getattr(item, "overload", "")  # ONNX before 1.16 has no overloads
