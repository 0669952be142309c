"""The form of an INT8 graph: one other choice where the graph has a place for it."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.precision.placement.forms import with_choice
from trtopt.records.precision import parse_forms
from trtopt.targets import target_of
from trtopt.workflows.build.planned_regions import planned_forms
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    recipe, evidence = situation.recipe, situation.evidence
    is_int8 = recipe.precision in ("int8", "best") and (situation.selected or "int8").startswith("int8")
    if not is_int8 or situation.data is None:
        return
    model, sha256 = evidence.float_model or evidence.model, evidence.float_sha256 or evidence.model_sha256
    now = parse_forms(situation.forms)
    for name, choices in planned_forms(
        model, sha256, target_of(situation.backend).name, recipe.exclude
    ).items():
        for choice in choices:
            changed = str(with_choice(now, name, choice))
            if changed != str(now):
                yield Change(
                    "placement",
                    f"forms={changed}",
                    recipe={"forms": changed, "precision": "int8"},
                    evidence=f"the graph has a place for {name}={choice}",
                )


KIND = Kind("placement", Prior(0.047, 0.4, loss=0.05, risk=0.3), 5, _changes)
