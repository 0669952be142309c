"""A break-even verdict as tables for people: what each precision took, what was handed out and why."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.records import BatchVerdict, Candidate, CandidateTime, PrecisionVerdict, RegionTime
from trtopt.report.tables import plain_table

_TOP_REGIONS = 5
_REGION_WIDTH = 30


def verdict_summary(verdict: PrecisionVerdict) -> RenderableType:
    """Times by batch size and candidate, the choice with its reason, accuracy, and where the time went."""
    parts: list[RenderableType] = [_times(verdict)]
    for one in verdict.batches:
        parts.append(Text(f"batch {one.batch}: {one.chosen} is handed out: {one.reason}"))
    parts += [Text(accuracy_line(one)) for one in verdict.candidates if one.differences]
    for one in verdict.batches:
        for name, regions in one.regions.items():
            parts.append(_regions(one, name, regions))
            parts += [Text(line) for line in _left_out(regions)]
    return Group(*parts, *(Text(f"note: {note}") for note in verdict.notes))


def _times(verdict: PrecisionVerdict) -> Table:
    table = plain_table(
        f"precisions in turns on {verdict.device}, contract {verdict.contract}, "
        f"threshold {verdict.threshold:.1%}"
    )
    for name in ("batch", "precision", "p50 ms", "change", "verdict", ""):
        table.add_column(
            name, justify="left" if name in ("precision", "verdict", "") else "right", no_wrap=True
        )
    for batch in verdict.batches:
        for one in batch.times:
            taken = "handed out" if one.candidate == batch.chosen else ""
            table.add_row(str(batch.batch), one.candidate, f"{one.latency_ms:.3f}", *_against(one), taken)
    return table


def _against(one: CandidateTime) -> tuple[str, str]:
    judged = one.against_baseline
    if judged is None:
        return "–", "baseline"
    return ("–" if judged.ratio is None else f"{judged.ratio - 1:+.1%}"), judged.verdict


def accuracy_line(candidate: Candidate) -> str:
    """The output that lies furthest from the model's own, and the bounds that are broken."""
    worst = min(candidate.differences, key=lambda one: one.cosine)
    told = [f"cosine {worst.cosine:.5f}"]
    if worst.sqnr_db is not None:
        told.append(f"SQNR {worst.sqnr_db:.1f} dB")
    if worst.top1 is not None:
        told.append(f"top-1 agreement {worst.top1:.1%}")
    left = f" ({len(candidate.left)} nodes left in float)" if candidate.left else ""
    broken = "; not accurate enough, not measured" if candidate.violations else ""
    return f"{candidate.name}{left}: output {worst.output!r}: {', '.join(told)}{broken}"


def _regions(batch: BatchVerdict, name: str, regions: Sequence[RegionTime]) -> Table:
    """The regions that change most, by the layer pass, whose sums exceed latencies."""
    *covered, outside = regions
    table = plain_table(
        f"batch {batch.batch}: where {name} gains and loses, ms of layers by region; changes are sums of "
        "compute, reformats, layers that ran wider than asked, and lost fusions"
    )
    table.add_column("region", max_width=_REGION_WIDTH, no_wrap=True, overflow="ellipsis")
    for column in ("float", "Q/DQ", "compute", "reformat", "wider", "fusion"):
        table.add_column(column, justify="right", no_wrap=True)
    covered.sort(key=lambda one: -abs(one.change_ms))
    for one in (*covered[:_TOP_REGIONS], outside):
        causes = (one.compute_ms, one.reformat_ms, one.float_path_ms, one.lost_fusion_ms)
        table.add_row(
            _named(one),
            f"{one.float_ms:.4f}",
            f"{one.quantised_ms:.4f}",
            *(f"{value:+.4f}" for value in causes),
        )
    return table


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
    merged = sum(one.regions for one in covered if one.regions > 1)
    if merged:
        lines.append(f"{merged} regions share layers with others and are told together")
    return lines
