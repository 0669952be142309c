"""Which nodes become 16-bit, and for each that does not, the rule and the reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress

import onnx

from trtopt.onnxio.graph_walk import OWN_DOMAINS, DisjointNames, attribute, graphs_of, opset_of, subgraphs_of
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.shape_inference import FLOAT, LOW
from trtopt.precision.casting.rules import (
    Fit,
    Places,
    exact_integers,
    fit_of,
    gelus_between_products,
    largest,
    places_of,
    rounding_error,
    takes,
)
from trtopt.precision.placement.draft import check_patterns, matching
from trtopt.records.precision import CastPrecision, KeepRule, KeptNode
from trtopt.targets import target_named

NEVER = {
    "Range": "steps of a range add up their rounding",
    "CumSum": "running sums add up their rounding",
    "NonMaxSuppression": "boxes are coordinates",
    "RoiAlign": "regions are coordinates",
    "GridSample": "grids are coordinates",
    "AffineGrid": "grids are coordinates",
    "BitCast": "its bits are reinterpreted, not its values",
    "MeanVarianceNormalization": "runtimes add an FP32 constant to its variance",
    "If": "control flow keeps the types of what enters and leaves it",
    "Loop": "control flow keeps the types of what enters and leaves it",
    "Scan": "control flow keeps the types of what enters and leaves it",
}
_NEVER_GROUPS = ("Random", "Multinomial", "Bernoulli", "EyeLike", "Sequence", "Optional", "SplitToSequence",
                 "ConcatFromSequence")  # fmt: skip
_SCATTERS = ("ScatterND", "ScatterElements")
_RECURRENT = ("LSTM", "GRU", "RNN")
_READERS = ("Shape", "Size")
"""Operators that read a tensor of any type and make nothing of it."""
HEAVY = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", *_RECURRENT, "Attention"}
"""Operators for which 16 bits pay; what only surrounds FP32 nodes is not worth casts."""
QDQ = ("QuantizeLinear", "DequantizeLinear")
_FLOORS = ("Add", "Max", "Clip")
"""Operators that keep a tensor above a small constant."""
_STEEP = {"Log": 0, "Reciprocal": 0, "Sqrt": 0, "Pow": 0, "Div": 1}
"""Operators that need such a tensor above 0, and which of their inputs it is."""
_SCALE_ERROR = 0.01
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_PERIODIC = ("Sin", "Cos", "Tan")
_ANGLE_ERROR = 1 / 32
"""Of the largest exact whole number: 64 in FP16, whose rounding there is 1/64 of a radian at most."""
HEADROOM = 4.0
"""By default a value may reach the type's largest over this: data to come may be larger than data seen."""


@dataclass(frozen=True)
class CastOptions:
    """What the user requests; patterns are shell-style globs on node names, or operators."""

    precision: CastPrecision
    target: str
    threshold: float | None = None
    keep: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    """An earlier decision's nodes: these become 16-bit, islands too, and all others stay FP32."""
    accurate: frozenset[str] = frozenset()
    """What stays FP32 for the outputs' accuracy."""
    cast_io: bool = False
    """Whether inputs and outputs of the model become 16-bit too."""

    @property
    def low(self) -> int:
        """ONNX's number of the type."""
        return LOW[self.precision]

    def includes(self, node: onnx.NodeProto) -> bool:
        """Whether the node becomes 16-bit whatever its weights and values."""
        return matching(node, self.include) is not None

    def check(self, model: onnx.ModelProto) -> None:
        """Refuse patterns that match no node of the model and its subgraphs."""
        nodes = (node for part in graphs_of(model.graph) for node in part.node)
        check_patterns(nodes, self.keep, self.include)


@dataclass(frozen=True)
class CastDecision:
    """The nodes that become 16-bit, where each of them does, those that stay FP32, and how weights fit.

    `fits` are of weights that become 16-bit.
    """

    places: dict[str, Places]
    kept: tuple[KeptNode, ...]
    untouched: int
    fits: dict[str, Fit]


