"""Two engines of one model, layer by layer: what split, merged, changed, and what that cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from trtopt.inspect.kernels.names import common_names, in_any_block, kernel_of_any_number
from trtopt.onnxio.graph_walk import DisjointNames
from trtopt.records import (
    Cause,
    Change,
    EngineDifference,
    EngineProfile,
    KernelChange,
    KernelReport,
    KernelRow,
    LayerChange,
    ProfiledLayer,
)

Side = tuple[ProfiledLayer, ...]
_Item = TypeVar("_Item")


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
        causes=causes(a.kernels, b.kernels) if a.kernels and b.kernels else (),
    )


def matched(a: Sequence[ProfiledLayer], b: Sequence[ProfiledLayer]) -> list[tuple[Side, Side]]:
    """Layers of both that cover common nodes, in connected groups."""
    return _connected(a, b, _keys)


def _connected(
    a: Sequence[_Item], b: Sequence[_Item], keys: Callable[[_Item], list[str]]
) -> list[tuple[tuple[_Item, ...], tuple[_Item, ...]]]:
    """What of both hangs together: two are connected where they share a key."""
    groups = DisjointNames(key for one in (*a, *b) for key in keys(one))
    for one in (*a, *b):
        groups.join(*keys(one))
    sides: dict[str, tuple[list[_Item], list[_Item]]] = {}
    for side, items in enumerate((a, b)):
        for one in items:
            sides.setdefault(groups.root(keys(one)[0]), ([], []))[side].append(one)
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


# Which kernels of one engine were replaced by which of another.


def kernel_changes(a: KernelReport, b: KernelReport) -> tuple[KernelChange, ...]:
    """Launches that serve common nodes are held against one another; those of no node by their names.

    The costliest changes first, the same change in several blocks as one; what is the same by name and number
    in both is left out.
    """
    changes = [_kernel_change(ours, theirs) for ours, theirs in _connected(a.rows, b.rows, _keys_of_row)]
    changed = _over_blocks([one for one in changes if one.a != one.b])
    return tuple(sorted(changed, key=lambda one: (-abs(one.cost_ms), one.a, one.b)))


def _over_blocks(changes: Sequence[KernelChange]) -> list[KernelChange]:
    members: dict[tuple[tuple[str, ...], ...], list[KernelChange]] = {}
    for one in changes:
        members.setdefault((in_any_block(one.nodes), one.a, one.b), []).append(one)
    return [
        KernelChange(
            nodes=common_names([one.nodes for one in own]),
            a=a,
            b=b,
            a_ms=sum(one.a_ms for one in own),
            b_ms=sum(one.b_ms for one in own),
            blocks=len(own),
        )
        for (_, a, b), own in members.items()
    ]


def _keys_of_row(row: KernelRow) -> list[str]:
    """Its nodes, else its name; a reformat has the nodes of all that it feeds, and would tie these."""
    nodes = () if row.family == "reformat" else row.nodes
    return [f"node {name}" for name in nodes] or [f"kernel {kernel_of_any_number(row.name)}"]


def _kernel_change(a: Sequence[KernelRow], b: Sequence[KernelRow]) -> KernelChange:
    return KernelChange(
        nodes=tuple(dict.fromkeys(name for row in (*a, *b) for name in row.nodes)),
        a=tuple(kernel_of_any_number(row.name) for row in a),
        b=tuple(kernel_of_any_number(row.name) for row in b),
        a_ms=sum(row.own_ms for row in a),
        b_ms=sum(row.own_ms for row in b),
    )


# What the difference of two latencies consists of.


_CAUSES = {
    "reformat": "reformats, Q and DQ",
    "weight copy": "copies of weights",
    "copy": "copies",
    "memset": "memory sets",
    "split-k": "sums of split products",
    "other": "kernels of unknown kind",
}
_GAPS, _REST = "gaps between kernels", "launching, and what the tracer changes"
_FUSED = "work that one engine fuses into products"
_NODES = 3


def causes(a: KernelReport, b: KernelReport) -> tuple[Cause, ...]:
    """Both latencies by cause, the largest change first; none where a latency is unknown.

    Launches count by their family; products by their types, and by whether those of the same ONNX nodes
    became faster. What no launch and no gap takes is the rest, so that all causes add up to the latencies.
    """
    if a.latency_ms is None or b.latency_ms is None:
        return ()
    rests = (
        a.latency_ms - _own_ms(a.rows) - a.gap_ms,
        b.latency_ms - _own_ms(b.rows) - b.gap_ms,
    )
    by_cause: dict[str, list[list[KernelRow]]] = defaultdict(lambda: [[], []])
    for ours, theirs in _connected(a.rows, b.rows, _keys_of_row):
        for side, row, cause in _by_cause(ours, theirs):
            by_cause[cause][side].append(row)
    found = [
        Cause(
            cause=cause,
            a_ms=_own_ms(ours),
            b_ms=_own_ms(theirs),
            a_launches=len(ours),
            b_launches=len(theirs),
            nodes=_most_changed(ours, theirs),
        )
        for cause, (ours, theirs) in by_cause.items()
    ]
    found += [
        Cause(cause=cause, a_ms=before, b_ms=after, a_launches=0, b_launches=0)
        for cause, (before, after) in ((_GAPS, (a.gap_ms, b.gap_ms)), (_REST, rests))
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.cost_ms)))


def _by_cause(ours: Sequence[KernelRow], theirs: Sequence[KernelRow]) -> Iterator[tuple[int, KernelRow, str]]:
    """The cause that each launch of common nodes counts for, with its side."""
    products = [[row for row in side if row.family == "product"] for side in (ours, theirs)]
    product = _cause_of_products(*products)
    computed = [{name for row in side for name in row.nodes} for side in products]
    for side, rows in enumerate((ours, theirs)):
        for row in rows:
            if row.family == "product":
                yield side, row, product
            elif row.family == "pointwise" and row.nodes and computed[1 - side].issuperset(row.nodes):
                yield side, row, _FUSED
            else:
                yield side, row, _CAUSES.get(row.family, row.family)


def _cause_of_products(ours: Sequence[KernelRow], theirs: Sequence[KernelRow]) -> str:
    before, after = (", ".join(sorted({row.dtype or "unknown" for row in side})) for side in (ours, theirs))
    if not ours or not theirs:
        return f"products, {before or after}: only in {'A' if ours else 'B'}"
    kinds = before if before == after else f"{before} → {after}"
    return f"products, {kinds}: {'slower' if _own_ms(theirs) > _own_ms(ours) else 'faster'}"


def _own_ms(rows: Sequence[KernelRow]) -> float:
    return sum(row.own_ms for row in rows)


def _most_changed(ours: Sequence[KernelRow], theirs: Sequence[KernelRow]) -> tuple[str, ...]:
    """The nodes whose launches change most, those of repeated blocks together."""
    changes: dict[tuple[str, ...], float] = defaultdict(float)
    for sign, rows in ((-1, ours), (1, theirs)):
        for row in rows:
            changes[in_any_block(row.nodes)] += sign * row.own_ms
    costliest = sorted(filter(None, changes), key=lambda nodes: -abs(changes[nodes]))
    return tuple(nodes[0] for nodes in costliest[:_NODES])
