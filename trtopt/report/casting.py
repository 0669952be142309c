"""Text summaries of casts."""

from __future__ import annotations

from collections import defaultdict

from trtopt.errors import UsageError
from trtopt.records.precision import CastReport, KeptNode, OutputDifference
from trtopt.report.notes import Note, Severity, plain

_NAMED = 3


def cast_summary(report: CastReport) -> list[str]:
    """How many nodes are cast to 16 bits, the outputs' errors, and the nodes kept in FP32 with reasons."""
    name = report.precision.upper()
    lines = [
        f"{report.out}: {len(report.lowered)} nodes in {name}, {len(report.kept)} kept in FP32, "
        f"{_counted_casts(report.casts)}; {report.seconds:.1f} s",
        *(f"  {difference_line(item)}" for item in report.differences),
    ]
    if report.samples:
        lines.append(f"values measured on {report.samples} samples of {report.data}")
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
    return lines


def _counted_casts(added: int) -> str:
    """How many casts the graph has more than before; fewer where needless ones went."""
    return f"{added} casts" if added >= 0 else f"{-added} fewer casts"


def cast_notes(report: CastReport) -> list[Note]:
    """What limits the result."""
    if not (report.samples and report.data_is_random):
        return plain(report.notes)
    random = "random data says nothing about real values: give --data"
    return [Note(Severity.FINDING, random), *plain(report.notes)]


def difference_line(item: OutputDifference) -> str:
    """One output's distance from its reference."""
    name, only_one = f"output {item.output}", "values NaN or infinite in one model only"
    if item.values and item.mismatched == item.values:  # other figures would rest on no value
        return f"{name}: all {item.values} {only_one}, none to compare"
    if item.values and item.nonfinite == item.values:
        return f"{name}: all {item.values} values NaN or infinite, none to compare"
    resized = f", not compared where the size differs (batches: {item.resized})" if item.resized else ""
    if resized and not item.values:
        return f"{name}: the size, which depends on data, differs in all batches, none to compare"
    if item.integer:
        equal = f"{item.cosine:.2%} of {item.values} integers equal"
        return f"{name}: {equal}, max error {item.max_abs:.3g}{resized}"
    exact = "no error where both are finite" if item.mismatched else "no error"
    sqnr = exact if item.sqnr_db is None else f"SQNR {item.sqnr_db:.1f} dB"
    top1 = f", top-1 agreement {item.top1:.2%}" if item.top1 is not None else ""
    mismatched = f", {item.mismatched} {only_one}" if item.mismatched else ""
    return (
        f"{name}: {sqnr}, cosine {item.cosine:.7f}, max error {item.max_abs:.3g}{top1}{mismatched}{resized}"
    )


def of_node(report: CastReport, node: str) -> list[str]:
    """How one node was cast, or why it was not.

    Raises:
        UsageError: no floating-point node has that name.
    """
    for kept in report.kept:
        if kept.node == node:
            return [f"{node} ({kept.op}) stays FP32: {kept.reason} (rule: {kept.rule})"]
    if node in report.lowered:
        return [
            f"{node} becomes {report.precision.upper()}: its operator supports it, and weights and values fit"
        ]
    raise UsageError(f"no floating-point node is named {node!r}", "see the names with --json -")
