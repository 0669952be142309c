"""From an engine's layers back to the nodes of the ONNX file.

TensorRT's metadata names the nodes where the version has it. Names do otherwise: `A + B` (and `A || B` for
layers that were joined sideways), `PWN(A, B)`, `reshape_before_A`, `Reformatting CopyNode for Input Tensor 0
to A`. `{ForeignNode[first...last]}` hides all between. Its nodes are found by walking the graph back from the
layer's outputs to its inputs. Where those have names of TensorRT's own, they are the nodes between first and
last in the file that no other layer has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trtopt.inspect.graph import DEQUANTISE, QUANTISE, Graph, Node
from trtopt.records import EngineDescription, EngineLayer, MappedBy

_REFORMAT = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")
_REFORMATTED = re.compile(r"^Reformatted (?:Input|Output) Tensor \d+ (?:to|from) ")
_FOREIGN = re.compile(r"^\{?ForeignNode\[(?P<first>.*?)\.\.\.(?P<last>.*?)\]\}?$", re.DOTALL)
_WRAPPER = re.compile(r"^PWN\((?P<inside>.*)\)$", re.DOTALL)
_HELPER = re.compile(
    r"^(?:(?:copied_)?(?:un)?(?:reshape|squeeze|shuffle|transpose)(?:_node)?_(?:before|after)_)+"
)
_PLACE = re.compile(r"(?: \[(?:profile|segment) \d+\])+$")
_OPAQUE_KINDS = ("Myelin", "ForeignNode")
_ORT_CAST = "InsertedPrecisionFreeCast_"  # around what ONNX Runtime has no 16-bit kernel for
_ORT_FUSION = re.compile(r"/MatMul(?:Add|Scale)Fusion/?$")  # it calls what it fused after the product
_REFORMAT_KINDS = ("Reformat", "ReorderInput", "ReorderOutput")  # the latter are ONNX Runtime's


@dataclass(frozen=True)
class Mapped:
    """What a layer covers: nodes in the file's order."""

    nodes: tuple[Node, ...]
    by: MappedBy
    is_opaque: bool = False
    is_reformat: bool = False


def map_layers(description: EngineDescription, graph: Graph, *, infer: bool = False) -> dict[str, Mapped]:
    """Every layer's nodes by the layer's name. A reformat carries the nodes of the layer that it serves.

    `infer` is for backends that name only one node or tensor of a fused layer. A node that no layer names
    then goes to the layer that made its inputs, of several to the one that runs last.
    """
    found: dict[str, Mapped] = {}
    for layer in description.layers:
        found[layer.name] = _by_name(layer, graph)
    taken = {node.index for one in found.values() if not one.is_opaque for node in one.nodes}
    aliases = _aliases(description)
    for layer in description.layers:
        if found[layer.name].is_opaque:
            found[layer.name] = _inside(layer, graph, taken, aliases)
    for layer in description.layers:
        served = _REFORMAT.sub("", layer.name)
        if found[layer.name].is_reformat and served in found:
            found[layer.name] = Mapped(found[served].nodes, found[served].by, is_reformat=True)
    return _with_inferred(found, graph) if infer else found


def _by_name(layer: EngineLayer, graph: Graph) -> Mapped:
    name = _PLACE.sub("", layer.name)
    known = [graph.by_name[one] for one in layer.onnx_nodes if one in graph.by_name]
    named = _nodes_in(_HELPER.sub("", _REFORMAT.sub("", name)), graph)
    foreign = _FOREIGN.match(name)
    opaque = layer.kind in _OPAQUE_KINDS or foreign is not None
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
    if (product := _ORT_FUSION.sub("", name)) in graph.by_name:
        return [graph.by_name[product]]
    tensor = name.removeprefix(_ORT_CAST).removesuffix(
        "_nchwc"
    )  # ONNX Runtime calls a node after what it writes
    if tensor in graph.producer:
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
        end = _longest(parts, start, graph.by_name.__contains__)
        nodes += _nodes_in("".join(parts[start:end]), graph)
        start = end + 1
    return nodes


def _longest(parts: Sequence[str], start: int, is_known: Callable[[str], bool]) -> int:
    """Where the longest known name from `start` on ends; `parts` alternate with separators."""
    for end in range(min(len(parts), start + 9), start, -2):  # no sane name holds more than four separators
        if is_known("".join(parts[start:end])):
            return end
    return start + 1


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


def _aliases(description: EngineDescription) -> dict[str, str]:
    """What TensorRT calls a reformatted tensor → the tensor that it was made from or becomes."""
    pairs = [
        (layer.inputs[0].name, layer.outputs[0].name)
        for layer in description.layers
        if layer.inputs and layer.outputs and _REFORMAT.match(layer.name)
    ]
    return {b: a for a, b in pairs if _REFORMATTED.match(b)} | {
        a: b for a, b in pairs if _REFORMATTED.match(a)
    }


def _inside(layer: EngineLayer, graph: Graph, taken: set[int], aliases: Mapping[str, str]) -> Mapped:
    """The nodes of an opaque layer."""
    outputs = [aliases.get(tensor.name, tensor.name) for tensor in layer.outputs]
    inputs = {aliases.get(tensor.name, tensor.name) for tensor in layer.inputs}
    if outputs and all(name in graph.producer for name in outputs):
        walked = _walk_back(graph, outputs, inputs, taken)
        if walked:
            return Mapped(_ordered(walked), "graph", is_opaque=True)
    match = _FOREIGN.match(_PLACE.sub("", layer.name))
    if match is None:
        named = _by_name(layer, graph)
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


# ── unnamed layers ──────────────────────────────────────────────────────────────────────────────────────


def _with_inferred(found: Mapping[str, Mapped], graph: Graph) -> dict[str, Mapped]:
    """Give each node without a layer to the layer of its inputs, or of what reads it."""
    position = {name: index for index, name in enumerate(found)}  # layers are in the order in which they run
    owner = {node.index: name for name, one in found.items() for node in one.nodes}
    added: dict[str, list[Node]] = {}
    pending = [node for node in graph.nodes if node.index not in owner and node.op != "Constant"]
    for node in reversed(pending):  # a weighted node whose name went with the activation after it
        readers = graph.consumers.get(node.outputs[0], ()) if node.outputs else ()
        if node.op in (QUANTISE, DEQUANTISE) or graph.weight_of(node):
            owners = [owner[reader.index] for reader in readers if reader.index in owner]
            if owners:
                owner[node.index] = owners[0]
                added.setdefault(owners[0], []).append(node)
    for node in pending:
        if node.index in owner:
            continue
        makers = [graph.producer[name].index for name in node.inputs if name in graph.producer]
        owned = [index for index in makers if index in owner]
        if owned:
            owner[node.index] = max((owner[index] for index in owned), key=position.__getitem__)
            added.setdefault(owner[node.index], []).append(node)
    return {
        name: Mapped(_ordered([*one.nodes, *added[name]]), "inferred", one.is_opaque, one.is_reformat)
        if name in added
        else one
        for name, one in found.items()
    }
