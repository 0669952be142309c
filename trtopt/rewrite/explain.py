"""A trace in words: as a table, and for one node."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trtopt.errors import UsageError
from trtopt.printable import counted
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.rule import Rule
from trtopt.targets import target_names

_CLASSES = {"B": "bit-exact", "N": "equal up to rounding"}

_USES = (
    "build: trtopt build applies it, for it earned that on the target; quantise: only where it quantises.",
    "trtopt rewrite applies both. clean: with --clean or trtopt build --rewrite all; off: by --rules.",
    "--list --json - has the evidence by target, with sources.",
)


def summary(trace: RewriteTrace) -> list[str]:
    """The trace as lines of text: counts, what was declined most, what was undone, the check."""
    rounds = "1 round" if trace.rounds == 1 else f"{trace.rounds} rounds"
    lines = [f"{trace.nodes_before} → {trace.nodes_after} nodes in {rounds}, {trace.seconds:.2f} s"]
    lines += [f"  {count:5d} x {name}" for name, count in trace.counts.items()]
    if trace.constants_lowered:
        lines.append(f"  {trace.constants_lowered:5d} x Constant node turned into an initializer")
    reasons: dict[tuple[str, str], int] = {}
    for item in trace.declined:
        reasons[item.rule, item.reason] = reasons.get((item.rule, item.reason), 0) + 1
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


def evidence_of(rule: Rule) -> list[str]:
    """What is known of a rule, a line a finding, findings of all targets once."""
    found: dict[str, list[str]] = {}
    for target in target_names():
        for one in rule.known(target):
            where = "in quantising: " if one.kind == "stage" else ""
            found.setdefault(f"{where}{one.shows}", []).append(target)
    every = list(target_names())
    return [text if told == every else f"{', '.join(told)}: {text}" for text, told in found.items()]


def use_of(rule: Rule, target: str) -> str:
    """What applies a rule: builds, those that quantise, a rewrite that cleans, or nothing unasked."""
    if rule.is_built_in(target):
        return "build"
    if rule.quantizes(target):
        return "quantise"
    return "clean" if target in rule.targets else "off"


def catalogue(rules: Sequence[Rule]) -> list[str]:
    """The rules as a table, by target, and what its words mean."""
    rows = [
        ("rule", "class", *target_names(), "enables"),
        *(
            (
                rule.name,
                _CLASSES[rule.exactness],
                *(use_of(rule, target) for target in target_names()),
                rule.enables or "cleaning only",
            )
            for rule in rules
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*(line.rstrip() for line in lines), *_USES]


def catalogue_json(rules: Sequence[Rule]) -> str:
    """The rules for programs to read, with the targets where a rewrite, `--clean` or builds apply each."""
    entries = [
        {
            "name": rule.name,
            "class": rule.exactness,
            "default": [target for target in rule.targets if rule.quantizes(target)],
            "clean": rule.targets,
            "enables": rule.enables,
            "builds": [target for target in rule.targets if rule.is_built_in(target)],
            "evidence": {
                target: [
                    {"kind": one.kind, "shows": one.shows, "source": one.source} for one in rule.known(target)
                ]
                for target in target_names()
            },
        }
        for rule in rules
    ]
    return json.dumps(entries, indent=2, ensure_ascii=False)
