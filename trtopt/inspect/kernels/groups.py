"""Launches in groups, each with its time: by name, by type, by what they do, by the nodes that they serve."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import takewhile

from trtopt.inspect.kernels.blocks import common_names, in_any_block, kernel_of_any_number
from trtopt.records import Confidence, KernelGroup, KernelRow

UNKNOWN = "unknown"
_ORDER: tuple[Confidence, ...] = ("unknown", "likely", "certain")


def least(confidences: Iterable[Confidence]) -> Confidence:
    """The least certain of them."""
    return min(confidences, key=_ORDER.index)


def by_name(rows: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """By the kernel; generated ones that differ in their number alone together."""
    return _grouped(rows, lambda row: kernel_of_any_number(row.name))


def by_dtype(rows: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """By the type in the kernel's name."""
    return _grouped(rows, lambda row: row.dtype or UNKNOWN)


def by_family(rows: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """By what the kernel's name says that it does."""
    return _grouped(rows, lambda row: row.family)


def by_node(rows: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """By the ONNX nodes that the launch serves."""
    return _grouped(rows, lambda row: _text(row.nodes))


def by_block(rows: Sequence[KernelRow]) -> tuple[KernelGroup, ...]:
    """By the ONNX nodes, one group for the same nodes of all blocks that one kernel computes."""
    return _grouped(
        rows,
        lambda row: (in_any_block(row.nodes), kernel_of_any_number(row.name)) if row.nodes else UNKNOWN,
        lambda own: _short_text(common_names([row.nodes for row in own])),
    )


def _text(nodes: Sequence[str]) -> str:
    if not nodes:
        return UNKNOWN
    return " + ".join(nodes) if len(nodes) < 4 else f"{nodes[0]} … {nodes[-1]} ({len(nodes)} nodes)"


def _short_text(nodes: Sequence[str]) -> str:
    """Only the first node with its whole path, the others from where theirs part."""
    return _text([*nodes[:1], *(_apart_from(nodes[0], name) for name in nodes[1:])])


def _apart_from(first: str, name: str) -> str:
    steps = name.split("/")
    shared = list(
        takewhile(lambda pair: pair[0] == pair[1], zip(first.split("/")[:-1], steps[:-1], strict=False))
    )
    return "/".join(steps[len(shared) :])


def _grouped(
    rows: Sequence[KernelRow],
    key: Callable[[KernelRow], Hashable],
    label: Callable[[Sequence[KernelRow]], str] | None = None,
) -> tuple[KernelGroup, ...]:
    """Groups with their time, the longest first; they add up to all rows. Labels are keys if not given."""
    total = sum(row.own_ms for row in rows)
    members: dict[Hashable, list[KernelRow]] = {}
    for row in rows:
        members.setdefault(key(row), []).append(row)
    groups = [
        KernelGroup(
            key=str(name) if label is None else label(own),
            launches=len(own),
            ms=sum(row.own_ms for row in own),
            share=sum(row.own_ms for row in own) / total if total else 0.0,
            confidence=least(row.confidence for row in own),
            peak_share=_peak_share(own),
        )
        for name, own in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-group.ms, group.key)))


def _peak_share(rows: Sequence[KernelRow]) -> float | None:
    """Of all together, where each has one."""
    shares = [row.peak_share for row in rows if row.peak_share is not None]
    total = sum(row.ms for row in rows)
    if len(shares) < len(rows) or not total:
        return None
    return sum(share * row.ms for share, row in zip(shares, rows, strict=True)) / total
