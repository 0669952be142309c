"""The record of a rewrite: what was done, what was declined and why, what the check found; and in words."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from trtopt.errors import UsageError
from trtopt.printable import counted
from trtopt.records import Record, RewriteSummary
from trtopt.records.base import Result


class Applied(Record, frozen=True, kw_only=True):
    """A rule that was applied, and the node (of the graph as it then was) where."""

    rule: str
    node: str


class Declined(Record, frozen=True, kw_only=True):
    """A rule whose pattern stands in the final graph and was not replaced."""

    rule: str
    node: str
    reason: str


class Undone(Record, frozen=True, kw_only=True):
    """A rule that was taken back whole: it raised, or the outputs moved beyond its bound.

    `nodes` are those where it had been applied, or the one where it raised.
    """

    rule: str
    reason: str
    nodes: tuple[str, ...] = ()


class Deviation(Record, frozen=True, kw_only=True):
    """How far an output moved in one run: the largest difference over the reference's largest magnitude.

    For integers and booleans it is the share of elements that differ. `bound` 0 requires identical bits.
    """

    output: str
    feed: str
    rules: Literal["B", "N", "A"]
    error: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the error, NaN excluded, is within the bound."""
        return self.error <= self.bound


class RewriteTrace(Result, Record, frozen=True, kw_only=True):
    """All of a rewrite. `checked` is empty if no check was requested; nodes in subgraphs count too.

    `alarms` are about weights that hold NaN or infinity.
    """

    schema: str = "trtopt.rewrite/1"
    source: str
    out: str
    target: str
    opset: int
    nodes_before: int
    nodes_after: int
    rounds: int
    constants_lowered: int
    applied: tuple[Applied, ...]
    declined: tuple[Declined, ...]
    undone: tuple[Undone, ...] = ()
    checked: tuple[Deviation, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was applied, the most frequent first."""
        return dict(Counter(item.rule for item in self.applied).most_common())

    def summary(self, trace: str) -> RewriteSummary:
        """This trace in short, for a manifest that has the whole trace in a file next to it."""
        return RewriteSummary(
            target=self.target,
            nodes_before=self.nodes_before,
            nodes_after=self.nodes_after,
            applied=self.counts,
            declined=dict(Counter(item.rule for item in self.declined).most_common()),
            undone={item.rule: item.reason for item in self.undone},
            inputs_checked=len({item.feed for item in self.checked}),
            largest_error=max((item.error for item in self.checked), default=None),
            seconds=round(self.seconds, 3),
            trace=trace,
        )


# ── in words ───────────────────────────────────────────────────────────────────────────────────────────────


def summary(trace: RewriteTrace) -> list[str]:
    """The trace as lines of text: counts, what was declined most, what was undone, the check."""
    rounds = counted(trace.rounds, "round")
    lines = [f"{trace.nodes_before} → {trace.nodes_after} nodes in {rounds}, {trace.seconds:.2f} s"]
    lines += [f"  {count:5d} x {name}" for name, count in trace.counts.items()]
    if trace.constants_lowered:
        lines.append(f"  {trace.constants_lowered:5d} x Constant node turned into an initializer")
    reasons = Counter((item.rule, item.reason) for item in trace.declined)
    lines += [f"declined {count} x {rule}: {reason}" for (rule, reason), count in reasons.items()]
    lines += [f"undone {item.rule}: {item.reason}" for item in trace.undone]
    if trace.checked:
        worst = max(trace.checked, key=lambda item: item.error)
        runs = len({item.feed for item in trace.checked})
        lines.append(
            f"verified on {counted(runs, 'input')}: largest error {worst.error:.2g} (output {worst.output})"
        )
    return lines


def of_node(trace: RewriteTrace, node: str) -> list[str]:
    """All entries of the trace for a node."""
    applied = [f"{item.rule} was applied" for item in trace.applied if item.node == node]
    declined = [
        f"{item.rule} was declined because {item.reason}" for item in trace.declined if item.node == node
    ]
    undone = [
        f"{item.rule} was tried and undone because {item.reason}"
        for item in trace.undone
        if node in item.nodes
    ]
    if not applied and not declined and not undone:
        raise UsageError(
            f"no rule matches at node {node!r}",
            "check the name; `--json -` lists every node with a rule",
        )
    return [f"{node}: {line}" for line in (*applied, *undone, *declined)]
