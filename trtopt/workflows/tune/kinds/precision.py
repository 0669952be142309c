"""Precisions for the whole model: 16 bits, and the fastest that keeps the accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trtopt.device.backends import precisions_on
from trtopt.inspect.graph import QUANTISE
from trtopt.inspect.join import bits
from trtopt.records import DevicePeaks, ProfiledLayer
from trtopt.workflows.build.apply_precision import QUANTISED
from trtopt.workflows.tune.evidence import Evidence
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_NUMPY = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
_HALF = {"float16", "bfloat16"}
_ON_GPUS = ("fp16", "bf16")
BEST = "precision=best"
"""The candidate that selects among all precisions by measuring."""
_REALISED = 0.7
"""Of what the roofline promises: other layers and conversions do not shrink with the type."""


def _changes(situation: Situation) -> Iterator[Change]:
    graph, recipe = situation.evidence.graph, situation.recipe
    is_cast = recipe.precision in _ON_GPUS
    is_plain = is_cast or recipe.precision in (None, "fp32")
    if not is_plain or any(node.op == QUANTISE for node in graph.nodes):
        return
    offered = precisions_on(situation.backend, situation.device)
    is_half = not is_cast and not _HALF.isdisjoint(graph.dtypes.values())
    for name in offered:
        if name in _ON_GPUS and not (is_cast or is_half):
            yield _change(situation, name, name, 1.0)
    narrow = [name for name in offered if name in QUANTISED]
    if situation.data is not None and narrow and not is_half:
        best = _change(situation, "best", narrow[0], _builds_of_best(situation, offered, narrow))
        yield replace(best, measurements=1.0 + len(offered))  # selecting checks and measures each


def _builds_of_best(situation: Situation, offered: Sequence[str], narrow: Sequence[str]) -> float:
    """One of each, and what the selection's budget adds: other forms, or without the regions that lose."""
    return len(offered) + len(narrow) * (situation.recipe.selection_budget - 1) / 2


def _change(situation: Situation, precision: str, dtype: str, builds: float) -> Change:
    evidence = situation.evidence
    if situation.device.kind != "gpu" and dtype in _ON_GPUS:
        return Change(
            "precision",
            f"precision={precision}",
            recipe={"precision": precision},
            prior=Prior(0.05, 0.1, loss=0.5, risk=0.7),
            builds=builds,
            evidence="processors compute 16 bits by way of FP32",
        )
    prior = KIND.prior
    text = ""
    if evidence.layers and dtype in _NUMPY:
        gain = predicted_gain(evidence, _NUMPY[dtype])
        prior = Prior(gain, prior.probability, loss=0.1, risk=0.15)
        text = f"by the roofline, layers in {dtype.upper()} take {gain:.1%} less time"
    return Change(
        "precision",
        f"precision={precision}",
        recipe={"precision": precision},
        prior=prior,
        builds=builds,
        evidence=text,
    )


def predicted_gain(evidence: Evidence, dtype: str, layers: Sequence[ProfiledLayer] | None = None) -> float:
    """The share of all layers' time that computing some of them, by default all, in a type may save."""
    among = evidence.layers if layers is None else layers
    saved = sum((layer.ms or 0.0) * (1 - _ratio(layer, dtype, evidence.peaks)) for layer in among)
    return max(0.0, _REALISED * saved / evidence.total_ms) if evidence.total_ms else 0.0


def _ratio(layer: ProfiledLayer, dtype: str, peaks: DevicePeaks | None) -> float:
    """Of a layer's time in another type to its time now: by rates, or by bytes; 1 where it has no choice."""
    now = layer.dtype or layer.requested_dtype
    if not bits(now) or bits(now) <= bits(dtype) or layer.cost is None:
        return 1.0
    has_weights = bool(layer.weights_count)
    wanted = dtype if has_weights or bits(dtype) > 8 else "float16"  # Q/DQ surround what has weights
    by_bytes = bits(wanted) / bits(now)
    if layer.cost.bound != "compute" or peaks is None:
        return by_bytes
    rates = [peaks.flops.get(one) for one in (now, wanted)]
    first, second = rates
    return min(1.0, first.value / second.value) if first and second else by_bytes


KIND = Kind("precision", Prior(0.35, 0.7, loss=0.1, risk=0.15), 5, _changes)
