"""Text summaries of bisections."""

from __future__ import annotations

import shlex

from trtopt.records.precision import BisectReport, KeptSet
from trtopt.report.casting import difference_line
from trtopt.targets import target_named

_NAMED = 3
_RANKED = 5
_OF_FRONT = 10
_HIGH = {"fp16": "FP32", "bf16": "FP32"}


def bisect_summary(report: BisectReport) -> list[str]:
    """The nodes to keep, the flags that keep them, their cost, and the most sensitive nodes."""
    lines = [*_verdict(report)]
    for subject in report.subjects:
        at = f", batch {subject.batch}" if subject.batch is not None else ""
        lines.append(f"evaluated with {report.backend}{at} on {subject.samples} samples:")
        lines += [f"  {difference_line(item)}" for item in subject.outputs]
    if report.sensitivities:
        lines.append(
            f"most sensitive: error of one node in {report.precision.upper()}, as a multiple of the bound:"
        )
        lines += [f"  {item.error:8.3g}  {_named(item.nodes)}" for item in report.sensitivities[:_RANKED]]
    if report.verdict != "nothing to keep":
        lines.append("trade-off: error as a multiple of the bound, share of the operations kept, nodes kept:")
        lines += [_of_front(item) for item in _near(report.front)]
    if report.out:
        lines.append(f"written: {report.out}" + (f", {report.table}" if report.table else ""))
    return lines


def _verdict(report: BisectReport) -> list[str]:
    low, high = report.precision.upper(), _high(report)
    requested = ", ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in report.bounds.items())
    spent = f"{report.evaluations} of at most {report.most_evaluations} evaluations; {report.seconds:.1f} s"
    if report.verdict == "nothing to keep":
        return [
            f"{requested} is met without keeping any node: {len(report.candidates)} nodes in {low}; {spent}"
        ]
    if report.verdict == "not met":
        return [
            f"NOT MET: {requested}, even with all {len(report.candidates)} nodes in {high}; {spent}",
            "  → relax the bounds, or locate the error with trtopt check --layers",
        ]
    size = f"{len(report.best.nodes)} of {len(report.candidates)} nodes"
    if report.minimal:
        minimality = "each of them is needed"
    else:
        minimality = "fewer may suffice: the search used all its evaluations, raise --max-evaluations"
    return [
        f"{requested} is met with {size} kept in {high}, {report.best.cost:.1%} of the operations; {spent}",
        f"{minimality}:",
        *(f"  --exclude {shlex.quote(pattern)}" for pattern in report.patterns),
    ]


def _high(report: BisectReport) -> str:
    """What is kept is of this type: on a strongly typed TensorRT what is not quantised is FP16."""
    unquantised = "FP32" if target_named(report.target).weakly_typed else "FP16"
    return _HIGH.get(report.precision, unquantised)


def _of_front(item: KeptSet) -> str:
    return f"  {item.error:8.3g}  {item.cost:7.2%}  {len(item.nodes)} nodes: {_named(item.nodes)}"


def _near(front: tuple[KeptSet, ...]) -> tuple[KeptSet, ...]:
    """The part of the front around the bound."""
    first = next((place for place, item in enumerate(front) if item.error <= 1), len(front))
    start = max(0, min(first - _OF_FRONT // 2, len(front) - _OF_FRONT))
    return front[start : start + _OF_FRONT]


def _named(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return (", ".join(nodes[:_NAMED]) or "none") + more
