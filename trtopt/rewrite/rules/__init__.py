"""All rules, in the order in which they run: family by family, and in each as they are written."""

from __future__ import annotations

from trtopt.rewrite.rule import Rule
from trtopt.rewrite.rules import (
    activations,
    attention,
    cleaning,
    convolution,
    folding,
    normalisation,
    parsers,
    shuffles,
)

FAMILIES = (
    cleaning,
    folding,
    shuffles,
    normalisation,
    activations,
    convolution,
    attention,
    parsers,
)
"""What cleans first, what depends on a clean graph after it. Every rule that a module has is one of them."""
RULES = tuple(rule for family in FAMILIES for rule in vars(family).values() if isinstance(rule, Rule))


def build_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that builds for a target apply unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.is_built_in(target))


def quantizing_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that quantising for a target applies unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.quantizes(target))
