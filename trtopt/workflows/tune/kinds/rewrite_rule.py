"""Rewrite rules that are off by default."""

from __future__ import annotations

from collections.abc import Iterator


from trtopt.rewrite.catalogue import RULES
from trtopt.targets import target_of
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    name = target_of(situation.backend).name
    for rule in RULES:
        if name not in rule.default:
            yield Change("rewrite-rule", f"rule={rule.name}", rule=rule.name)


KIND = Kind("rewrite-rule", "rewrite rules that are off by default", Prior(0.03, 0.1), 1.5, _changes)
