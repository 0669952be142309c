"""What forms were measured to gain, by what a graph has a place for: the order in which a build tries them.

A row counts for every graph, the more the closer its places, batch, GPU and TensorRT are. Add rows that were
measured in turns with plain FP16, losses too (benchmarks/int8-forms).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trtopt.precision.placement.forms import CHOICES, PLAIN, Forms, parse_forms
from trtopt.precision.placement.place import with_choice

_DOUBT = 0.03
"""By how much more an unlike row may gain here, for each unit of its distance."""
_LONG_BUILD = 2.3
"""What `rest=half` takes of other forms' build: 100 to 139 s instead of 40 to 67 (benchmarks/int8-forms)."""


@dataclass(frozen=True)
class Measured:
    """A form's change of latency against plain FP16; `places`: the forms that `model` has a place for."""

    model: str
    places: str
    batch: int
    gpu: str
    forms: str
    change: float
    sqnr_db: float | None
    target: str = "8.6"


@dataclass(frozen=True)
class Expected:
    """A form with the change that the closest row saw, and how unlike that row is (0: the same case)."""

    forms: Forms
    change: float
    distance: float
    sqnr_db: float = -math.inf

    @property
    def hope(self) -> float:
        """The change at best."""
        return self.change - _DOUBT * self.distance

    def hope_beside(self, miss: float) -> float:
        """The change at best where a form with the same main choices took more than expected by `miss`."""
        return self.change + miss - _DOUBT * _UNLIKE

    @property
    def rate(self) -> float:
        """The change for the seconds that the build takes: the less, the sooner it is worth a build."""
        builds = _LONG_BUILD if self.forms.rest == "half" else 1.0
        return self.change / builds if self.change < 0 else self.change * builds


_MINOR = {"gelu", "rest", "smoothing"}
"""Forms without which a row still says something of a graph that has no place for them."""
_UNLIKE = 0.3
"""What a minor choice that differs adds to the distance of a row: too little to hope for by itself."""
_POST_NORM = "attention gelu qkv residual rest smoothing"
_PRE_NORM = "attention gelu qkv rest smoothing"
_NORMED = "gelu residual rest smoothing"
_SKIP, _BOTH = "residual=skip,attention=on,smoothing=off", "residual=both,attention=on,smoothing=off"
_ATTENTION = "attention=on,smoothing=off"


def _bert(batch: int, forms: str, change: float, sqnr_db: float) -> Measured:
    return Measured("BERT-base", _POST_NORM, batch, "H200", forms, change, sqnr_db)


