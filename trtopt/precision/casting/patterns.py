"""Which nodes the user's patterns fit, and the refusal of those that fit none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import onnx

from trtopt.errors import UsageError
from trtopt.onnxio.graph_walk import graphs_of

_GIVE_A_NAME = "give a node's name with * and ?, in quotes: --json - lists them"
_NAMED = 5


def is_called(node: onnx.NodeProto, pattern: str) -> bool:
    """Whether the pattern fits the node's name, or is that name to the letter: names may hold *, ? and [."""
    return pattern == node.name or fnmatchcase(node.name, pattern)


def check_patterns(
    model: onnx.ModelProto, keep: Sequence[str], keep_op: Sequence[str], include: Sequence[str]
) -> None:
    """Refuse a pattern that matches no node: it would silently have no effect.

    What is in both `keep` and `keep_op` may be either, as `--exclude` of a bisection is.
    """
    nodes = [node for part in graphs_of(model.graph) for node in part.node]
    for pattern in dict.fromkeys((*keep, *keep_op)):
        named = any(is_called(node, pattern) for node in nodes)
        typed = any(node.op_type == pattern for node in nodes)
        if pattern in keep and pattern in keep_op:
            if not (named or typed):
                raise UsageError(
                    f"{pattern}: no node has such a name or operator",
                    "give a node's name with * and ?, or an operator such as Conv",
                )
        elif pattern in keep and not named:
            raise UsageError(
                f"--exclude {pattern}: no node has such a name",
                f"--keep-op {pattern} keeps the nodes of this operator" if typed else _GIVE_A_NAME,
            )
        elif pattern in keep_op and not typed:
            raise UsageError(
                f"--keep-op {pattern}: no node has such an operator",
                f"--exclude {pattern!r} takes names"
                if named
                else f"give one that the model has: {', '.join(sorted({node.op_type for node in nodes}))}",
            )
    for pattern in include:
        if not any(is_called(node, pattern) for node in nodes):
            typed_so = [node.name for node in nodes if node.op_type == pattern]
            raise UsageError(
                f"--include {pattern}: no node has such a name",
                f"it takes no operators; their nodes' names: {_some(typed_so)}" if typed_so else _GIVE_A_NAME,
            )


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
