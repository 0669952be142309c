"""All rules, in the order in which they run: family by family, and in each as they are written."""

from __future__ import annotations

import json

from trtopt.rewrite.rule import Rule
from trtopt.rewrite.rules import by_target, cleaning, composed, convolution, folding, shuffles
from trtopt.targets import target_names

FAMILIES = (cleaning, folding, shuffles, composed, convolution, by_target)
"""What cleans first, what depends on a clean graph after it. Every rule that a module has is one of them."""
RULES = tuple(rule for family in FAMILIES for rule in vars(family).values() if isinstance(rule, Rule))


def build_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that builds for a target apply unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.is_built_in(target))


def quantizing_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that quantising for a target applies unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.quantizes(target))


# ── the catalogue in words ─────────────────────────────────────────────────────────────────────────────────


_CLASSES = {"B": "bit-exact", "N": "equal up to rounding"}

_USES = (
    "build: trtopt build applies it, for it earned that on the target; quantise: only where it quantises.",
    "trtopt rewrite applies both. clean: with --clean or trtopt build --rewrite all; off: by --rules.",
    "--list --json - has the evidence by target, with sources.",
)


def use_of(rule: Rule, target: str) -> str:
    """What applies a rule: builds, those that quantise, a rewrite that cleans, or nothing unasked."""
    if rule.is_built_in(target):
        return "build"
    if rule.quantizes(target):
        return "quantise"
    return "clean" if target in rule.targets else "off"


def catalogue() -> list[str]:
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
            for rule in RULES
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [*(line.rstrip() for line in lines), *_USES]


def catalogue_json() -> str:
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
        for rule in RULES
    ]
    return json.dumps(entries, indent=2, ensure_ascii=False)
