"""Settings of the builder: what the backend's version has, by the tables of settings and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.builder.build_routes import with_option
from trtopt.builder_settings import SETTINGS
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.evidence import Evidence
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_EXTERNAL = "CUBLAS"
"""Among the tactic sources of versions that can use other libraries."""
_PRODUCTS = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum"}
"""What those libraries compute."""
_PER_NODE_MS = 0.005
"""What waking other threads for a node, or a kernel's launch, takes."""
_LEVEL_BUILDS = {5: 2.0, 4: 1.5}
"""By optimisation level, what takes longer: for ResNet-50 these candidates took 242 and 199 s, FP16 163 s."""
_QUEUEING = 1.0
"""What parallel execution costs where it harms: on small models it cost 4 to 124 times as much."""
_Setting = tuple[str, Any, Prior, str]


def _changes(situation: Situation) -> Iterator[Change]:
    values = _onnxruntime(situation) if situation.backend.name == ONNXRUNTIME else _tensorrt(situation)
    for name, value, prior, evidence in values:
        if getattr(situation.recipe, name) == value:
            continue
        text = ",".join(value) if isinstance(value, tuple) else value
        yield Change(
            "builder-setting",
            f"{name}={text}",
            recipe={name: value},
            prior=prior,
            builds=_LEVEL_BUILDS[value] if name == "opt_level" else None,
            evidence=evidence,
        )


def _tensorrt(situation: Situation) -> Iterator[_Setting]:
    evidence, target = situation.evidence, target_of(situation.backend)
    above = _above_floor(evidence)
    text = f"layers take {above:.0%} more than the roofline's floor" if evidence.layers else ""
    yield "opt_level", 5, Prior(0.05 * (0.2 + above), 0.3), text
    if situation.recipe.opt_level != 5:  # which searches all that level 4 does
        yield "opt_level", 4, Prior(0.04 * (0.2 + above), 0.25), text
    beside = parallel_share(evidence)
    text = f"{beside:.0%} of the layers' time lies off the longest path" if evidence.layers else ""
    yield "aux_streams", 0, Prior(0.005 + 0.1 * beside, 0.2, 0.02 + 0.3 * beside, 0.25), text
    for count, likely in ((1, 0.3), (4, 0.2)):
        yield "aux_streams", count, Prior(0.005 + 0.3 * beside, likely, 0.02, 0.25), text
    if target.tiling:
        bound = _memory_share(evidence)
        text = f"{bound:.0%} of the time is in layers bound by memory" if evidence.layers else ""
        choices = next(one.choices for one in SETTINGS if one.name == "tiling")
        for level, likely in zip(reversed(choices), (0.3, 0.25, 0.2), strict=False):
            yield "tiling", level, Prior(0.01 + 0.1 * bound, likely, 0.02, 0.15), text
        yield from _l2_limits(situation)
    if _EXTERNAL in target.tactic_sources:
        share = _product_share(evidence)
        text = f"{share:.0%} of the time is in products and convolutions" if evidence.layers else ""
        yield "tactic_sources", target.tactic_sources, Prior(0.05 * share, 0.15), text
    for option in situation.build_options:
        route = with_option(situation.recipe.build_route, option)
        yield "build_route", route, Prior(0.02, 0.05, 0.05, 0.2), "an internal option of the builder"
    if situation.recipe.workspace_mib is not None:
        text = f"the baseline is limited to {situation.recipe.workspace_mib} MiB"
        yield "workspace_mib", None, Prior(0.03, 0.3, 0.02, 0.1), text


def _l2_limits(situation: Situation) -> Iterator[_Setting]:
    """A stream's share of the cache: layers that are tiled for all of it evict those of other streams."""
    cache, streams = situation.device.cache_bytes, situation.streams
    if cache is None or streams < 2 or situation.recipe.tiling in (None, "none"):
        return
    share = max(1, cache // streams >> 20)
    yield "l2_limit_mib", share, Prior(0.02, 0.2), f"{streams} streams share {cache >> 20} MiB of cache"


def _onnxruntime(situation: Situation) -> Iterator[_Setting]:
    cores, evidence = situation.cores, situation.evidence
    waking = min(1.0, _PER_NODE_MS * len(evidence.layers) / evidence.total_ms) if evidence.total_ms else 0.2
    text = (
        f"waking threads may be {waking:.0%} of the {evidence.total_ms:.3g} ms that "
        f"{len(evidence.layers)} nodes take"
        if evidence.layers
        else ""
    )
    for count in sorted({1, 2, cores // 2, cores}):
        if 1 <= count < cores:
            slower = Prior(waking, 0.3 * waking + 0.05, 1 - count / cores, 0.9 * (1 - waking) + 0.05)
            yield "intra_op_threads", count, slower, text
        elif count == cores:
            same = Prior(0.02, 0.05, 0.02, 0.1)
            yield "intra_op_threads", count, same, "the default where nothing else runs"
    if situation.recipe.graph_optimization is not None:
        yield "graph_optimization", "all", Prior(0.1, 0.6, 0.05, 0.1), "the default, which the recipe lowers"
    fused = _fused_share(evidence)
    text = f"{fused:.0%} of the time is in layers that are fused of several nodes" if evidence.layers else ""
    for level, risk in (("extended", 0.4), ("basic", 0.6), ("disable", 0.8)):
        prior = Prior(0.02, 0.05, 0.05 + 0.5 * fused, 0.1 + risk * min(1.0, 2 * fused))
        yield "graph_optimization", level, prior, text
    beside = parallel_share(evidence)
    text = f"{beside:.0%} of the layers' time lies off the longest path" if evidence.layers else ""
    parallel = Prior(0.01 + 0.5 * beside, 0.05 + 0.4 * beside, _QUEUEING, 0.6 * (1 - beside))
    yield "execution_mode", "parallel", parallel, text


def _above_floor(evidence: Evidence) -> float:
    """The share of the layers' time above the roofline's floor; a half where that is not known."""
    floor = evidence.floor_ms
    return 0.5 if floor is None or not evidence.total_ms else max(0.0, 1 - floor / evidence.total_ms)


def _memory_share(evidence: Evidence) -> float:
    """The share of the time in layers that memory bounds; a half where floors are not known."""
    known = [layer for layer in evidence.layers if layer.cost is not None and layer.cost.bound]
    if not known:
        return 0.5
    return evidence.share_of([one for one in known if one.cost is not None and one.cost.bound == "memory"])


def _product_share(evidence: Evidence) -> float:
    """The share of the time in matrix products and convolutions; a half where layers are not known."""
    if not evidence.layers:
        return 0.5
    return evidence.share_of([one for one in evidence.layers if not _PRODUCTS.isdisjoint(one.onnx_ops)])


def _fused_share(evidence: Evidence) -> float:
    """The share of the time in layers of several nodes; a half where layers are not known."""
    if not evidence.layers:
        return 0.5
    return evidence.share_of([one for one in evidence.layers if len(one.onnx_nodes) > 1])


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


KIND = Kind("builder-setting", Prior(0.03, 0.15, 0.1, 0.3), 1, _changes)
