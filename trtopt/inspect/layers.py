"""Layer times, the inspector's layers and the ONNX graph, brought together by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from trtopt.inspect.costs import cost_of
from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph, Node
from trtopt.inspect.inspector import EngineLayer
from trtopt.inspect.kernels.names import type_in
from trtopt.onnxio.element_types import bits_of
from trtopt.records import Coverage, EngineTensor, LayerPass, LayerTime, MappedBy, ProfiledLayer

UNKNOWN = "unknown"
_COMPUTED = frozenset({
    "int4", "float4_e2m1fn", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16",
    "float32", "float64",
})  # fmt: skip
"""Types that layers compute in."""


def bits(dtype: str) -> int:
    """Bits of a type that layers compute in; 0 for any other."""
    return bits_of(dtype) if dtype in _COMPUTED else 0


def join(
    described: Sequence[EngineLayer], times: LayerPass | None, graph: Graph, *, by_tensors: bool = False
) -> tuple[tuple[ProfiledLayer, ...], Coverage]:
    """Layers in the engine's order, then what the profiler reports and the inspector does not know.

    Without any described the profiler's names are all there is, and are mapped as such. A time that several
    layers of one name share is shown at the first of them.
    """
    by_name = {row.name: row for row in times.layers} if times is not None else {}
    known = {layer.name for layer in described}
    extra = tuple(EngineLayer(name=name, kind="") for name in by_name if name not in known)
    every = (*described, *extra)
    mapped = map_layers(every, graph, by_tensors=by_tensors)
    owned = _weights_of_layers(every, mapped, graph)
    first = {layer.name: layer for layer in reversed(every)}
    layers = tuple(
        _profiled(
            layer,
            by_name.get(layer.name) if layer is first[layer.name] else None,
            mapped[layer.name],
            owned.get(layer.name, ()) if layer is first[layer.name] else (),
            graph,
        )
        for layer in every
    )
    strange = tuple(layer.name for layer in extra) if described else ()
    silent = tuple(layer.name for layer in described if layer.name not in by_name) if by_name else ()
    return layers, _coverage(layers, graph, strange, silent)


def _profiled(
    layer: EngineLayer, time: LayerTime | None, mapped: Mapped, owned: Sequence[Node], graph: Graph
) -> ProfiledLayer:
    """One layer; `owned` are the nodes whose weights it holds."""
    weights = {name for node in owned if (name := graph.weight_of(node))}  # nodes may share one
    median = low = high = None
    if time is not None and time.ms:
        low, median, high = (float(value) for value in np.percentile(time.ms, (10, 50, 90)))
    return ProfiledLayer(
        name=layer.name,
        kind=layer.kind,
        ms=median,
        low_ms=low,
        high_ms=high,
        dtype=ran_dtype(layer, is_opaque=mapped.is_opaque, is_reformat=mapped.is_reformat),
        requested_dtype="" if mapped.is_reformat else requested_dtype(owned or mapped.nodes, graph),
        is_reformat=mapped.is_reformat,
        is_opaque=mapped.is_opaque,
        tactic=layer.tactic,
        inputs=layer.inputs,
        outputs=layer.outputs,
        weights_count=layer.weights_count or sum(prod(graph.shapes.get(name, (0,))) for name in weights),
        onnx_nodes=tuple(node.name for node in mapped.nodes),
        onnx_ops=tuple(node.op for node in mapped.nodes),
        mapped_by=mapped.by,
        cost=cost_of(graph, mapped.nodes) if mapped.nodes and not mapped.is_reformat else None,
    )


def ran_dtype(layer: EngineLayer, *, is_opaque: bool = False, is_reformat: bool = False) -> str:
    """The type that a layer computed in: of its weights, else its tactic's, else its inputs'.

    A reformat's is the type that it writes. What happens inside an opaque layer is unknown.
    """
    if is_reformat:
        return next((tensor.dtype for tensor in layer.outputs if tensor.dtype), "")
    if is_opaque:
        return ""
    if layer.weights_dtype:
        return layer.weights_dtype
    if by_tactic := type_in(layer.tactic):
        return by_tactic
    tensors = (*layer.inputs, *layer.outputs)
    types = [tensor.dtype for tensor in tensors if bits(tensor.dtype)] or [
        t.dtype for t in tensors if t.dtype
    ]
    return types[0] if types else ""


def requested_dtype(nodes: Sequence[Node], graph: Graph) -> str:
    """The narrowest type that the graph requests for nodes with weights; without such, for any."""
    weighted = [node for node in nodes if graph.weight_of(node)]
    requested = [dtype for node in weighted or nodes if bits(dtype := graph.requested_dtype(node))]
    return min(requested, key=bits, default="")


def _weights_of_layers(
    layers: Sequence[EngineLayer], mapped: Mapping[str, Mapped], graph: Graph
) -> dict[str, list[Node]]:
    """Layer → nodes whose weights it holds.

    Newer versions name one node in several layers, such as the product and a cast that prepares its weights:
    the layer that ran in the narrowest type holds them, of equals the one that covers least.
    """
    best: dict[int, tuple[tuple[bool, int, int], EngineLayer, Node]] = {}
    for layer in layers:
        one = mapped[layer.name]
        if one.is_reformat:
            continue
        width = bits(ran_dtype(layer, is_opaque=one.is_opaque))
        rank = (width == 0, width, len(one.nodes))
        for node in one.nodes:
            if graph.weight_of(node) and (node.index not in best or rank < best[node.index][0]):
                best[node.index] = (rank, layer, node)
    owned: dict[str, list[Node]] = {}
    for _, layer, node in best.values():
        owned.setdefault(layer.name, []).append(node)
    return owned


def _coverage(
    layers: Sequence[ProfiledLayer],
    graph: Graph,
    unmatched_times: tuple[str, ...],
    unmatched_layers: tuple[str, ...],
) -> Coverage:
    total = sum(layer.ms or 0.0 for layer in layers)

    mapped = sum(layer.ms or 0.0 for layer in layers if layer.onnx_nodes)
    opaque = sum(layer.ms or 0.0 for layer in layers if layer.is_opaque)
    covered = {name for layer in layers if not layer.is_reformat for name in layer.onnx_nodes}
    working = [node.name for node in graph.nodes if node.op != "Constant"]
    return Coverage(
        time_mapped=mapped / total if total else 0.0,
        nodes_mapped=sum(name in covered for name in working) / len(working) if working else 0.0,
        time_opaque=opaque / total if total else 0.0,
        unmatched_times=unmatched_times,
        unmatched_layers=unmatched_layers,
    )


# From an engine's layers back to the nodes of the ONNX file.
#
# TensorRT's metadata names the nodes where the version has it. Names do otherwise: `A + B` (and `A || B`
# for layers that were joined sideways), `PWN(A, B)`, `reshape_before_A`, `Reformatting CopyNode for Input
# Tensor 0 to A`. `{ForeignNode[first...last]}` hides all between. Its nodes are found by walking the graph
# back from the layer's outputs to its inputs. Where those have names of TensorRT's own, they are the nodes
# between first and last in the file that no other layer has.
#
# ONNX Runtime's optimised graph keeps most names of tensors: a layer covers what lies between those that it
# writes and those that it reads.


_REFORMAT = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")
_REFORMATTED = re.compile(r"^Reformatted (?:Input|Output) Tensor \d+ (?:to|from) ")
_FOREIGN = re.compile(r"^\{?ForeignNode\[(?P<first>.*?)\.\.\.(?P<last>.*?)\]\}?$", re.DOTALL)
_WRAPPER = re.compile(r"^PWN\((?P<inside>.*)\)$", re.DOTALL)
_HELPER = re.compile(
    r"^(?:(?:copied_)?(?:un)?(?:reshape|squeeze|shuffle|transpose)(?:_node)?_(?:before|after)_)+"
)
_PLACE = re.compile(r"(?: \[profile \d+\])+$")
OPAQUE_KINDS = ("Myelin", "ForeignNode")
"""Layers that TensorRT's graph compiler makes of many nodes."""
_ORT_CAST = "InsertedPrecisionFreeCast_"  # around what ONNX Runtime has no 16-bit kernel for
_ORT_TENSOR = re.compile(rf"^(?:{_ORT_CAST}|FusedBack_)?(?P<name>.*?)(?:_nchwc|/duplicated)?$", re.DOTALL)
_ORT_FUSION = re.compile(r"/\w+Fusion/?$")  # it calls what it fused after one of the nodes
_ORT_MOVES = frozenset({"ReorderInput", "ReorderOutput", "Reshape", "Transpose", "Cast"})
_REFORMAT_KINDS = ("Reformat", "ReorderInput", "ReorderOutput")  # the latter are ONNX Runtime's


