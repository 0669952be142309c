"""Reports of casts in words."""

from __future__ import annotations

from collections import defaultdict

from trtopt.errors import UsageError
from trtopt.records.casting import CastReport, KeptNode
from trtopt.records.checking import OutputDifference

_NAMED = 3


def cast_summary(report: CastReport) -> list[str]:
    """What became 16-bit, what stayed FP32 and why, and how far the outputs moved."""
    name = report.precision.upper()
    lines = [
        f"{report.out}: {len(report.lowered)} nodes in {name}, {len(report.kept)} kept in FP32, "
        f"{report.casts} casts; {report.seconds:.1f} s",
    ]
    if report.samples:
        random = ": random, so nothing is known of real values; give --data" if report.data_is_random else ""
        lines.append(f"values measured on {report.samples} samples of {report.data}{random}")
    groups: dict[tuple[str, str], list[KeptNode]] = defaultdict(list)
    for kept in report.kept:
        groups[kept.rule, kept.op].append(kept)
    for (rule, op), nodes in groups.items():
        more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
        named = ", ".join(node.node for node in nodes[:_NAMED])
        lines.append(f"  FP32 by {rule}: {len(nodes)} x {op}, {nodes[0].reason} ({named}{more})")
    if report.vanishing:
        worst = max(report.vanishing, key=lambda weight: weight.values / weight.of)
        lines.append(
            f"  some values of {len(report.vanishing)} weights become 0; at most "
            f"{worst.values / worst.of:.2%}, {worst.values} of {worst.of} of {worst.weight}"
        )
    lines += [f"  {difference_line(item)}" for item in report.differences]
    return [*lines, *report.notes]


def difference_line(item: OutputDifference) -> str:
    """One output's distance from its reference."""
    if item.values and item.mismatched == item.values:  # all else would be said of no value at all
        return f"output {item.output}: all {item.values} values NaN or infinite in one only, none to compare"
    exact = "no error where both are finite" if item.mismatched else "no error"
    sqnr = exact if item.sqnr_db is None else f"SQNR {item.sqnr_db:.1f} dB"
    top1 = f", top-1 agreement {item.top1:.2%}" if item.top1 is not None else ""
    odd = f", {item.mismatched} values NaN or infinite in one only" if item.mismatched else ""
    return f"output {item.output}: {sqnr}, cosine {item.cosine:.7f}, max error {item.max_abs:.3g}{top1}{odd}"


def of_node(report: CastReport, node: str) -> list[str]:
    """What became of one node.

    Raises:
        UsageError: no floating-point node is called that.
    """
    for kept in report.kept:
        if kept.node == node:
            return [f"{node} ({kept.op}) stays FP32: {kept.reason} (rule: {kept.rule})"]
    if node in report.lowered:
        return [f"{node} becomes {report.precision.upper()}: its operator takes it, weights and values fit"]
    raise UsageError(f"no floating-point node is named {node!r}", "see the names with --json")
