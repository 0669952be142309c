"""All rules, in the order in which they run: those of the modules in `trtopt.rewrite.rules`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from trtopt.rewrite import rules
from trtopt.rewrite.rule import Rule


def modules_of(package: ModuleType) -> tuple[ModuleType, ...]:
    """The modules of a package of rules; each has its rule as `RULE`."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(importlib.import_module(f"{package.__name__}.{name}") for name in names)


def in_order(found: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules stage by stage, in each by name, but every rule after those that it names.

    Raises:
        ValueError: two rules of one name, one that runs after a rule that there is not, or rules in a circle.
    """
    waiting = sorted(found, key=lambda rule: (rule.stage, rule.name))
    names = {rule.name for rule in waiting}
    if len(names) < len(waiting):
        raise ValueError("two rewrite rules have one name")
    ordered: dict[str, Rule] = {}
    while waiting:
        ready = next((rule for rule in waiting if ordered.keys() >= set(rule.after)), None)
        if ready is None:
            stuck = {rule.name: rule.after for rule in waiting}
            raise ValueError(f"rewrite rules in a circle, or after rules that there are not: {stuck}")
        waiting.remove(ready)
        ordered[ready.name] = ready
    return tuple(ordered.values())


RULES = in_order(module.RULE for module in modules_of(rules))


def build_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that builds for a target apply unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.is_built_in(target))


def quantising_rules(target: str) -> tuple[str, ...]:
    """The names of the rules that quantising for a target applies unasked, in order."""
    return tuple(rule.name for rule in RULES if rule.quantises(target))
