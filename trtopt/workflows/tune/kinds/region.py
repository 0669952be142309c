"""Regions of a quantised graph that may be faster in float: those whose Q, DQ and reformats outweigh INT8."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass

from trtopt.inspect.regions import Region, find_regions, predicted_float_ms
from trtopt.workflows.build.apply_precision import QUANTISED
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_MOST = 4
"""Candidates of one incumbent, besides all of them together."""


def _changes(situation: Situation) -> Iterator[Change]:
    precision = _precision(situation)
    if precision is None or situation.data is None or not situation.evidence.layers:
        return
    regions = find_regions(situation.evidence.graph)
    slow = [one for one in _timed(situation, regions) if one.share >= situation.threshold]
    slow = sorted(slow, key=lambda one: -one.share)[:_MOST]
    if not slow or len(slow) == len(regions):  # all in float is the float engine, which was tried
        slow = slow[:-1]
    for one in slow:
        yield _change(situation, precision, [one])
    if len(slow) > 1:
        yield _change(situation, precision, slow)


def _precision(situation: Situation) -> str | None:
    """The precision that the incumbent was quantised to; None if none, or if it cannot be quantised again."""
    if situation.selected is None:
        return situation.recipe.precision if situation.recipe.precision in QUANTISED else None
    precision, _, variant = situation.selected.partition(".")
    return precision if precision in QUANTISED and "attention" not in variant else None


@dataclass(frozen=True)
class _Timed:
    """A region, its time with Q, DQ and reformats, and the share of all layers' time that float saves."""

    region: Region
    now_ms: float
    share: float


def _timed(situation: Situation, regions: tuple[Region, ...]) -> Iterator[_Timed]:
    """Every region; a layer that covers several counts to the first."""
    evidence, seen = situation.evidence, set[str]()
    float_bits = 16 if situation.device.kind == "gpu" else 32
    for region in regions:
        covering = evidence.covering((*region.nodes, *region.pairs))
        layers = tuple(layer for layer in covering if layer.name not in seen)
        seen.update(layer.name for layer in layers)
        now = sum(layer.ms or 0.0 for layer in layers)
        saved = now - predicted_float_ms(layers, float_bits)
        yield _Timed(region, now, saved / evidence.total_ms)


def _change(situation: Situation, precision: str, regions: list[_Timed]) -> Change:
    nodes = [name for one in regions for name in one.region.nodes]
    left = (*situation.recipe.exclude, *map(glob.escape, (*situation.left, *nodes)))
    gain, now_ms = sum(one.share for one in regions), sum(one.now_ms for one in regions)
    taken = now_ms / situation.evidence.total_ms
    more = f"+{len(nodes) - 1}" if len(nodes) > 1 else ""
    return Change(
        "region",
        f"float={nodes[0]}{more}",
        recipe={"precision": precision, "verdict": False, "exclude": tuple(dict.fromkeys(left))},
        prior=Prior(gain, KIND.prior.probability, KIND.prior.loss, KIND.prior.risk),
        evidence=f"{len(nodes)} {precision.upper()} nodes take {taken:.1%} of the layers' time; "
        f"in float, without Q, DQ and reformats, {gain:.1%} of all less",
    )


KIND = Kind("region", Prior(0.05, 0.4, loss=0.05, risk=0.3), 3, _changes)
