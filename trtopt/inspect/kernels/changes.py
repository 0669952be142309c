"""Which kernels of one engine were replaced by which of another."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.inspect.kernels.blocks import common_names, in_any_block, kernel_of_any_number
from trtopt.onnxio.graph_walk import DisjointNames
from trtopt.records import KernelChange, KernelReport, KernelRow


def kernel_changes(a: KernelReport, b: KernelReport) -> tuple[KernelChange, ...]:
    """Launches that serve common nodes are held against one another; those of no node by their names.

    The costliest changes first, the same change in several blocks as one; what is the same by name and number
    in both is left out.
    """
    keys = [_keys(row) for row in (*a.rows, *b.rows)]
    groups = DisjointNames(key for own in keys for key in own)
    for own in keys:
        groups.join(*own)
    sides: dict[str, tuple[list[KernelRow], list[KernelRow]]] = {}
    for side, rows in enumerate((a.rows, b.rows)):
        for row in rows:
            sides.setdefault(groups.root(_keys(row)[0]), ([], []))[side].append(row)
    changes = [_change(ours, theirs) for ours, theirs in sides.values()]
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


def _keys(row: KernelRow) -> list[str]:
    """Its nodes, else its name; a reformat has the nodes of all that it feeds, and would tie these."""
    nodes = () if row.family == "reformat" else row.nodes
    return [f"node {name}" for name in nodes] or [f"kernel {kernel_of_any_number(row.name)}"]


def _change(a: Sequence[KernelRow], b: Sequence[KernelRow]) -> KernelChange:
    return KernelChange(
        nodes=tuple(dict.fromkeys(name for row in (*a, *b) for name in row.nodes)),
        a=tuple(kernel_of_any_number(row.name) for row in a),
        b=tuple(kernel_of_any_number(row.name) for row in b),
        a_ms=sum(row.own_ms for row in a),
        b_ms=sum(row.own_ms for row in b),
    )
