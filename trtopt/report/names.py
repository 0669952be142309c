"""Names in a report: they come from models and engines and may hold anything."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.records import ProfiledLayer

_MANY_NODES = 3


def nodes_text(layer: ProfiledLayer) -> str:
    """The nodes but Q and DQ, or of many the first and last; the layer's own name where none is known.

    A reformat is told as such: it has the nodes of the layer that it feeds.
    """
    told = names_text(layer.working_nodes)
    if not told:
        return layer.name
    return f"reformat at {told}" if layer.is_reformat else told


def names_text(nodes: Sequence[str]) -> str:
    """Nodes of one layer, or of many the first and last; empty for none."""
    many = len(nodes) > _MANY_NODES
    return f"{nodes[0]} … {nodes[-1]} ({len(nodes)} nodes)" if many else " + ".join(nodes)


def kind_text(layer: ProfiledLayer) -> str:
    """The backend's word for the layer; reformats are called so whatever does them."""
    return "reformat" if layer.is_reformat else layer.kind or "–"


def type_text(layer: ProfiledLayer) -> str:
    """The type that ran; in brackets the one asked for, where it cannot be told."""
    return layer.dtype or (f"({layer.requested_dtype})" if layer.requested_dtype else "–")
