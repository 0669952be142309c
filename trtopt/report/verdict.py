"""A break-even verdict as text tables: each precision's time, the selected precision and the reason."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.records import BatchVerdict, Candidate, CandidateTime, PrecisionVerdict, RegionTime
from trtopt.report.tables import plain_table, titled

_TOP_REGIONS = 5
_REGION_WIDTH = 30


def verdict_summary(verdict: PrecisionVerdict) -> RenderableType:
    """Times by batch size and candidate, the choice with its reason, accuracy, and where the time went."""
    parts: list[RenderableType] = [
        Text(f"batch {item.batch}: {item.chosen} is selected: {item.reason}{_accuracy(verdict, item.chosen)}")
        for item in verdict.batches
    ]
    parts.append(_times(verdict))
    parts += [Text(accuracy_line(item)) for item in verdict.candidates if item.differences]
    for item in verdict.batches:
        for name, regions in item.regions.items():
            parts.append(_regions(item, name, regions))
            parts += [Text(line) for line in _left_out(regions)]
    return Group(*parts)


def _accuracy(verdict: PrecisionVerdict, chosen: str) -> str:
    """The SQNR of the selected graph's worst output, and the bounds that it was to meet."""
    found = next(one for one in verdict.candidates if one.name == chosen)
    ratios = [item.sqnr_db for item in found.differences if item.sqnr_db is not None]
    bounds = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in verdict.bounds.items())
    return f"; SQNR {min(ratios):.1f} dB, {bounds or 'no bound'}" if ratios else ""


def _times(verdict: PrecisionVerdict) -> RenderableType:
    title = (
        f"precisions interleaved on {verdict.device}, contract {verdict.contract}, "
        f"threshold {verdict.threshold:.1%}"
    )
    left = ("precision", "verdict", "")
    table = plain_table("batch", "precision", "build s", "p50 ms", "change", "verdict", "", left=left)
    for batch in verdict.batches:
        for item in batch.times:
            selection = "selected" if item.candidate == batch.chosen else ""
            built = "–" if item.build_seconds is None else f"{item.build_seconds:.1f}"
            latency = f"{item.latency_ms:.3f}"
            table.add_row(str(batch.batch), item.candidate, built, latency, *_against(item), selection)
    return titled(title, table)


def _against(item: CandidateTime) -> tuple[str, str]:
    comparison = item.against_baseline
    if comparison is None:
        return "–", "baseline"
    return ("–" if comparison.ratio is None else f"{comparison.ratio - 1:+.1%}"), comparison.verdict


def accuracy_line(candidate: Candidate) -> str:
    """The output furthest from the model's own, and the bounds that it misses."""
    worst = min(candidate.differences, key=lambda item: item.cosine)
    told = [f"cosine {worst.cosine:.5f}"]
    if worst.sqnr_db is not None:
        told.append(f"SQNR {worst.sqnr_db:.1f} dB")
    if worst.top1 is not None:
        told.append(f"top-1 agreement {worst.top1:.1%}")
    in_float = f" ({len(candidate.left)} nodes left in float)" if candidate.left else ""
    broken = "; not accurate enough, not measured" if candidate.violations else ""
    return f"{candidate.name}{in_float}: output {worst.output!r}: {', '.join(told)}{broken}"


def _regions(batch: BatchVerdict, name: str, regions: Sequence[RegionTime]) -> RenderableType:
    """The regions that change most, by the layer pass, whose sums exceed latencies."""
    *covered, outside = regions
    title = (
        f"batch {batch.batch}: where {name} gains and loses, ms of layers by region; changes are sums of "
        "compute, reformats, layers that ran wider than requested, and lost fusions"
    )
    table = plain_table()
    table.add_column("region", max_width=_REGION_WIDTH, no_wrap=True, overflow="ellipsis")
    for column in ("float", "Q/DQ", "compute", "reformat", "wider", "fusion"):
        table.add_column(column, justify="right", no_wrap=True)
    covered.sort(key=lambda item: -abs(item.change_ms))
    for item in (*covered[:_TOP_REGIONS], outside):
        causes = (item.compute_ms, item.reformat_ms, item.float_path_ms, item.lost_fusion_ms)
        table.add_row(
            _named(item),
            f"{item.float_ms:.4f}",
            f"{item.quantised_ms:.4f}",
            *(f"{value:+.4f}" for value in causes),
        )
    return titled(title, table)


def _named(region: RegionTime) -> str:
    if not region.nodes:
        return "everything else"
    first, count = region.nodes[0], len(region.nodes)
    return first if count == 1 else f"{first} and {count - 1} more"


def _left_out(regions: Sequence[RegionTime]) -> list[str]:
    *covered, _ = regions
    lines = []
    if (shown := len(covered)) > _TOP_REGIONS:
        lines.append(f"{shown - _TOP_REGIONS} more regions are in the manifest")
    merged = sum(item.regions for item in covered if item.regions > 1)
    if merged:
        lines.append(f"{merged} regions share layers with others and are shown together")
    return lines