@dataclass(frozen=True)
class Mapped:
    """What a layer covers: nodes in the file's order."""

    nodes: tuple[Node, ...]
    by: MappedBy
    is_opaque: bool = False
    is_reformat: bool = False


def map_layers(layers: Sequence[EngineLayer], graph: Graph, *, by_tensors: bool = False) -> dict[str, Mapped]:
    """Every layer's nodes by the layer's name. A reformat carries the nodes of the layer that it serves.

    `by_tensors` is for ONNX Runtime, which names only one node or tensor of a fused layer.
    """
    found = {layer.name: _by_name(layer, graph) for layer in layers}
    if by_tensors:
        return found | _Tensors(layers, graph).between(found)
    taken = {node.index for one in found.values() if not one.is_opaque for node in one.nodes}
    aliases = _aliases(layers)
    for layer in layers:
        if found[layer.name].is_opaque:
            found[layer.name] = _inside(layer, found[layer.name], graph, taken, aliases)
    for layer in layers:
        served = _REFORMAT.sub("", layer.name)
        if found[layer.name].is_reformat and served in found:
            found[layer.name] = Mapped(found[served].nodes, found[served].by, is_reformat=True)
    return found


def _by_name(layer: EngineLayer, graph: Graph) -> Mapped:
    name = _PLACE.sub("", layer.name)
    known = [graph.by_name[one] for one in layer.onnx_nodes if one in graph.by_name]
    named = _nodes_in(_HELPER.sub("", _REFORMAT.sub("", name)), graph)
    foreign = _FOREIGN.match(name)
    opaque = layer.kind in OPAQUE_KINDS or foreign is not None
    nodes: tuple[Node, ...] = ()
    by: MappedBy = "nothing"
    if known:
        nodes, by = _ordered([*known, *named]), "metadata"
    elif named and foreign is None:
        nodes, by = _ordered(named), "name"
    reformat = bool(_REFORMAT.match(name)) or (layer.kind in _REFORMAT_KINDS and not nodes)
    reformat = reformat or (layer.kind == "Cast" and name.startswith(_ORT_CAST))
    return Mapped(nodes, by, opaque, reformat)


