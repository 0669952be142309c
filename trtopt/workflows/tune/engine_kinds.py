"""Kinds of candidates that leave the graph unchanged: batch sizes, streams, builder settings, more builds."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from trtopt.builder_settings import SETTINGS
from trtopt.measure.contracts import THRESHOLD
from trtopt.records import ProfiledLayer
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.candidates import BUILD_SPREAD, Change, Evidence, Kind, Prior, Situation

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
