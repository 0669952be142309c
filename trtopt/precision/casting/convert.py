"""A graph with 16-bit types written into it, with as few casts as its nodes' types need.

A tensor keeps its name in the type that its node makes; where other nodes need the other type, one Cast a
tensor and graph gives it under the name with `:fp16`, `:bf16` or `:fp32` behind it. Weights are converted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace

import onnx

from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import attribute, graphs_of, names_in, refill, subgraphs_of, take_name
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, check, types_of
from trtopt.onnxio.weights import converted
from trtopt.precision.casting.decide import HEAVY, CastDecider, CastDecision, CastOptions
from trtopt.precision.casting.rules import Places
from trtopt.records.precision import Decision, KeptNode

_READS_ANY = ("Cast", "Shape", "Size")
_SUFFIX: dict[int, str] = {
    onnx.TensorProto.FLOAT16: ":fp16",
    onnx.TensorProto.BFLOAT16: ":bf16",
    FLOAT: ":fp32",
}


def cast_graph(
    model: ModelFile, ranges: Mapping[str, float] | None, cast_options: CastOptions
) -> tuple[ModelFile, CastDecision]:
    """Cast a prepared model in memory; its spool takes large weights.

    `ranges`: the largest |x| by tensor, None where nothing was run.
    """
    cast_options.check(model.proto)
    types = types_of(model.proto)
    decision = CastDecider(model, types, ranges, cast_options).decide()
    result = replace(model, proto=deepcopy(model.proto))
    converter = _Converter(result, types, decision.places, cast_options)
    converter.weights()
    converter.graph(result.proto.graph, is_main=True)
    converter.declare()
    check(result.proto)
    return result, decision


def check_worthwhile(model: ModelFile, decision: CastDecision, precision: str) -> None:
    """Something heavy must have become 16-bit if only the opset stands in the way."""
    operators = {node.name: node.op_type for part in graphs_of(model.proto.graph) for node in part.node}
    if HEAVY & {operators[name] for name in decision.places}:
        return
    for kept in decision.kept:
        if kept.rule == "opset" and kept.op in HEAVY:
            raise ModelError(
                f"nothing heavy can be {precision.upper()}: {kept.reason} (node {kept.node!r})",
                "export with a newer opset (BF16 convolutions need 22), or use --precision fp16",
            )


_MOST_REASONS = 3


def common_reasons(decisions: Iterable[KeptNode | Decision]) -> str:
    """Why most of the nodes were decided as they were."""
    reasons = Counter((item.op, item.reason) for item in decisions)
    parts = [f"{count} {op} because {reason}" for (op, reason), count in reasons.most_common(_MOST_REASONS)]
    more = f"; and {len(reasons) - _MOST_REASONS} reasons more" if len(reasons) > _MOST_REASONS else ""
    return "; ".join(parts) + more


class _Converter:
    """Holds the present type of every tensor while nodes are rewritten, front to back."""

    def __init__(
        self,
        model: ModelFile,
        types: Mapping[str, int],
        places: Mapping[str, Places],
        cast_options: CastOptions,
    ) -> None:
        self._model, self._places = model, places
        self._low, self._cast_io = cast_options.low, cast_options.cast_io
        self._original, self._types = types, dict(types)
        self._copies: dict[tuple[str, int], str] = {}
        """By weight and type: a copy for the places that read it in that type, which it does not have."""
        self._alias: dict[str, str] = {}
        """What stands for a tensor: of casts that became needless, and of outputs that moved aside."""
        self._taken = names_in(model.proto.graph)
        self._nodes = {node.name for part in graphs_of(model.proto.graph) for node in part.node}

    # ── weights ─────────────────────────────────────────────────────────────────────────────────────────

    def weights(self) -> None:
        """Convert weights that 16-bit places read, or that are 16-bit outputs; other readers get a copy."""
        main, parts = self._model.proto.graph, list(graphs_of(self._model.proto.graph))
        outer = {item.name: FLOAT for part in parts for item in part.output}
        if self._cast_io:
            outer |= {item.name: self._low for item in main.output}
        wanted: dict[str, set[int]] = {}
        for part in parts:
            for node in part.node:
                for name, is_low in zip(node.input, self._inputs(node), strict=True):
                    wanted.setdefault(name, set()).add(self._low if is_low else FLOAT)
        for part in parts:
            for tensor in list(part.initializer):
                if tensor.data_type != FLOAT:
                    continue
                kinds = wanted.get(tensor.name, set())
                kind = outer.get(tensor.name, self._low if kinds == {self._low} else FLOAT)
                for other in kinds - {kind}:
                    name = self._copies[tensor.name, other] = self._new(tensor.name, other)
                    part.initializer.append(converted(tensor, self._model, name, other))
                if kind == self._low:
                    tensor.CopyFrom(converted(tensor, self._model, tensor.name, kind))
                    self._types[tensor.name] = kind

    def _inputs(self, node: onnx.NodeProto) -> tuple[bool, ...]:
        places = self._places.get(node.name)
        return places.inputs if places else (False,) * len(node.input)

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────────────

    def graph(self, part: onnx.GraphProto, *, is_main: bool = False) -> None:
        """Rewrite the nodes of a graph, and those of its subgraphs as they come."""
        outside = self._outside(part, is_main)
        moved = self._move_outputs(part, outside)
        local: dict[tuple[str, int], str] = {}
        nodes: list[onnx.NodeProto] = []
        named = {item.name for item in part.output} - moved.keys()
        for old in list(part.node):
            node = deepcopy(old)
            self._read(node, nodes, local)
            if self._is_needless(node, named):
                self._alias[node.output[0]] = moved[node.output[0]] = node.input[0]
            else:
                self._write(node, moved)
                nodes.append(node)
            for name in old.output:
                if name in moved and name in outside:
                    nodes.append(self._cast(moved[name], name, outside[name]))
                    local[moved[name], outside[name]] = name
        refill(part.node, nodes)

    def _outside(self, part: onnx.GraphProto, is_main: bool) -> dict[str, int]:
        """The type that each floating output of the graph must have."""
        if is_main and self._cast_io:
            for item in part.input:
                if self._types.get(item.name) == FLOAT:
                    self._types[item.name] = self._low
        wide = self._low if is_main and self._cast_io else FLOAT
        return {item.name: wide for item in part.output if self._types.get(item.name) == FLOAT}

    def _move_outputs(self, part: onnx.GraphProto, outside: Mapping[str, int]) -> dict[str, str]:
        """Outputs whose node makes another type than they must have: they are made under another name."""
        moved = {}
        for node in part.node:
            places = self._places.get(node.name)
            for index, name in enumerate(node.output):
                made = self._low if places and places.outputs[index] else FLOAT
                if name in outside and made != outside[name]:
                    moved[name] = self._alias[name] = self._new(name, made)
        return moved

    def _read(
        self, node: onnx.NodeProto, nodes: list[onnx.NodeProto], local: dict[tuple[str, int], str]
    ) -> None:
        """Give each input of the node the tensor of the type that it takes; a cast is made once a graph."""
        for index, (name, is_low) in enumerate(zip(list(node.input), self._inputs(node), strict=True)):
            want = self._low if is_low else self._original.get(name)
            name = self._alias.get(name, name)
            have = self._types.get(name)
            takes_any = node.op_type in _READS_ANY and not is_low
            if want is not None and not takes_any and {have, want} == {FLOAT, self._low}:
                name = self._in_type(name, want, nodes, local)
            node.input[index] = name
        for inner in subgraphs_of(node):
            self.graph(inner)

    def _in_type(
        self, name: str, want: int, nodes: list[onnx.NodeProto], local: dict[tuple[str, int], str]
    ) -> str:
        if (name, want) in self._copies:
            return self._copies[name, want]
        if (name, want) not in local:
            local[name, want] = self._new(name, want)
            self._types[local[name, want]] = want
            nodes.append(self._cast(name, local[name, want], want))
        return local[name, want]

    def _new(self, name: str, kind: int) -> str:
        """A name that no tensor has, for `name` in another type."""
        return take_name(name + _SUFFIX[kind], self._taken)

    def _cast(self, source: str, target: str, to: int) -> onnx.NodeProto:
        # The model may have been cast before, and have a node of that name.
        name = take_name(f"cast:{target}", self._nodes)
        return onnx.helper.make_node("Cast", [source], [target], name=name, to=to)

    def _is_needless(self, node: onnx.NodeProto, outputs: Collection[str]) -> bool:
        """Whether the node is a Cast to the type that its input has by now; an output needs its node."""
        if node.op_type != "Cast" or node.output[0] in outputs:
            return False
        to = self._low if self._lowers_output(node) else attribute(node, "to")
        return self._types.get(node.input[0]) == to

    def _lowers_output(self, node: onnx.NodeProto) -> bool:
        places = self._places.get(node.name)
        return bool(places and places.outputs and places.outputs[0])

    def _write(self, node: onnx.NodeProto, moved: Mapping[str, str]) -> None:
        """Note the types of what the node makes, and change the attributes that name them."""
        places = self._places.get(node.name)
        for index, name in enumerate(node.output):
            if places and places.outputs[index]:
                self._types[moved.get(name, name)] = self._low
            elif name in moved:
                self._types[moved[name]] = FLOAT
            if name in moved:
                node.output[index] = moved[name]
        if self._lowers_output(node):
            _retype(node, self._low)

    # ── declarations ────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        """Bring the declared types of inputs, outputs and inner tensors into line."""
        for part in graphs_of(self._model.proto.graph):
            made = {name for node in part.node for name in node.output}
            for item in (*part.input, *part.value_info):
                if self._types.get(item.name) == self._low and item.type.HasField("tensor_type"):
                    item.type.tensor_type.elem_type = self._low
            refill(part.value_info, [item for item in part.value_info if item.name in made])
        if self._cast_io:
            for item in self._model.proto.graph.output:
                if item.type.tensor_type.elem_type == FLOAT:
                    item.type.tensor_type.elem_type = self._low


def _retype(node: onnx.NodeProto, low: int) -> None:
    """Attributes that fix the type of what a node makes."""
    for item in node.attribute:
        if item.name in ("to", "output_dtype") and item.i == FLOAT:
            item.i = low
    if node.op_type == "ConstantOfShape":
        kept = attribute(node, "value")
        value = onnx.numpy_helper.to_array(kept) if kept else [0.0]
        del node.attribute[:]
        node.attribute.append(
            onnx.helper.make_attribute("value", onnx.helper.make_tensor("value", low, [1], value))
        )