def _nodes_in(name: str, graph: Graph) -> list[Node]:
    """The nodes that a layer's name speaks of. A node's own name may hold ` + `: the longest match wins."""
    if name in graph.by_name:
        return [graph.by_name[name]]
    if (one := _ORT_FUSION.sub("", name)) in graph.by_name:
        return [graph.by_name[one]]
    if (tensor := _own_name(name)) in graph.producer:  # ONNX Runtime calls a node after what it writes
        return [graph.producer[tensor]]
    wrapped = _WRAPPER.match(name)
    if wrapped is not None:
        return [node for part in _split_arguments(wrapped["inside"]) for node in _nodes_in(part, graph)]
    parts = re.split(r"( \+ | \|\| )", name)
    if len(parts) == 1:
        return []
    nodes: list[Node] = []
    start = 0
    while start < len(parts):
        ends = range(min(len(parts), start + 9), start, -2)  # no sane name holds more than four separators
        end = next((end for end in ends if "".join(parts[start:end]) in graph.by_name), start + 1)
        nodes += _nodes_in("".join(parts[start:end]), graph)
        start = end + 1
    return nodes


def _split_arguments(text: str) -> list[str]:
    """`A, PWN(B, C)` → `A` and `PWN(B, C)`."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and text.startswith(", ", index):
            parts.append(text[start:index])
            start = index + 2
    return [*parts, text[start:]]


def _ordered(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple({node.index: node for node in sorted(nodes, key=lambda node: node.index)}.values())


# ── opaque layers ───────────────────────────────────────────────────────────────────────────────────────


def _aliases(layers: Sequence[EngineLayer]) -> dict[str, str]:
    """What TensorRT calls a reformatted tensor → the tensor that it was made from or becomes."""
    pairs = [
        (layer.inputs[0].name, layer.outputs[0].name)
        for layer in layers
        if layer.inputs and layer.outputs and _REFORMAT.match(layer.name)
    ]
    return {b: a for a, b in pairs if _REFORMATTED.match(b)} | {
        a: b for a, b in pairs if _REFORMATTED.match(a)
    }


def _inside(
    layer: EngineLayer, named: Mapped, graph: Graph, taken: set[int], aliases: Mapping[str, str]
) -> Mapped:
    """The nodes of an opaque layer; by its name where nothing else is known."""
    outputs = [aliases.get(tensor.name, tensor.name) for tensor in layer.outputs]
    inputs = {aliases.get(tensor.name, tensor.name) for tensor in layer.inputs}
    if outputs and all(name in graph.producer for name in outputs):
        walked = _walk_back(graph, outputs, inputs, taken)
        if walked:
            return Mapped(_ordered(walked), "graph", is_opaque=True)
    match = _FOREIGN.match(_PLACE.sub("", layer.name))
    if match is None:
        return Mapped(named.nodes, named.by, is_opaque=True)
    first, last = (_nodes_in(match[end], graph) for end in ("first", "last"))
    if not first:
        return Mapped((), "nothing", is_opaque=True)
    stop = last[-1].index if last else len(graph.nodes) - 1
    between = [node for node in graph.nodes[first[0].index : stop + 1] if node.index not in taken]
    return Mapped(_ordered(between), "name", is_opaque=True)


def _walk_back(graph: Graph, outputs: Sequence[str], inputs: set[str], taken: set[int]) -> list[Node]:
    """Nodes on the way from `outputs` back to `inputs`, to constants and to other layers' nodes."""
    found: dict[int, Node] = {}
    waiting = list(outputs)
    while waiting:
        tensor = waiting.pop()
        node = graph.producer.get(tensor)
        if tensor in inputs or node is None or node.index in found or node.index in taken:
            continue
        found[node.index] = node
        waiting += node.inputs
    return list(found.values())


