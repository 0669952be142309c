"""Kinds of candidates that change the graph: precisions, forms of INT8, types of I/O, rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from trtopt.device.backends import precisions_on
from trtopt.inspect.graph import QUANTIZE
from trtopt.inspect.layers import bits
from trtopt.onnxio.model_file import load
from trtopt.precision.placement.place import with_choice
from trtopt.records import DevicePeaks, ProfiledLayer, TensorSpec
from trtopt.records.precision import parse_forms
from trtopt.records.tensors import IMAGE_RANK, TYPES, VECTORS
from trtopt.rewrite.driver import RuleFailed, rewrite
from trtopt.rewrite.rules import RULES
from trtopt.targets import ONNXRUNTIME, target_named, target_of
from trtopt.workflows.build.candidates import planned_forms
from trtopt.workflows.build.graph import QUANTIZED
from trtopt.workflows.tune.candidates import Change, Evidence, Kind, Prior, Situation

# ── precision ───────────────────────────────────────────────────────────────────────────────────────────────

_NUMPY = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
_HALF = {"float16", "bfloat16"}
_ON_GPUS = ("fp16", "bf16")
BEST = "precision=best"
"""The candidate that selects among all precisions by measuring."""
_REALISED = 0.7
"""Of what the roofline promises: other layers and conversions do not shrink with the type."""


def propose_precisions(situation: Situation) -> Iterator[Change]:
    """Precisions for the whole model: 16 bits, and the fastest that keeps the accuracy."""
    graph, recipe = situation.evidence.graph, situation.recipe
    is_cast = recipe.precision in _ON_GPUS
    is_plain = is_cast or recipe.precision in (None, "fp32")
    if not is_plain or any(node.op == QUANTIZE for node in graph.nodes):
        return
    offered = precisions_on(situation.backend, situation.device)
    is_half = not is_cast and not _HALF.isdisjoint(graph.dtypes.values())
    for name in offered:
        if name in _ON_GPUS and not (is_cast or is_half):
            yield _to_precision(situation, name, name, builds=1.0)
    narrow = [name for name in offered if name in QUANTIZED]
    if situation.data is not None and narrow and not is_half:
        # one of each, and what the selection's budget adds: other forms, or without the regions that lose
        builds = len(offered) + len(narrow) * (recipe.selection_budget - 1) / 2
        best = _to_precision(situation, "best", narrow[0], builds=builds)
        yield replace(best, measurements=1.0 + len(offered))  # selecting checks and measures each


def _to_precision(situation: Situation, precision: str, dtype: str, *, builds: float) -> Change:
    evidence, prior, text = situation.evidence, PRECISION.prior, ""
    if situation.device.kind != "gpu" and dtype in _ON_GPUS:
        prior = Prior(0.05, 0.1, loss=0.5, risk=0.7)
        text = "processors compute 16 bits by way of FP32"
    elif evidence.layers and dtype in _NUMPY:
        prior = replace(prior, gain=predicted_gain(evidence, _NUMPY[dtype]))
        text = f"by the roofline, layers in {dtype.upper()} take {prior.gain:.1%} less time"
    name = f"precision={precision}"
    return Change(name, recipe={"precision": precision}, prior=prior, builds=builds, evidence=text)


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
    first, second = (peaks.flops.get(one) for one in (now, wanted))
    return min(1.0, first.value / second.value) if first and second else by_bytes


PRECISION = Kind("precision", Prior(0.35, 0.7, loss=0.1, risk=0.15), 5, propose_precisions)


# ── placement ───────────────────────────────────────────────────────────────────────────────────────────────


def propose_forms(situation: Situation) -> Iterator[Change]:
    """The form of an INT8 graph: one other choice where the graph has a place for it."""
    recipe = situation.recipe
    is_int8 = recipe.precision in ("int8", "best") and (situation.selected or "int8").startswith("int8")
    if not is_int8 or situation.data is None:
        return
    now, target = parse_forms(situation.forms), target_of(situation.backend).name
    places = planned_forms(situation.evidence.model, situation.evidence.model_sha256, target, recipe.exclude)
    for name, choices in places.items():
        for choice in choices:
            changed = str(with_choice(now, name, choice))
            if changed != str(now):
                yield Change(
                    f"forms={changed}",
                    recipe={"forms": changed, "precision": "int8"},
                    evidence=f"the graph has a place for {name}={choice}",
                )


PLACEMENT = Kind("placement", Prior(0.047, 0.4, loss=0.05, risk=0.3), 5, propose_forms)


# ── io-types ────────────────────────────────────────────────────────────────────────────────────────────────

_SHORT = {name: short for short, name in TYPES.items()}
_WORDS = {
    "Two wide channel": "chw2",
    "Four wide channel": "chw4",
    "Sixteen wide channel": "chw16",
    "Thirty-two wide channel": "chw32",
    "channel % 8 == 0": "hwc8",
    "channel % 16 == 0": "hwc16",
    "Channel major": "nhwc",
}
"""How an inspector describes the formats, the first that fits."""
_REMOVED = 0.8
"""How much of a conversion is saved where its layer is no longer needed; moving what is left takes time."""
_LEAST_SHARE = 0.002
"""Of the time; less is lost in noise."""


def propose_io_types(situation: Situation) -> Iterator[Change]:
    """Types and formats of inputs and outputs, where the engine converts or copies them."""
    evidence, recipe = situation.evidence, situation.recipe
    exchanged = [(one, True) for one in situation.inputs] + [(one, False) for one in situation.outputs]
    for spec, is_input in exchanged:
        if spec.dtype not in ("float32", "float16") or spec.name in recipe.io:
            continue
        converting = [
            layer
            for layer in evidence.layers
            if layer.is_reformat
            and any(tensor.name == spec.name for tensor in (layer.inputs if is_input else layer.outputs))
        ]
        converted = evidence.share_of(converting)
        copied = situation.copied.get(spec.name, 0.0)
        if max(converted, copied) < _LEAST_SHARE:
            continue
        layouts = {_inner_layout(layer, is_input) for layer in converting}
        for dtype, layout in _io_formats(situation, spec, layouts, is_input):
            gain = converted * _REMOVED + copied * (1 - bits(dtype) / bits(spec.dtype))
            text = _SHORT[dtype] + (f":{layout}" if layout else "")
            is_named = bool(layouts) and layout in (*layouts, "")
            # INT8 values are exchanged with one graph: there is no float one to select from
            is_fixed = dtype == "int8" and situation.selected is not None
            own = {"precision": situation.selected, "verdict": False} if is_fixed else {}
            yield Change(
                f"io {spec.name}={text}",
                recipe={"io": {**recipe.io, spec.name: text}, **own},
                prior=Prior(gain, 0.5 if is_named else 0.25, loss=0.03, risk=0.2),
                evidence=f"converting {spec.name} takes {converted:.1%} of the layers' time, "
                f"copying {copied:.1%} of a query",
            )


def _inner_layout(layer: ProfiledLayer, is_input: bool) -> str:
    """The layout on the engine's side of a conversion; empty where the inspector does not say."""
    inner = layer.outputs if is_input else layer.inputs
    text = inner[0].format if inner else ""
    return next((layout for words, layout in _WORDS.items() if words in text), "")


