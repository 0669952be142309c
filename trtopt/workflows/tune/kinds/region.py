"""Regions of a graph in another precision: of an INT8 graph in float, and of a float graph in INT8.

In float where Q, DQ and reformats outweigh INT8. In INT8 where all of the graph in INT8 was not accurate
enough, or no faster.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trtopt.device.backends import precisions_on
from trtopt.inspect.regions import Region, find_regions, predicted_float_ms
from trtopt.records import ProfiledLayer
from trtopt.targets import target_of
from trtopt.workflows.build.apply_precision import QUANTISED
from trtopt.workflows.build.planned_regions import planned_regions
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.kinds.precision import BEST, predicted_gain
from trtopt.workflows.tune.prediction import Prior

_MOST = 4
"""Candidates of one incumbent, besides all of them together."""
_ON_PROCESSORS = Prior(0.05, 0.2, loss=0.3, risk=0.6)
"""Into INT8: of twelve races eight were lost and none was won (benchmarks/tune)."""


@dataclass(frozen=True)
class _Worth:
    """A region, its share of all layers' time, and what of all that another precision saves."""

    region: Region
    share: float
    gain: float


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.data is None or not situation.evidence.layers:
        return
    precision = (situation.selected or situation.recipe.precision or "").partition(".")[0]
    if precision in QUANTISED:
        yield from _in_float(situation, precision)
    elif precision not in QUANTISED and BEST in situation.tried and _has_int8(situation):
        yield from _in_int8(situation)


def _has_int8(situation: Situation) -> bool:
    return "int8" in precisions_on(situation.backend, situation.device)


def _in_float(situation: Situation, precision: str) -> Iterator[Change]:
    regions = find_regions(situation.evidence.graph)
    float_bits = 16 if situation.device.kind == "gpu" else 32
    covered = _covered(situation, regions)
    worth = [
        _worth(situation, region, layers, _ms(layers) - predicted_float_ms(layers, float_bits))
        for region, layers in covered
    ]
    for some in _groups(situation, worth):
        nodes = [name for one in some for name in one.region.nodes]
        left = (*situation.recipe.exclude, *map(glob.escape, (*situation.left, *nodes)))
        yield _change("float", precision, some, left, KIND.prior, situation.forms)


def _in_int8(situation: Situation) -> Iterator[Change]:
    evidence, exclude = situation.evidence, situation.recipe.exclude
    model, sha256 = evidence.float_model or evidence.model, evidence.float_sha256 or evidence.model_sha256
    regions = planned_regions(model, sha256, target_of(situation.backend).name, exclude)
    worth = [
        _worth(situation, region, layers, predicted_gain(evidence, "int8", layers) * evidence.total_ms)
        for region, layers in _covered(situation, regions)
    ]
    for some in _groups(situation, worth):
        others = [name for one in worth if one not in some for name in one.region.nodes]
        usual = KIND.prior if situation.device.kind == "gpu" else _ON_PROCESSORS
        yield _change("int8", "int8", some, (*exclude, *map(glob.escape, others)), usual)


def _covered(
    situation: Situation, regions: Sequence[Region]
) -> Iterator[tuple[Region, tuple[ProfiledLayer, ...]]]:
    """Every region and its layers; one that covers several counts to the first."""
    seen = set[str]()
    for region in regions:
        covering = situation.evidence.covering((*region.nodes, *region.pairs))
        layers = tuple(layer for layer in covering if layer.name not in seen)
        seen.update(layer.name for layer in layers)
        yield region, layers


def _worth(situation: Situation, region: Region, layers: Sequence[ProfiledLayer], saved_ms: float) -> _Worth:
    total_ms = situation.evidence.total_ms
    return _Worth(region, _ms(layers) / total_ms, saved_ms / total_ms)


def _ms(layers: Sequence[ProfiledLayer]) -> float:
    return sum(layer.ms or 0.0 for layer in layers)


def _groups(situation: Situation, worth: Sequence[_Worth]) -> Iterator[Sequence[_Worth]]:
    """Those that gain most, each, and all of them; not all regions: that engine was tried."""
    gaining = sorted((one for one in worth if one.gain >= situation.threshold), key=lambda one: -one.gain)
    gaining = gaining[: min(_MOST, len(worth) - 1)]
    yield from ([one] for one in gaining)
    if len(gaining) > 1:
        yield gaining


def _change(
    into: str,
    precision: str,
    some: Sequence[_Worth],
    left: Sequence[str],
    usual: Prior,
    forms: str | None = None,
) -> Change:
    nodes = [name for one in some for name in one.region.nodes]
    share, gain = sum(one.share for one in some), sum(one.gain for one in some)
    more = f"+{len(nodes) - 1}" if len(nodes) > 1 else ""
    return Change(
        "region",
        f"{into}={nodes[0]}{more}",
        recipe={
            "precision": precision,
            "verdict": False,
            "exclude": tuple(dict.fromkeys(left)),
            **({"forms": forms} if forms else {}),
        },
        prior=replace(usual, gain=gain),
        evidence=f"{len(nodes)} nodes take {share:.1%} of the layers' time, in {into.upper()} {gain:.1%} "
        "of all less by the roofline",
    )


KIND = Kind("region", Prior(0.05, 0.4, loss=0.05, risk=0.3), 3, _changes)