class CastDecider:
    """Decides node by node; all it knows of the values are `ranges`, the largest |x| of tensors.

    None: nothing was run, and operators and weights decide. Else what lies in a subgraph, which is not
    measured, stays FP32.
    """

    def __init__(
        self,
        model: ModelFile,
        types: Mapping[str, int],
        ranges: Mapping[str, float] | None,
        cast_options: CastOptions,
    ) -> None:
        self._model, self._types, self._options = model, types, cast_options
        self._ranges = ranges
        self._opset = opset_of(model.proto)
        self._unmeasured = {} if ranges is None else self._unmeasured_nodes()
        self._limits = self._limits_of_uses()
        self._weights = {
            item.name: item
            for part in graphs_of(model.proto.graph)
            for item in part.initializer
            if item.data_type == FLOAT
        }
        self._fits: dict[str, Fit] = {}
        self._limit = largest(cast_options.low)
        self._threshold = (
            cast_options.threshold if cast_options.threshold is not None else self._limit / HEADROOM
        )

    def decide(self) -> CastDecision:
        """Decide every node of the graph and its subgraphs."""
        places: dict[str, Places] = {}
        kept: dict[str, KeptNode] = {}
        untouched = 0
        for part in graphs_of(self._model.proto.graph):
            nodes = {node.name: node for node in part.node}
            inner: dict[str, Places] = {}
            for node in part.node:
                can = places_of(node, self._opset, self._options.low, self._types)
                touched = (self._types.get(name) for name in (*node.input, *node.output))
                if FLOAT not in touched or node.op_type in _READERS:
                    untouched += 1
                elif (why := self._why_not(node, can)) is not None:
                    kept[node.name] = _kept(node, *why)
                elif not can.any:
                    untouched += 1
                else:
                    inner[node.name] = can
            for name, reason in self._above_zero(part.node, inner).items():
                kept[name] = _kept(nodes[name], "weight", reason)
                del inner[name]
            gelus = set[str]()  # they become part of a quantised product where they are cast
            if target_named(self._options.target).half_gelu_pays:
                gelus = gelus_between_products(part.node, inner, {item.name for item in part.initializer})
            for name in self._next_to_quantized(part.node, inner):
                if name not in gelus and self._options.only is None:
                    reason = "its Q/DQ stay FP32, and casts would part them"
                    kept[name] = _kept(nodes[name], "quantised", reason)
                    del inner[name]
            for name in islands(part.node, inner, self._edge(part)):
                is_free = self._options.only is not None or name in gelus
                if not is_free and not self._options.includes(nodes[name]):
                    reason = "between FP32 nodes, with nothing heavy in between: casts would cost more"
                    kept[name] = _kept(nodes[name], "island", reason)
                    del inner[name]
            places |= inner
        return CastDecision(places, tuple(kept.values()), untouched, self._fits_of(places))

    def _unmeasured_nodes(self) -> dict[str, str]:
        """Nodes of subgraphs, whose values are not measured, and where they are."""
        found: dict[str, str] = {}
        for around in graphs_of(self._model.proto.graph):
            for outer in around.node:
                for part in subgraphs_of(outer):
                    why = f"values inside {outer.op_type} are not measured"
                    found |= dict.fromkeys((node.name for node in part.node), why)
        return found

    def _limits_of_uses(self) -> dict[str, tuple[float, str]]:
        """The largest |x| of tensors for which a rounding that other tensors bear is too coarse, and why."""
        exact = exact_integers(self._options.low)
        found: dict[str, tuple[float, str]] = {}
        for part in graphs_of(self._model.proto.graph):
            for node in part.node:
                if node.op_type == "Cast":
                    ends = (node.input[0], node.output[0])
                    if any(self._types.get(name) in _INTEGERS for name in ends):
                        found |= dict.fromkeys(ends, (exact, "whole numbers are exact up to"))
                elif node.op_type in _PERIODIC:
                    found.setdefault(node.input[0], (exact * _ANGLE_ERROR, "angles are exact enough up to"))
        return found

    def _fits_of(self, places: Mapping[str, Places]) -> dict[str, Fit]:
        """Of the weights that have been looked at, those that some node reads in 16 bits."""
        lowered: set[str] = set()
        for part in graphs_of(self._model.proto.graph):
            for node in part.node:
                if node.name in places:
                    lowered |= set(compress(node.input, places[node.name].inputs))
        return {name: fit for name, fit in self._fits.items() if name in lowered}

    def _edge(self, part: onnx.GraphProto) -> set[str]:
        """The graph's inputs and outputs that stay FP32."""
        if self._options.cast_io and part is self._model.proto.graph:
            return set()
        names = (item.name for item in (*part.input, *part.output))
        return {name for name in names if self._types.get(name) == FLOAT}

    def _why_not(self, node: onnx.NodeProto, can: Places) -> tuple[KeepRule, str] | None:
        """The rule that keeps the node FP32, and the reason; None if none does."""
        if node.domain not in OWN_DOMAINS or takes(node.op_type, self._opset, self._options.low) is None:
            return "operator", f"{node.op_type} is not ONNX's own: what types it takes is not known"
        if node.op_type in NEVER:
            return "operator", NEVER[node.op_type]
        if node.op_type in _SCATTERS and attribute(node, "reduction", b"none") != b"none":
            return "operator", "what meets at an index is combined: ONNX Runtime has no 16-bit form"
        if node.op_type in _RECURRENT and any(node.input[4:5]):
            return "operator", "TensorRT puts FP32 zeros behind the end that sequence_lens gives"
        if node.op_type.startswith(_NEVER_GROUPS):
            return "operator", "random values, sequences and the like keep their types"
        if node.op_type in QDQ and (reason := self._scale_fault(node, can)):
            return "quantised", reason
        if not can.any:
            taken = takes(node.op_type, self._opset, self._options.low)
            if node.op_type in HEAVY or not taken:
                type_name = self._options.precision.upper()
                return "opset", f"{node.op_type} takes no {type_name} at opset {self._opset}"
            return None
        if self._options.only is not None:
            return None if node.name in self._options.only else ("pattern", "it is not among those requested")
        if self._options.includes(node):
            return None
        if node.name in self._options.accurate:
            return "accuracy", "in 16 bits the outputs would be too inaccurate"
        if pattern := matching(node, self._options.keep):
            return "pattern", f"--exclude {pattern}"
        return self._weight_fault(node, can) or self._range_fault(node)

    def _scale_fault(self, node: onnx.NodeProto, can: Places) -> str | None:
        if not target_named(self._options.target).half_scales:
            return f"TensorRT {self._options.target} takes FP32 scales"
        if not can.inputs[1]:
            return f"at opset {self._opset} scales are FP32; from opset 19 on they may be 16-bit"
        scale = self._weights.get(node.input[1])
        if scale is not None:
            peak = self._fit(scale.name).largest
            if peak > self._limit:
                return f"scale {scale.name!r} is too large: it reaches {peak:.3g}, beyond {self._limit:.5g}"
            error = rounding_error(array_of(scale, self._model.folder), self._options.low)
            if error > _SCALE_ERROR:
                return f"scale {scale.name!r} is too small: 16 bits change it by {error:.0%}"
        return None

    def _weight_fault(self, node: onnx.NodeProto, can: Places) -> tuple[KeepRule, str] | None:
        for name, is_place in zip(node.input, can.inputs, strict=True):
            if not is_place or name not in self._weights:
                continue
            fit = self._fit(name)
            if fit.largest > self._limit:
                return "weight", f"weight {name!r} reaches {fit.largest:.3g}, beyond {self._limit:.5g}"
            if fit.vanishes:
                return "weight", f"weight {name!r} would become 0"
        return None

    def _fit(self, name: str) -> Fit:
        if name not in self._fits:
            array = array_of(self._weights[name], self._model.folder)
            self._fits[name] = fit_of(array, self._options.low)
        return self._fits[name]

    def _range_fault(self, node: onnx.NodeProto) -> tuple[KeepRule, str] | None:
        if node.name in self._unmeasured:
            return "unmeasured", self._unmeasured[node.name]
        if self._ranges is None:
            return None
        for name in (*node.output, *node.input):
            peak = self._ranges.get(name)
            if peak is None:
                if self._types.get(name) == FLOAT and name not in self._weights:
                    return "unmeasured", f"tensor {name!r} was not measured"
                continue
            limit, what = self._limits.get(name, (math.inf, ""))
            if peak > limit:
                return "range", f"tensor {name!r} reaches {peak:.4g}, {what} {limit:.5g}"
            if peak > self._threshold:
                return "range", f"tensor {name!r} reaches {peak:.4g}, beyond {self._threshold:.5g}"
        return None

    def _above_zero(self, nodes: Iterable[onnx.NodeProto], low: Mapping[str, Places]) -> dict[str, str]:
        """16-bit nodes that would read 0 where a constant that 16 bits lose keeps FP32 above it; reasons."""
        if self._options.only is not None:
            return {}
        nodes = list(nodes)
        floors = {
            node.output[0]: name
            for node in nodes
            if node.op_type in _FLOORS and node.name not in low
            for name in node.input
            if name in self._weights and self._fit(name).vanishes
        }
        found = {}
        for node in nodes:
            place = _STEEP.get(node.op_type)
            if place is None or node.name not in low or self._options.includes(node):
                continue
            floor = floors.get(node.input[place])
            if floor is not None:
                found[node.name] = (
                    f"its input {node.input[place]!r} may be as small as {floor!r}, which would become 0"
                )
        return found

    def _next_to_quantized(self, nodes: Iterable[onnx.NodeProto], low: Mapping[str, Places]) -> list[str]:
        """16-bit nodes that read a DQ, or make what a Q reads, which stays FP32."""
        wide = [node for node in nodes if node.op_type in QDQ and node.name not in low]
        touched = {name for node in wide if node.op_type == QDQ[1] for name in node.output}
        wanted = {node.input[0] for node in wide if node.op_type == QDQ[0]}
        return [
            node.name
            for node in nodes
            if node.name in low and (not touched.isdisjoint(node.input) or not wanted.isdisjoint(node.output))
        ]


