"""The kernels of one engine, joined with its layers and its ONNX graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import takewhile
from math import prod
from statistics import median

import msgspec

from trtopt.inspect.costs import floor_of, node_flops
from trtopt.inspect.graph import Graph, Node
from trtopt.inspect.kernels.attribution import UNKNOWN, Served, assign_by_ranges, assign_layers, attribute
from trtopt.inspect.kernels.names import (
    KernelTraits,
    common_names,
    in_any_block,
    kernel_of_any_number,
    read_name,
)
from trtopt.records import (
    Confidence,
    DevicePeaks,
    KernelGroup,
    KernelLaunch,
    KernelPass,
    KernelReport,
    KernelRow,
    LayerCost,
    ProfiledLayer,
)

_LAUNCH_BOUND = 0.3
_REMAINDER = 0.05
_WORTH_A_NOTE = 0.02
_TOLERANCE = 1.1
"""Clocks above their reference let a kernel exceed the device's peak by so much."""


def report_kernels(
    found: KernelPass,
    layers: Sequence[ProfiledLayer],
    graph: Graph,
    peaks: DevicePeaks | None,
    latency_ms: float | None,
) -> KernelReport:
    """Medians of every launch, its layer and nodes, and the sums; `layers` in the order in which they ran."""
    rows, open_ends = _rows(found, layers, graph, peaks)
    spans, gaps = _per_run(found.launches)
    span, gap = (median(spans), median(gaps)) if spans else (0.0, 0.0)
    remainder = latency_ms - span if latency_ms is not None else None
    return KernelReport(
        runs=found.runs,
        graph=found.graph,
        dropped=found.dropped,
        different_runs=found.different_runs,
        rows=rows,
        by_name=_grouped(rows, lambda row: kernel_of_any_number(row.name)),
        by_family=_grouped(rows, lambda row: row.family),
        by_block=_grouped(  # one group for the same nodes of all blocks that one kernel computes
            rows,
            lambda row: (in_any_block(row.nodes), kernel_of_any_number(row.name)) if row.nodes else _UNKNOWN,
            lambda own: _short_text(common_names([row.nodes for row in own])),
        ),
        sum_ms=sum(row.own_ms for row in rows),
        busy_ms=span - gap,
        gap_ms=gap,
        latency_ms=latency_ms,
        remainder_ms=remainder,
        unknown_ms=sum(row.own_ms for row in rows if row.confidence == "unknown"),
        notes=(*found.notes, *open_ends, *_notes(found, rows, span, gap, latency_ms)),
    )


def _notes(
    found: KernelPass, rows: Sequence[KernelRow], span: float, gap: float, latency_ms: float | None
) -> Iterator[str]:
    if found.dropped:
        yield f"{found.dropped} records did not fit the tracer's buffers: kernels are missing"
    if found.different_runs:
        yield f"{found.different_runs} of {found.runs} runs launched other kernels, and do not count"
    if span and gap > _LAUNCH_BOUND * span:
        yield f"launch-bound: {gap / span:.0%} of the time no kernel runs"
    if latency_ms and abs(latency_ms - span) > _REMAINDER * latency_ms:
        yield (
            f"kernels and gaps take {span:.3f} ms, the latency without the tracer is {latency_ms:.3f} ms: "
            f"they differ by {(latency_ms - span) / latency_ms:+.0%}"
        )
    copied = sum(row.own_ms for row in rows if row.family == "weight copy")
    share = copied / sum(row.own_ms for row in rows) if copied else 0.0
    if share >= _WORTH_A_NOTE:
        yield (
            f"{share:.0%} of the time copies the weights of merged products together in every inference: "
            "`trtopt build --add-rule merge-matmuls` merges them once, which may be faster"
        )


def _per_run(launches: Sequence[KernelLaunch]) -> tuple[list[float], list[float]]:
    """The span and the idle time of each run."""
    runs = range(len(launches[0].ms)) if launches else range(0)
    intervals = [[(one.start_ms[run], one.start_ms[run] + one.ms[run]) for one in launches] for run in runs]
    return [span_of(one) for one in intervals], [sum(gaps_and_overlaps(one)[0]) for one in intervals]