# ── ONNX Runtime's layers ───────────────────────────────────────────────────────────────────────────────


def _own_name(tensor: str) -> str:
    """The file's name for what ONNX Runtime calls a tensor that it has cast, copied or reformatted."""
    return _ORT_TENSOR.sub(r"\g<name>", tensor)


class _Tensors:
    """The tensors between an optimised graph's layers, each with the tensor of the file that it holds."""

    def __init__(self, layers: Sequence[EngineLayer], graph: Graph) -> None:
        self._layers, self._graph = layers, graph
        names = {tensor.name for layer in self._layers for tensor in (*layer.inputs, *layer.outputs)}
        own_names = {name: _own_name(name) for name in names}
        known = graph.producer.keys() | graph.consumers.keys()
        self._held = {name: own for name, own in own_names.items() if own in known}
        for layer in self._layers:  # what only moves values holds the same before and after
            if layer.kind in _ORT_MOVES and layer.name not in graph.by_name:
                ends = [tensor.name for tensor in (*layer.inputs[:1], *layer.outputs)]
                held = next((self._held[name] for name in ends if name in self._held), None)
                self._held |= {name: held for name in ends if held and name not in self._held}
        for layer in self._layers:
            is_known = any(tensor.name in self._held for tensor in layer.outputs)
            if layer.outputs and not is_known and (end := self._end_by_name(layer)):
                self._held[layer.outputs[0].name] = end
        self._unknown = {t.name for layer in self._layers for t in layer.outputs if t.name not in self._held}

    def between(self, named: Mapping[str, Mapped]) -> dict[str, Mapped]:
        """What lies between the tensors of each layer; a layer of which not all are known is left out."""
        written = {held for layer in self._layers for held in self._file_names(layer.outputs)}
        found = {}
        for layer in self._layers:
            one = named[layer.name]
            nodes = None if one.is_reformat else self._between(layer, written)
            if nodes is not None:
                by: MappedBy = "graph" if nodes else "nothing"
                found[layer.name] = one if nodes == one.nodes else Mapped(nodes, by)
        return found

    def _between(self, layer: EngineLayer, written: set[str]) -> tuple[Node, ...] | None:
        ends, inputs = self._file_names(layer.outputs), self._file_names(layer.inputs)
        nodes = _walk_back(self._graph, tuple(ends), inputs, set())
        inside = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name}
        computed = {name for name in read ^ inputs if not self._graph.is_constant(name)}
        foreign = computed & read - inside | read & written - ends - inputs
        unread = computed & inputs if nodes else ()  # such as what is left of two equal nodes
        is_partly_known = any(tensor.name in self._unknown for tensor in layer.inputs)
        if not ends or foreign or unread or is_partly_known:
            return None
        return _ordered([node for node in nodes if not self._vanishes(node)])

    def _file_names(self, tensors: Sequence[EngineTensor]) -> set[str]:
        return {self._held[tensor.name] for tensor in tensors if tensor.name in self._held}

    def _vanishes(self, node: Node) -> bool:
        """Whether optimising removes a node, which is not to be called fused."""
        is_folded = node.op not in (QUANTIZE, DEQUANTIZE) and self._graph.is_constant(node.outputs[0])
        return is_folded or node.op in ("Identity", "Dropout")

    def _end_by_name(self, layer: EngineLayer) -> str | None:
        """What a layer writes, by its name: of a convolution also the sum and activation that it took."""
        named = _nodes_in(layer.name, self._graph)
        if not named:
            return None
        node = named[-1]
        inputs = self._file_names(layer.inputs)
        after = self._sole_reader(node)
        if layer.kind == "Conv" and after is not None and after.op in ("Add", "Sum"):
            node = after if not inputs.isdisjoint(after.inputs) else node
        after = self._sole_reader(node)
        if after is not None and after.op == layer.activation != node.op:
            node = after
        return node.outputs[0]

    def _sole_reader(self, node: Node) -> Node | None:
        readers = self._graph.consumers.get(node.outputs[0], ())
        return readers[0] if len(readers) == 1 and node.outputs[0] not in self._graph.outputs else None
