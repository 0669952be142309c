"""Rewrite rules that builds leave out and that find something in the incumbent's graph: all, and each.

Of a quantised incumbent also those that find something only before it is quantised: its Q, K and V, for
instance, have constant weights only there (`merge-matmuls`: BERT-base in INT8 took 11 % less time at batch 8,
TensorRT 8.6, benchmarks/kernels).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from trtopt.inspect.graph import QUANTISE
from trtopt.onnxio.model_file import load
from trtopt.rewrite.catalogue import RULES
from trtopt.rewrite.driver import RuleFailed, rewrite
from trtopt.targets import target_named, target_of
from trtopt.workflows.tune.evidence import Evidence
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_SAVED = 0.15
"""Of the time of the layers that a rule touches, what it saves if it works."""
_REMEMBERED = 512


def _changes(situation: Situation) -> Iterator[Change]:
    target, evidence = target_of(situation.backend).name, situation.evidence
    left = [rule for rule in RULES if not rule.is_built_in(target)]
    touched = {
        rule.name: nodes
        for rule in left
        if (nodes := _touched(evidence.model, evidence.model_sha256, rule.name, target))
    }
    together = {rule.name for rule in left if target in rule.default} & touched.keys()
    if situation.recipe.rewrite == "default" and len(together) > 1:
        nodes = tuple(node for rule in together for node in touched[rule])
        yield replace(_change(evidence, "rewrite=all", nodes), recipe={"rewrite": "all"})
    for rule, nodes in touched.items():
        yield replace(_change(evidence, f"rule={rule}", nodes), rule=rule)
    added, model = situation.recipe.add_rule, evidence.float_model
    is_quantised = any(node.op == QUANTISE for node in evidence.graph.nodes)
    if model is None or evidence.float_sha256 is None or situation.data is None or not is_quantised:
        return
    for rule in (one.name for one in left if one.name not in (*touched, *added)):
        if nodes := _touched(model, evidence.float_sha256, rule, target):
            change = _change(evidence, f"add-rule={rule}", nodes)
            yield replace(change, recipe={"add_rule": (*added, rule)})


def _change(evidence: Evidence, name: str, nodes: tuple[str, ...]) -> Change:
    share, known = evidence.share_of(evidence.covering(nodes)), bool(evidence.layers)
    gain = _SAVED * share if known else KIND.prior.gain
    return Change(
        "rewrite-rule",
        name,
        prior=Prior(gain, KIND.prior.probability, max(gain, 0.01), KIND.prior.risk),
        evidence=f"it changes {len(nodes)} places" + (f", in {share:.1%} of the time" if known else ""),
    )


@lru_cache(_REMEMBERED)
def _touched(model: Path, sha256: str, rule: str, target: str) -> tuple[str, ...]:
    """The nodes at which a rule applies; `sha256`: graphs lie in one place one after the other."""
    wanted = [one for one in RULES if one.name == rule]
    try:
        outcome = rewrite(load(model), wanted, target_named(target))
    except RuleFailed:
        return ()
    return tuple(one.node for one in outcome.applied)


KIND = Kind("rewrite-rule", Prior(0.03, 0.15), 1.5, _changes)
