"""Names in a report: they come from models and engines and may contain any character."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.records import ProfiledLayer

_MANY_NODES = 3


def nodes_text(layer: ProfiledLayer) -> str:
    """The nodes except Q and DQ, or the first and last of many; the layer's name where no node is known.

    A reformat is labelled as one: it has the nodes of the layer that it feeds.
    """
    nodes_label = names_text(layer.working_nodes)
    if not nodes_label:
        return layer.name
    return f"reformat at {nodes_label}" if layer.is_reformat else nodes_label


def names_text(nodes: Sequence[str]) -> str:
    """Nodes of one layer, or the first and last of many; empty for none."""
    many = len(nodes) > _MANY_NODES
    return f"{nodes[0]} … {nodes[-1]} ({len(nodes)} nodes)" if many else " + ".join(nodes)


def kind_text(layer: ProfiledLayer) -> str:
    """The backend's name of the layer kind; every reformat is called `reformat`."""
    return "reformat" if layer.is_reformat else layer.kind or "–"


def type_text(layer: ProfiledLayer) -> str:
    """The type that ran; the requested type in brackets where that is unknown."""
    return layer.dtype or (f"({layer.requested_dtype})" if layer.requested_dtype else "–")
