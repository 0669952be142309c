"""The regions and the forms that quantising a float graph would make, without calibrating anything."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from trtopt.errors import TrtoptError
from trtopt.inspect.graph import read_graph
from trtopt.inspect.regions import Region, find_regions
from trtopt.onnxio.model_file import ModelFile, load
from trtopt.onnxio.prepare import prepare
from trtopt.precision.placement.forms import applicable
from trtopt.precision.placement.place import place
from trtopt.precision.placement.placement_plan import PlacementOptions
from trtopt.precision.placement.view import View
from trtopt.precision.qdq.qdq_format import qdq_format_for
from trtopt.precision.qdq.write import Scales, write
from trtopt.rewrite.catalogue import RULES
from trtopt.rewrite.driver import rewrite
from trtopt.targets import target_named

_REMEMBERED = 16


@lru_cache(_REMEMBERED)
def planned_regions(model: Path, sha256: str, target: str, exclude: tuple[str, ...]) -> tuple[Region, ...]:
    """Regions of the INT8 graph of a float one; `sha256`: graphs lie in one place one after the other.

    None where the graph cannot be quantised.
    """
    try:
        made = _rewritten(model, target)
        plan = place(View(made.proto), PlacementOptions("int8", exclude))
        write(made, plan, Scales(dict.fromkeys(plan.tensors, 1.0)), qdq_format_for("int8", target))
    except TrtoptError:
        return ()
    return find_regions(read_graph(made.proto, {}))


@lru_cache(_REMEMBERED)
def planned_forms(
    model: Path, sha256: str, target: str, exclude: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Choices by form that the INT8 graph of a float one has a place for; none where there is none."""
    try:
        return applicable(View(_rewritten(model, target).proto), target_named(target), exclude)
    except TrtoptError:
        return {}


def _rewritten(model: Path, target: str) -> ModelFile:
    file = load(model)
    rules = [rule for rule in RULES if rule.quantises(target)]
    return rewrite(replace(file, proto=prepare(file.proto)[0]), rules, target_named(target)).model