def _io_formats(
    situation: Situation, spec: TensorSpec, made: set[str], is_input: bool
) -> Iterator[tuple[str, str]]:
    """Types and layouts to try: what the conversion makes, else the types of the graph, with each layout."""
    target = target_of(situation.backend)
    can_vectorise = situation.backend.name != ONNXRUNTIME and len(spec.shape) == IMAGE_RANK
    dtypes = ["float16"]
    readers = situation.evidence.graph.consumers.get(spec.name, ())
    is_quantized_first = bool(readers) and all(reader.op == QUANTIZE for reader in readers)
    # or other Q/DQ may come out where the graph is made again without selecting among precisions
    is_kept_quantized = situation.selected in (None, "int8")
    if is_input and is_quantized_first and is_kept_quantized:
        dtypes.insert(0, "int8")
    for dtype in dtypes:
        if dtype not in target.io_formats:
            continue
        if dtype != spec.dtype:
            yield dtype, ""
        if not can_vectorise:
            continue
        known = target.io_formats[dtype]
        if situation.data is None:  # samples keep their layout
            known = (*known, "nhwc")
        wanted = made - {""} or set(known) & VECTORS.keys()
        yield from ((dtype, layout) for layout in known if layout in wanted)


IO_TYPES = Kind("io-types", Prior(0.02, 0.3), 1.2, propose_io_types)


# ── rewrite-rule ────────────────────────────────────────────────────────────────────────────────────────────

_SAVED = 0.15
"""Of the time of the layers that a rule touches, what it saves if it works."""
_REMEMBERED = 512


def propose_rules(situation: Situation) -> Iterator[Change]:
    """Rules that builds leave out and that find something in the model, in front of any precision, each.

    Behind it some find nothing: Q, K and V of INT8, for instance, have no constant weights (`merge-matmuls`:
    BERT-base in INT8 took 11 % less time at batch 8, TensorRT 8.6, benchmarks/kernels).
    """
    target, evidence, added = target_of(situation.backend).name, situation.evidence, situation.recipe.add_rule
    for rule in RULES:
        if rule.is_built_in(target) or rule.name in added:
            continue
        nodes = _nodes_of_rule(evidence.model, evidence.model_sha256, rule.name, target)
        if not nodes:
            continue
        usual, known = REWRITE.prior, bool(evidence.layers)
        share = evidence.share_of(evidence.covering(nodes))
        gain = _SAVED * share if known else usual.gain
        yield Change(
            f"add-rule={rule.name}",
            recipe={"add_rule": (*added, rule.name)},
            prior=Prior(gain, usual.probability, max(gain, 0.01), usual.risk),
            evidence=f"it changes {len(nodes)} places" + (f", in {share:.1%} of the time" if known else ""),
        )


@lru_cache(_REMEMBERED)
def _nodes_of_rule(model: Path, sha256: str, rule: str, target: str) -> tuple[str, ...]:
    """The nodes at which a rule applies; `sha256`: graphs lie in one place one after the other."""
    wanted = [one for one in RULES if one.name == rule]
    try:
        outcome = rewrite(load(model), wanted, target_named(target))
    except RuleFailed:
        return ()
    return tuple(one.node for one in outcome.applied)


REWRITE = Kind("rewrite-rule", Prior(0.03, 0.15), 1.5, propose_rules)
