"""Kinds of candidates: what of the graph, of the builder and of how the engine is run may be changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtopt.builder_settings import SETTINGS
from trtopt.device.backends import precisions_on
from trtopt.inspect.graph import QUANTIZE
from trtopt.inspect.layers import bits
from trtopt.measure.contracts import THRESHOLD
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
from trtopt.workflows.tune.candidates import BUILD_SPREAD, Change, Evidence, Kind, Prior, Situation

# ── precision ───────────────────────────────────────────────────────────────────────────────────────────────

_NUMPY = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
_HALF = {"float16", "bfloat16"}
_ON_GPUS = ("fp16", "bf16")
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


# ── batch ───────────────────────────────────────────────────────────────────────────────────────────────────

_GROWING = 0.8
"""The share of a query's time that grows with the batch, where no roofline is known."""
_LEAST_GAIN = 0.01
"""Of a batch size that is not expected to gain: what is left out of the model may."""


def propose_batches(situation: Situation) -> Iterator[Change]:
    """Other batch sizes, where a rate is the objective."""
    if not situation.is_rate:
        return
    share = growing_share(situation)
    for size in situation.batches:
        if size == situation.batch:
            continue
        gain = per_sample_gain(share, situation.batch, size)
        yield Change(
            f"batch={size}",
            recipe={"batch": (size,)},
            prior=Prior(gain, 0.6, 0.05, 0.2) if gain > 0 else Prior(_LEAST_GAIN, 0.1, -gain or 0.05, 0.7),
            evidence=f"{share:.0%} of a query's time grows with the batch",
        )


def growing_share(situation: Situation) -> float:
    """Of a query's time: that of the roofline's floor; the rest is overhead of launches and small kernels."""
    floor, latency = situation.evidence.floor_ms, situation.evidence.latency_ms
    if floor is None or not latency:
        return _GROWING
    return min(1.0, max(floor / latency, _GROWING / 2))


def per_sample_gain(share: float, before: int, after: int) -> float:
    """The share of a sample's time that another batch size saves, by a latency a + b · batch."""
    return (1 - share) * (1 - before / after)


BATCH = Kind("batch", Prior(0.2, 0.4), 1, propose_batches)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────

_COUNTS = (2, 4)
_FILLED = 0.5
"""Of what one stream leaves idle, what others fill."""


def propose_streams(situation: Situation) -> Iterator[Change]:
    """Several streams, where queries can overlap."""
    if not situation.is_rate or situation.backend.name == ONNXRUNTIME:  # which runs one query after another
        return
    idle = 1 - growing_share(situation)
    for count in _COUNTS:
        if count != situation.streams:
            gain = min(1 - situation.streams / count, idle * _FILLED) if count > situation.streams else 0.01
            yield Change(
                f"streams={count}",
                streams=count,
                prior=Prior(gain, 0.4, loss=0.05, risk=0.2),
                evidence=f"{idle:.0%} of a query's time is not work at the device's rate",
            )


STREAMS = Kind("streams", Prior(0.1, 0.4), 0, propose_streams)


# ── builder-setting ─────────────────────────────────────────────────────────────────────────────────────────

_EXTERNAL = "CUBLAS"
"""Among the tactic sources of versions that can use other libraries."""
_PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum"}
"""What those libraries compute."""
_PER_NODE_MS = 0.005
"""What waking other threads for a node, or a kernel's launch, takes."""
_LEVEL_BUILDS = {5: 2.0, 4: 1.5}
"""By optimisation level, what takes longer: for ResNet-50 these candidates took 242 and 199 s, FP16 163 s."""
_Setting = tuple[str, Any, Prior, str]


def propose_settings(situation: Situation) -> Iterator[Change]:
    """Settings of the builder: what the backend's version has, by the tables of settings and targets."""
    values = _onnxruntime(situation) if situation.backend.name == ONNXRUNTIME else _tensorrt(situation)
    for name, value, prior, evidence in values:
        if getattr(situation.recipe, name) == value:
            continue
        text = ",".join(value) if isinstance(value, tuple) else value
        yield Change(
            f"{name}={text}",
            recipe={name: value},
            prior=prior,
            builds=_LEVEL_BUILDS[value] if name == "opt_level" else None,
            evidence=evidence,
        )


def _tensorrt(situation: Situation) -> Iterator[_Setting]:
    evidence, recipe, target = situation.evidence, situation.recipe, target_of(situation.backend)
    above = _above_floor(evidence)
    text = _if_profiled(evidence, f"layers take {above:.0%} more than the roofline's floor")
    yield "opt_level", 5, Prior(0.05 * (0.2 + above), 0.3), text
    if recipe.opt_level != 5:  # which searches all that level 4 does
        yield "opt_level", 4, Prior(0.04 * (0.2 + above), 0.25), text
    beside = parallel_share(evidence)
    text = _if_profiled(evidence, f"{beside:.0%} of the layers' time lies off the longest path")
    yield "aux_streams", 0, Prior(0.005 + 0.1 * beside, 0.2, 0.02 + 0.3 * beside, 0.25), text
    for count, likely in ((1, 0.3), (4, 0.2)):
        yield "aux_streams", count, Prior(0.005 + 0.3 * beside, likely, 0.02, 0.25), text
    if target.tiling:
        known = [layer for layer in evidence.layers if layer.cost is not None and layer.cost.bound]
        bound = _share(evidence, known, lambda one: one.cost is not None and one.cost.bound == "memory")
        text = _if_profiled(evidence, f"{bound:.0%} of the time is in layers bound by memory")
        choices = next(one.choices for one in SETTINGS if one.name == "tiling")
        for level, likely in zip(reversed(choices), (0.3, 0.25, 0.2), strict=False):
            yield "tiling", level, Prior(0.01 + 0.1 * bound, likely, 0.02, 0.15), text
    if _EXTERNAL in target.tactic_sources:
        share = _share(evidence, evidence.layers, lambda one: not _PRODUCTS.isdisjoint(one.onnx_ops))
        text = _if_profiled(evidence, f"{share:.0%} of the time is in products and convolutions")
        yield "tactic_sources", target.tactic_sources, Prior(0.05 * share, 0.15), text


