"""What forms were measured to gain, by what a graph has a place for: the order in which a build tries them.

A row counts for every graph, the more the closer its places, batch, GPU and TensorRT are. Add rows that were
measured in turns with plain FP16, losses too (benchmarks/int8-forms).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trtopt.precision.placement.forms import with_choice
from trtopt.records.forms import PLAIN, Forms, parse_forms

_DOUBT = 0.03
"""By how much more an unlike row may gain here, for each unit of its distance."""


@dataclass(frozen=True)
class Measured:
    """A form's change of latency against plain FP16; `places`: the forms that `model` has a place for."""

    model: str
    places: str
    batch: int
    gpu: str
    target: str
    forms: str
    change: float


@dataclass(frozen=True)
class Expected:
    """A form with the change that the closest row saw, and how unlike that row is (0: the same case)."""

    forms: Forms
    change: float
    distance: float

    @property
    def hope(self) -> float:
        """The change at best."""
        return self.change - _DOUBT * self.distance


_POST_NORM = "attention gelu qkv residual rest smoothing"
_GATED = "gates"
_NORMED = "gelu rest smoothing"
_H100, _H200, _8_6 = "H100", "H200", "8.6"
_PEER = "residual=both,attention=on,smoothing=off"

ROWS = (
    Measured("BERT-base", _POST_NORM, 1, _H200, _8_6, "attention=on", -0.142),
    Measured("BERT-base", _POST_NORM, 1, _H200, _8_6, _PEER, -0.061),
    Measured("BERT-base", _POST_NORM, 1, _H100, _8_6, "", 0.03),
    Measured("BERT-base", _POST_NORM, 8, _H100, _8_6, "attention=on,qkv=merged", -0.038),
    Measured("BERT-base", _POST_NORM, 8, _H100, _8_6, "attention=on", 0.005),
    Measured("BERT-base", _POST_NORM, 8, _H100, _8_6, _PEER, 0.077),
    Measured("BERT-base", _POST_NORM, 8, _H100, _8_6, "", 0.30),
    Measured("BERT-base", _POST_NORM, 32, _H100, _8_6, _PEER, -0.091),
    Measured("BERT-base", _POST_NORM, 32, _H100, _8_6, "attention=on,smoothing=off", -0.039),
    Measured("BERT-base", _POST_NORM, 32, _H100, _8_6, "attention=on", -0.031),
    Measured("BERT-base", _POST_NORM, 32, _H100, _8_6, "attention=on,qkv=merged", 0.047),
    Measured("BERT-base", _POST_NORM, 128, _H100, _8_6, _PEER, -0.248),
    Measured("BERT-base", _POST_NORM, 128, _H100, _8_6, "attention=on", -0.103),
    Measured("BERT-base", _POST_NORM, 128, _H100, _8_6, "attention=on,qkv=merged,smoothing=off", -0.047),
    Measured("RegNetY-040", _GATED, 8, _H100, _8_6, "gates=int8", -0.191),
    Measured("RegNetY-040", _GATED, 8, _H100, _8_6, "", 0.001),
    Measured("RegNetY-040", _GATED, 8, _H200, _8_6, "gates=int8", -0.179),
    Measured("RegNetY-040", _GATED, 8, _H200, _8_6, "", 0.023),
    Measured("ConvNeXtV2-T", _NORMED, 8, _H100, _8_6, "", -0.187),
    Measured("ResNet-50", "", 8, _H100, _8_6, "", -0.19),
)


def expected(
    places: Mapping[str, Collection[str]], batch: int, gpu: str, target: str
) -> tuple[Expected, ...]:
    """Every form that was measured anywhere and that this graph has a place for, the most promising first.

    `places` are the choices besides the default that change the graph, by form.
    """
    found: dict[Forms, Expected] = {}
    for row in ROWS:
        forms = _restricted(parse_forms(row.forms), places)
        distance = _distance(row, places, batch, gpu, target)
        if forms not in found or distance < found[forms].distance:
            found[forms] = Expected(forms, row.change, distance)
    return tuple(sorted(found.values(), key=lambda one: (one.change, str(one.forms))))


def _restricted(forms: Forms, places: Mapping[str, Collection[str]]) -> Forms:
    """The choices that change this graph."""
    kept = PLAIN
    for name, choice in forms.chosen.items():
        if choice in places.get(name, ()):
            kept = with_choice(kept, name, choice)
    return kept


def _distance(row: Measured, places: Collection[str], batch: int, gpu: str, target: str) -> float:
    """Unlike places count up to 2, a batch 8 times as large 1, another GPU 0.5, another TensorRT 1."""
    theirs, ours = set(row.places.split()), set(places)
    alike = len(theirs & ours) / len(theirs | ours) if theirs | ours else 1.0
    return (
        2 * (1 - alike)
        + abs(math.log2(batch / row.batch)) / 3
        + (0.0 if row.gpu in gpu else 0.5)
        + (0.0 if row.target == target else 1.0)
    )