def _kept(node: onnx.NodeProto, rule: KeepRule, reason: str) -> KeptNode:
    return KeptNode(node=node.name, op=node.op_type, rule=rule, reason=reason)


def islands(nodes: Iterable[onnx.NodeProto], low: Mapping[str, Places], edge: set[str]) -> list[str]:
    """16-bit nodes that hang together, none of them heavy, with FP32 before and after them.

    `edge` are the graph's inputs and outputs that stay FP32; where nothing but they is FP32 around the nodes,
    the casts are due anyway, and it is no island.
    """
    nodes = list(nodes)
    makers = {name: node for node in nodes for name in node.output if name}
    groups = DisjointNames(low)
    before: set[str] = set()
    after: set[str] = set()
    inner: set[str] = set()  # next to an FP32 node, not only the graph's edge
    for node in nodes:
        mine = low.get(node.name)
        if mine is not None and (not any(mine.outputs) or not edge.isdisjoint(node.output)):
            after.add(node.name)  # nothing 16-bit comes of comparisons and the like
        for index, name in enumerate(node.input):
            takes_low = mine is not None and mine.inputs[index]
            maker = makers.get(name)
            if maker is None:
                before |= {node.name} if takes_low and name in edge else set()
                continue
            theirs = low.get(maker.name)
            made_low = theirs is not None and theirs.outputs[list(maker.output).index(name)]
            if made_low and takes_low:
                groups.join(node.name, maker.name)
            elif made_low:
                after.add(maker.name)
                inner.add(maker.name)
            elif takes_low:
                before.add(node.name)
                inner.add(node.name)
    heavy = {groups.root(node.name) for node in nodes if node.name in low and node.op_type in HEAVY}
    starts, ends, enclosed = ({groups.root(name) for name in names} for names in (before, after, inner))
    return [name for name in low if groups.root(name) in (starts & ends & enclosed) - heavy]