def _onnxruntime(situation: Situation) -> Iterator[_Setting]:
    cores, evidence = situation.cores, situation.evidence
    nodes, total_ms = len(evidence.layers), evidence.total_ms
    waking = min(1.0, _PER_NODE_MS * nodes / total_ms) if total_ms else 0.2
    spent = f"waking threads may be {waking:.0%} of the {total_ms:.3g} ms that {nodes} nodes take"
    for count in sorted({1, 2, cores // 2, cores}):
        if 1 <= count < cores:
            slower = Prior(waking, 0.3 * waking + 0.05, 1 - count / cores, 0.9 * (1 - waking) + 0.05)
            yield "intra_op_threads", count, slower, _if_profiled(evidence, spent)
        elif count == cores:
            same = Prior(0.02, 0.05, 0.02, 0.1)
            yield "intra_op_threads", count, same, "the default where nothing else runs"
    if situation.recipe.graph_optimization is not None:
        yield "graph_optimization", "all", Prior(0.1, 0.6, 0.05, 0.1), "the default, which the recipe lowers"


def _if_profiled(evidence: Evidence, text: str) -> str:
    """What the layers say; nothing without a profile."""
    return text if evidence.layers else ""


def _above_floor(evidence: Evidence) -> float:
    """The share of the layers' time above the roofline's floor; a half where that is not known."""
    floor = evidence.floor_ms
    return 0.5 if floor is None or not evidence.total_ms else max(0.0, 1 - floor / evidence.total_ms)


def _share(
    evidence: Evidence, known: Collection[ProfiledLayer], is_one: Callable[[ProfiledLayer], bool]
) -> float:
    """The share of the time in some of the layers of which that is known; a half where it is of none."""
    return evidence.share_of([one for one in known if is_one(one)]) if known else 0.5


def parallel_share(evidence: Evidence) -> float:
    """The share of the layers' time off the longest path: what running branches at once can save at most.

    A layer's time counts at the first of its nodes.
    """
    if not evidence.total_ms:
        return 0.0
    own: dict[str, float] = {}
    for layer in evidence.layers:
        if layer.onnx_nodes:
            own[layer.onnx_nodes[0]] = own.get(layer.onnx_nodes[0], 0.0) + (layer.ms or 0.0)
    ends: dict[str, float] = {}
    for node in evidence.graph.nodes:
        begun = max((ends.get(name, 0.0) for name in node.inputs), default=0.0)
        ends.update(dict.fromkeys(node.outputs, begun + own.get(node.name, 0.0)))
    mapped = sum(own.values())
    return max(0.0, (mapped - max(ends.values(), default=0.0)) / evidence.total_ms) if mapped else 0.0


SETTING = Kind("builder-setting", Prior(0.03, 0.15, 0.1, 0.3), 1, propose_settings)


# ── build-lottery ───────────────────────────────────────────────────────────────────────────────────────────

_BUILDS = (2, 3, 4)


def propose_builds(situation: Situation) -> Iterator[Change]:
    """Further builds of the incumbent: two builds of TensorRT differ."""
    if situation.backend.name == ONNXRUNTIME:  # whose builds are all alike
        return
    spread = situation.build_spread
    for number in _BUILDS:
        yield Change(
            f"build {number}",
            fresh=True,
            prior=better_build(spread, situation.threshold),
            evidence=f"builds of one graph differ by {spread:.1%} (standard deviation)",
        )


def better_build(spread: float, threshold: float) -> Prior:
    """What one more build is worth: its gain over the incumbent's is normal, with a spread of √2 builds.

    Gains below the threshold are not taken; the gain is the mean of those above.
    """
    deviation = max(spread, 1e-6) * math.sqrt(2)
    least = threshold / deviation
    probability = math.erfc(least / math.sqrt(2)) / 2
    density = math.exp(-least * least / 2) / math.sqrt(2 * math.pi)
    mean = deviation * density / probability if probability > 1e-12 else threshold
    return Prior(max(mean, threshold), probability, max(mean, threshold), probability)


LOTTERY = Kind("build-lottery", better_build(BUILD_SPREAD, THRESHOLD), 1, propose_builds)


KINDS = (PRECISION, PLACEMENT, IO_TYPES, BATCH, STREAMS, SETTING, REWRITE, LOTTERY)
"""All kinds of candidates, in the order in which equal ones are tried."""