def _rows(
    found: KernelPass, layers: Sequence[ProfiledLayer], graph: Graph, peaks: DevicePeaks | None
) -> tuple[tuple[KernelRow, ...], list[str]]:
    """Medians of every launch over the runs, and notes on what is open of their layers."""
    launches = found.launches
    ms = [median(one.ms) for one in launches]
    starts = [median(one.start_ms) for one in launches]
    intervals = [(start, start + own) for start, own in zip(starts, ms, strict=True)]
    gaps, overlaps = gaps_and_overlaps(intervals)
    own_ms = [end - start - over for (start, end), over in zip(intervals, overlaps, strict=True)]
    homes, open_ends = assign_layers(own_ms, [layer.ms or 0.0 for layer in layers]), list[str]()
    if found.marked_runs:
        homes, open_ends = assign_by_ranges(launches, found.marked_runs, layers, homes)
    traits = [read_name(one.name) if one.kind == "kernel" else KernelTraits(one.kind) for one in launches]
    served = [UNKNOWN] * len(launches)
    for home in {index for index, _ in homes if index >= 0}:
        members = [place for place, (index, _) in enumerate(homes) if index == home]
        threads = [prod(launches[place].grid) * prod(launches[place].block) for place in members]
        own = _served(members, layers[home], traits, ms, threads, graph, peaks)
        for place, one in zip(members, own, strict=True):
            served[place] = one
    rows = tuple(
        KernelRow(
            **one.launch,
            family="weight copy" if served[index].copies_weights else traits[index].family,
            start_ms=starts[index],
            ms=ms[index],
            gap_ms=gaps[index],
            overlap_ms=overlaps[index],
            dtype=traits[index].dtype,
            tile=traits[index].tile,
            tensor_cores=traits[index].tensor_cores,
            layer=layers[homes[index][0]].name if homes[index][0] >= 0 else "",
            layer_confidence=homes[index][1],
            nodes=() if homes[index][1] == "unknown" else tuple(node.name for node in served[index].nodes),
            confidence=least((served[index].confidence, homes[index][1])),
        )
        for index, one in enumerate(launches)
    )
    return tuple(_with_rate(row, rows, graph, peaks) for row in rows), open_ends


def _served(
    members: Sequence[int],
    layer: ProfiledLayer,
    traits: Sequence[KernelTraits],
    ms: Sequence[float],
    threads: Sequence[int],
    graph: Graph,
    peaks: DevicePeaks | None,
) -> list[Served]:
    """What the launches of one layer serve: all of its nodes, unless it hides which."""
    nodes = tuple(graph.by_name[name] for name in layer.onnx_nodes if name in graph.by_name)
    if not nodes:
        return [UNKNOWN] * len(members)
    if not layer.is_opaque:
        working = tuple(node for node in nodes if node.name in layer.working_nodes)
        return [Served(working, "certain")] * len(members)

    def is_possible(index: int, landmark: tuple[Node, ...]) -> bool:
        work = LayerCost(flops=_flops(landmark, graph), bytes_moved=0)
        least_ms = floor_of(work, traits[members[index]].dtype, peaks).floor_ms
        return least_ms is None or ms[members[index]] * _TOLERANCE >= least_ms

    return attribute([traits[one] for one in members], nodes, graph, is_possible, threads)


def _flops(nodes: Iterable[Node], graph: Graph) -> int:
    return sum(node_flops(graph, node) or 0 for node in nodes)


def _with_rate(
    row: KernelRow, rows: Sequence[KernelRow], graph: Graph, peaks: DevicePeaks | None
) -> KernelRow:
    """With its work and rate, where it is the only kernel that computes its nodes' products."""
    is_product = row.family in ("product", "attention") and row.nodes
    if not is_product or sum(one.nodes == row.nodes and one.family == row.family for one in rows) > 1:
        return row
    flops = _flops((graph.by_name[name] for name in row.nodes), graph)
    peak = peaks.flops.get(row.dtype) if peaks is not None else None
    share = flops / (row.ms / 1e3) / peak.value if peak is not None and row.ms else None
    return msgspec.structs.replace(row, flops=flops or None, peak_share=share if flops else None)


# Launches in groups, each with its time: by name, by what they do, by the nodes that they serve.


_UNKNOWN = "unknown"
_ORDER: tuple[Confidence, ...] = ("unknown", "likely", "certain")


def least(confidences: Iterable[Confidence]) -> Confidence:
    """The least certain of them."""
    return min(confidences, key=_ORDER.index)


def _short_text(nodes: Sequence[str]) -> str:
    """Only the first node with its whole path, the others from where theirs part."""
    if not nodes:
        return _UNKNOWN
    texts = [nodes[0], *(_apart_from(nodes[0], name) for name in nodes[1:])]
    return " + ".join(texts) if len(texts) < 4 else f"{texts[0]} … {texts[-1]} ({len(texts)} nodes)"


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


# When the device is busy, and when it waits for the next launch.


Interval = tuple[float, float]
"""Start and end."""


def gaps_and_overlaps(intervals: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """For each interval, in the order of starts, how long nothing ran before it; for how long one still ran.

    Both are 0 for the first.
    """
    gaps: list[float] = []
    overlaps: list[float] = []
    reached = intervals[0][0] if intervals else 0.0
    for start, end in intervals:
        gaps.append(max(0.0, start - reached))
        overlaps.append(min(max(0.0, reached - start), end - start))
        reached = max(reached, end)
    return gaps, overlaps


def span_of(intervals: Sequence[Interval]) -> float:
    """From the first start to the last end."""
    return max(end for _, end in intervals) - min(start for start, _ in intervals) if intervals else 0.0
