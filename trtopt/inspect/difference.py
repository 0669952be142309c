"""Two engines of one model, layer by layer: what split, merged, changed, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.inspect.kernels.changes import kernel_changes
from trtopt.records import Change, EngineDifference, EngineProfile, LayerChange, ProfiledLayer

Side = tuple[ProfiledLayer, ...]


def difference(a: EngineProfile, b: EngineProfile) -> EngineDifference:
    """Layers that cover common ONNX nodes are held against one another; names may differ at will.

    Layers that cover no node are held against those of the same name. Reformats go with the layers that
    they serve.
    """
    changes = [_change(ours, theirs) for ours, theirs in matched(a.layers, b.layers)]
    return EngineDifference(
        a=f"{a.engine.label} ({a.engine.sha256[:12]})",
        b=f"{b.engine.label} ({b.engine.sha256[:12]})",
        a_ms=a.sum_ms,
        b_ms=b.sum_ms,
        changes=tuple(sorted(changes, key=lambda one: (-abs(one.cost_ms), one.a, one.b))),
        kernels=kernel_changes(a.kernels, b.kernels) if a.kernels and b.kernels else (),
    )


def matched(a: Sequence[ProfiledLayer], b: Sequence[ProfiledLayer]) -> list[tuple[Side, Side]]:
    """Connected groups of layers: two are connected where they share a key."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    sides: dict[str, tuple[list[ProfiledLayer], list[ProfiledLayer]]] = {}
    for layer in (*a, *b):
        first, *others = _keys(layer)
        for other in others:
            parent[root(other)] = root(first)
    for side, layers in enumerate((a, b)):
        for layer in layers:
            sides.setdefault(root(_keys(layer)[0]), ([], []))[side].append(layer)
    return [(tuple(ours), tuple(theirs)) for ours, theirs in sides.values()]


def _keys(layer: ProfiledLayer) -> list[str]:
    """Its nodes; a reformat's first node only, so that it ties nothing together; else its name."""
    if not layer.onnx_nodes:
        return [f"layer {layer.name}"]
    nodes = layer.onnx_nodes[:1] if layer.is_reformat else layer.onnx_nodes
    return [f"node {name}" for name in nodes]


def _change(a: Side, b: Side) -> LayerChange:
    change, detail = _evaluated(a, b)
    covered = (name for layer in (*a, *b) if not layer.is_reformat for name in layer.working_nodes)
    return LayerChange(
        change=change,
        nodes=tuple(dict.fromkeys(covered)),
        detail=detail,
        a=tuple(layer.name for layer in a),
        b=tuple(layer.name for layer in b),
        a_ms=sum(layer.ms or 0.0 for layer in a),
        b_ms=sum(layer.ms or 0.0 for layer in b),
    )


def _evaluated(a: Side, b: Side) -> tuple[Change, str]:
    """What changed, in the order of weight; reformats added or removed are listed separately."""
    if not a or not b:
        return "only in one", "only in A" if a else "only in B"
    ours, theirs = _working(a), _working(b)
    came = (len(b) - len(theirs)) - (len(a) - len(ours))
    reformats = f"; {abs(came)} reformats {'more' if came > 0 else 'fewer'} in B" if came else ""
    if len(ours) == len(theirs) == 1:
        change, detail = _one_to_one(ours[0], theirs[0])
        return change, (detail + reformats).removeprefix("; ")
    counts = f"{len(ours)} layers in A, {len(theirs)} in B"
    if len(ours) == 1:
        return "split", counts + reformats
    if len(theirs) == 1:
        return "merged", counts + reformats
    return "regrouped", counts + reformats


def _working(layers: Side) -> Side:
    return tuple(layer for layer in layers if not layer.is_reformat) or layers


def _one_to_one(a: ProfiledLayer, b: ProfiledLayer) -> tuple[Change, str]:
    if a.dtype != b.dtype:
        return "type", f"{a.dtype or 'unknown'} → {b.dtype or 'unknown'}"
    if a.kind != b.kind:
        return "kind", f"{a.kind or 'unknown'} → {b.kind or 'unknown'}"
    if a.tactic != b.tactic:
        return "tactic", f"{a.tactic} → {b.tactic}"
    return "same", ""
