"""Which kernels of one engine were replaced by which of another."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.onnxio.disjoint_names import DisjointNames
from trtopt.records import KernelChange, KernelReport, KernelRow


def kernel_changes(a: KernelReport, b: KernelReport) -> tuple[KernelChange, ...]:
    """Launches that serve common nodes are held against one another; those of no node by their names.

    The costliest changes first; what is the same by name and number in both is left out.
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
    changed = [one for one in changes if one.a != one.b]
    return tuple(sorted(changed, key=lambda one: (-abs(one.cost_ms), one.a, one.b)))


def _keys(row: KernelRow) -> list[str]:
    return [f"node {name}" for name in row.nodes] or [f"kernel {row.name}"]


def _change(a: Sequence[KernelRow], b: Sequence[KernelRow]) -> KernelChange:
    return KernelChange(
        nodes=tuple(dict.fromkeys(name for row in (*a, *b) for name in row.nodes)),
        a=tuple(row.name for row in a),
        b=tuple(row.name for row in b),
        a_ms=sum(row.own_ms for row in a),
        b_ms=sum(row.own_ms for row in b),
    )