ROWS = (
    _bert(1, _SKIP, -0.133, 26.95),
    _bert(1, _ATTENTION, -0.129, 32.40),
    _bert(1, "attention=on", -0.128, 32.48),
    _bert(1, f"qkv=merged,{_SKIP}", -0.112, 26.96),
    _bert(1, f"qkv=merged,{_ATTENTION}", -0.105, 32.40),
    _bert(1, _BOTH, -0.050, 26.72),
    _bert(1, "", 0.03, 32.4),
    _bert(8, f"qkv=merged,{_SKIP}", -0.065, 26.96),
    _bert(8, f"qkv=merged,{_BOTH}", -0.023, 26.72),
    _bert(8, f"qkv=merged,rest=half,{_ATTENTION}", -0.014, 32.41),
    _bert(8, f"qkv=merged,{_ATTENTION}", 0.036, 32.40),
    _bert(8, _SKIP, 0.069, 26.95),
    _bert(8, _BOTH, 0.102, 26.87),
    _bert(8, _ATTENTION, 0.107, 32.40),
    _bert(8, "", 0.30, 32.4),
    Measured("BERT-base", _POST_NORM, 8, "H100", f"qkv=merged,{_SKIP}", -0.020, 26.96),
    Measured("BERT-base", _POST_NORM, 8, "H100", "attention=on", 0.132, 32.48),
    Measured("BERT-base", _POST_NORM, 8, "H100", f"rest=half,{_ATTENTION}", 0.137, 32.41),
    _bert(32, _SKIP, -0.089, 26.96),
    _bert(32, f"qkv=merged,{_SKIP}", -0.051, 26.96),
    _bert(32, _BOTH, -0.048, 26.72),
    _bert(32, f"rest=half,{_ATTENTION}", -0.037, 32.41),
    _bert(32, _ATTENTION, -0.020, 32.40),
    _bert(32, "attention=on", -0.019, 32.48),
    _bert(32, f"qkv=merged,{_BOTH}", -0.006, 26.72),
    _bert(128, _SKIP, -0.299, 26.96),
    _bert(128, _BOTH, -0.270, 26.72),
    _bert(128, _ATTENTION, -0.248, 32.43),
    _bert(128, f"rest=half,{_ATTENTION}", -0.248, 32.41),
    _bert(128, f"qkv=merged,{_SKIP}", -0.202, 26.96),
    _bert(128, f"qkv=merged,{_BOTH}", -0.175, 26.72),
    Measured("DistilBERT", _POST_NORM, 8, "H200", f"qkv=merged,{_SKIP}", -0.054, 24.81),
    Measured("RegNetY-040", "gates", 8, "H200", "gates=int8", -0.179, 13.48),
    Measured("RegNetY-040", "gates", 8, "H200", "", 0.023, 13.52),
    Measured("EfficientNet-B0", "gates", 8, "H200", "gates=int8", -0.260, 8.87),
    Measured("EfficientNet-B0", "gates", 8, "H200", "", 0.176, 9.98),
    # of two runs: 5.4 % less than Model Optimizer's graph, which on an H200 took 7.2 % less than plain
    Measured("MobileNetV3-L", "activation gates", 8, "H100", "gates=int8,activation=int8", -0.121, 11.84),
    Measured("MobileNetV3-L", "activation gates", 8, "H200", "gates=int8,activation=int8", -0.103, 11.84),
    Measured("MobileNetV3-L", "activation gates", 8, "H200", "gates=int8", 0.131, 10.92),
    Measured("MobileNetV3-L", "activation gates", 8, "H200", "", 0.286, 10.82),
    Measured("ViT-B/16", _PRE_NORM, 8, "H200", "attention=on,qkv=merged,smoothing=folded", 0.077, 27.97),
    Measured("ViT-B/16", _PRE_NORM, 8, "H200", "attention=on,smoothing=folded", 0.095, 27.97),
    Measured("ViT-B/16", _PRE_NORM, 8, "H200", "attention=on", 0.086, 27.97),
    # whole; without the node that loses it took 5.9 % less than FP16
    Measured(
        "CLIP ViT-B/32",
        "attention qkv rest smoothing",
        8,
        "H200",
        "attention=on,qkv=merged,smoothing=folded",
        0.034,
        32.6,
    ),
    Measured("ConvNeXtV2-T", _NORMED, 8, "H200", "residual=skip,smoothing=off", -0.233, 31.98),
    Measured("ConvNeXtV2-T", _NORMED, 8, "H200", "residual=both,smoothing=off", -0.222, 30.81),
    Measured("ConvNeXtV2-T", _NORMED, 8, "H200", "", -0.189, 32.08),
    Measured("ConvNeXtV2-T", _NORMED, 8, "H200", "smoothing=off", -0.189, 31.99),
    Measured("ConvNeXtV2-T", _NORMED, 8, "H100", "", -0.187, None),
    Measured("ResNet-50", "", 1, "H200", "", -0.213, 36.35),
    Measured("ResNet-50", "", 8, "H200", "", -0.173, 36.21),
    # with the head in INT8, which is float by now
    Measured("ResNet-50", "", 32, "H200", "", -0.309, 33.79),
    Measured("ResNet-50", "", 128, "H200", "", -0.397, 33.80),
)


def expected(
    places: Mapping[str, Collection[str]], batch: int, gpu: str, target: str
) -> tuple[Expected, ...]:
    """Every form that was measured anywhere and that this graph has a place for, the most promising first.

    `places` are the choices besides the default that change the graph, by form. Where graphs were measured
    that have all of these places, others say nothing: what a form leaves unchanged costs nothing there.
    """
    fitting = [
        (row, forms) for row in ROWS if (forms := _restricted(parse_forms(row.forms), places)) is not None
    ]
    alike = [(row, forms) for row, forms in fitting if set(places) - _MINOR <= set(row.places.split())]
    rows = alike or fitting
    found = []
    for wanted in dict.fromkeys(forms for _, forms in rows):
        distance, row = min(
            (
                (_distance(row, places, batch, gpu, target) + _UNLIKE * minor, row)
                for row, forms in rows
                if (minor := minor_differences(forms, wanted)) is not None
            ),
            key=lambda item: item[0],
        )
        found.append(Expected(wanted, row.change, distance, row.sqnr_db or -math.inf))
    return tuple(sorted(found, key=lambda one: (one.rate, str(one.forms))))


def minor_differences(one: Forms, other: Forms) -> int | None:
    """How many minor choices differ; None if a main one does."""
    differ = {name for name in CHOICES if getattr(one, name) != getattr(other, name)}
    return len(differ) if differ <= _MINOR else None


def _restricted(forms: Forms, places: Mapping[str, Collection[str]]) -> Forms | None:
    """The choices that change this graph; None if one is missing from whose place the gain may have come."""
    kept = PLAIN
    for name, choice in forms.chosen.items():
        if choice in places.get(name, ()):
            kept = with_choice(kept, name, choice)
        elif name not in _MINOR:
            return None
    return kept


def _distance(row: Measured, places: Collection[str], batch: int, gpu: str, target: str) -> float:
    """Other main places count up to 2, a batch 8 times as large 1, another GPU 0.5, another TensorRT 1."""
    theirs, ours = set(row.places.split()) - _MINOR, set(places) - _MINOR
    alike = len(theirs & ours) / len(theirs | ours) if theirs | ours else 1.0
    return (
        2 * (1 - alike)
        + abs(math.log2(batch / row.batch)) / 3
        + (0.0 if row.gpu in gpu else 0.5)
        + (0.0 if row.target == target else 1.0)
    )
