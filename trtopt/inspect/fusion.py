"""What fused into what, and which candidates of known fusions did not, with a coded reason.

| code | meaning |
|---|---|
| `second-consumer` | the tensor between is read elsewhere too, or is an output of the model. |
| `quantise-between` | a QuantizeLinear stands between the two |
| `type-change` | a Cast stands between the two, or the types do not fit the fused kernel. |
| `broadcast` | the operands differ in shape |
| `shape` | padding that is not constant |
| `head-size` | attention heads larger than 256, or no multiple of 8. |
| `opaque` | at least one of them lies in a layer that hides its nodes |
| `builder's choice` | nothing in the graph forbids it |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trtopt.inspect.graph import DEQUANTIZE, QUANTIZE, Graph, Node
from trtopt.records import Fusion, ProfiledLayer, Unfused

_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu"})
_BETWEEN = {QUANTIZE: "quantise-between", DEQUANTIZE: "quantise-between", "Cast": "type-change"}
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_MAX_HEAD, _HEAD_MULTIPLE = 256, 8
_LONGEST_SPELLED = 12


@dataclass(frozen=True)
class Candidate:
    """Nodes that a known fusion makes one layer of; `reason` is what in the graph stands against it."""

    fusion: str
    nodes: tuple[Node, ...]
    reason: str = ""
    detail: str = ""


def fused(layers: Sequence[ProfiledLayer]) -> tuple[Fusion, ...]:
    """Patterns of ONNX operators that became one layer, the most time first.

    Nothing says that the nodes which an opaque layer hides were fused: it may run a kernel for each.
    """
    found: dict[tuple[tuple[str, ...], str], list[ProfiledLayer]] = {}
    for layer in layers:
        if len(layer.onnx_ops) > 1 and not layer.is_reformat and not layer.is_opaque:
            ops = layer.onnx_ops
            if len(ops) > _LONGEST_SPELLED:
                ops = (f"{len(ops)} nodes",)
            found.setdefault((ops, layer.kind), []).append(layer)
    patterns = (
        Fusion(ops=ops, kind=kind, count=len(members), ms=sum(one.ms or 0.0 for one in members))
        for (ops, kind), members in found.items()
    )
    return tuple(sorted(patterns, key=lambda one: (-one.ms, -one.count, one.ops)))


def unfused(layers: Sequence[ProfiledLayer], graph: Graph) -> tuple[Unfused, ...]:
    """Candidates whose nodes lie in different layers, the most time in the later node's layer first.

    A node that no layer names is taken to have gone into a neighbour.
    """
    home: dict[str, ProfiledLayer] = {}
    for layer in layers:
        if not layer.is_reformat:
            home.update(dict.fromkeys(layer.onnx_nodes, layer))
    found = []
    for candidate in candidates(graph):
        homes = [home[node.name] for node in candidate.nodes if node.name in home]
        if len({layer.name for layer in homes}) < 2 or _went_elsewhere(candidate, homes[-1]):
            continue
        reason, detail = candidate.reason, candidate.detail
        if not reason:
            hidden = next((layer for layer in homes if layer.is_opaque), None)
            reason = "opaque" if hidden else "builder's choice"
            detail = f"inside {hidden.name}" if hidden else "nothing in the graph forbids it"
        nodes = tuple(node.name for node in candidate.nodes)
        found.append(
            Unfused(
                fusion=candidate.fusion, nodes=nodes, reason=reason, detail=detail, ms=homes[-1].ms or 0.0
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.ms, one.nodes)))


def _went_elsewhere(candidate: Candidate, home: ProfiledLayer) -> bool:
    """A sum of two convolutions goes into one of them: that it did not go into the other is no loss."""
    return candidate.fusion.endswith("+residual") and not _PRODUCTS.isdisjoint(home.onnx_ops)


def candidates(graph: Graph) -> Iterator[Candidate]:
    """Every place of a known fusion, and what in the graph stands against it."""
    for node in graph.nodes:
        if node.op in _PRODUCTS or node.op == "Pad":
            yield from _with_readers(graph, node)
        elif node.op == "Softmax":
            yield from _attention(graph, node)


# ── what follows a convolution, a matrix product or padding ─────────────────────────────────────────────


def _with_readers(graph: Graph, node: Node) -> Iterator[Candidate]:
    """What may take in a node or be taken in by it, read directly or past a Cast or Q/DQ."""
    readers = graph.consumers.get(node.outputs[0], ())
    for first in readers:
        last, reason, detail = _past(graph, first)
        fusion = None if last is None else _fusion_of(graph, node, last)
        if last is None or fusion is None:
            continue
        mode = node.attributes.get("mode", b"constant") if node.op == "Pad" else b"constant"
        if not reason and mode != b"constant":
            reason, detail = "shape", f"the padding is of mode {mode.decode(errors='replace')}"
        if not reason and (len(readers) > 1 or node.outputs[0] in graph.outputs):
            others = [one.name for one in readers if one is not first] or ["an output of the model"]
            reason, detail = "second-consumer", f"{node.outputs[0]} is also read by {others[0]}"
        if not reason and last.op == "Add":
            reason, detail = _broadcast(graph, last)
        yield Candidate(fusion, (node, last), reason, detail)


def _past(graph: Graph, node: Node) -> tuple[Node | None, str, str]:
    """The first node behind casts and Q/DQ, and what was passed."""
    reason = detail = ""
    while node.op in _BETWEEN:
        reason, detail = _BETWEEN[node.op], f"{node.name} ({node.op}) stands between"
        readers = graph.consumers.get(node.outputs[0], ())
        if len(readers) != 1:
            return None, reason, detail
        node = readers[0]
    return node, reason, detail


def _fusion_of(graph: Graph, product: Node, last: Node) -> str | None:
    if product.op == "Pad":
        return f"Pad+{last.op}" if last.op in ("Conv", "MaxPool", "AveragePool") else None
    if last.op in _ACTIVATIONS and product.op != "MatMul":
        return f"{product.op}+activation"
    if last.op == "BatchNormalization" and product.op in ("Conv", "ConvTranspose"):
        return f"{product.op}+BatchNormalization"
    if last.op == "Add":
        has_constant = any(graph.is_constant(name) for name in last.inputs)
        if product.op == "MatMul":
            return "MatMul+bias" if has_constant else None
        return f"{product.op}+residual" if product.op == "Conv" and not has_constant else None
    return None


def _broadcast(graph: Graph, add: Node) -> tuple[str, str]:
    shapes = [graph.shapes.get(name) for name in add.inputs]
    if any(graph.is_constant(name) for name in add.inputs):
        bias = next(name for name in add.inputs if graph.is_constant(name))
        shape = graph.shapes.get(bias, ())
        wide = [axis for axis in shape if axis != 1]
        return ("broadcast", f"the constant has shape {list(shape)}") if len(wide) > 1 else ("", "")
    if None not in shapes and shapes[0] != shapes[1]:
        return "broadcast", f"operands of shapes {list(shapes[0] or ())} and {list(shapes[1] or ())}"
    return "", ""


# ── attention ───────────────────────────────────────────────────────────────────────────────────────────


def _attention(graph: Graph, softmax: Node) -> Iterator[Candidate]:
    """MatMul → scale, mask → Softmax → MatMul, as one kernel."""
    readers = graph.consumers.get(softmax.outputs[0], ())
    second = next((node for node in (_past(graph, one)[0] for one in readers) if node), None)
    chain = _scores_of(graph, softmax)
    if second is None or second.op != "MatMul" or chain is None:
        return
    reason, detail = _past(graph, readers[0])[1:]
    scores = chain[0]
    q = graph.shapes.get(scores.inputs[0])
    dtype = graph.requested_dtype(scores)
    if not reason and len(readers) > 1:
        reason, detail = "second-consumer", f"{softmax.outputs[0]} is read {len(readers)} times"
    if not reason and q is not None and (q[-1] > _MAX_HEAD or q[-1] % _HEAD_MULTIPLE):
        reason, detail = "head-size", f"heads of {q[-1]}"
    if not reason and dtype == "float32":
        reason, detail = "type-change", "the graph requests float32; fused attention runs in 16 bits or fewer"
    yield Candidate("attention", (*chain, softmax, second), reason, detail)


def _scores_of(graph: Graph, softmax: Node) -> tuple[Node, ...] | None:
    """From Q·K to what Softmax reads: the product first."""
    chain: list[Node] = []
    tensor = softmax.inputs[0]
    while len(chain) < 6:
        node = graph.producer.get(tensor)
        if node is None:
            return None
        chain.insert(0, node)
        if node.op == "MatMul":
            return tuple(chain)
        if node.op not in ("Add", "Mul", "Div", "Cast", "Where", QUANTIZE, DEQUANTIZE):
            return None
        tensor = node.inputs[1] if node.op == "Where" else _longer(graph, node)
    return None


def _longer(graph: Graph, node: Node) -> str:
    """The operand that is computed, not the mask or the scale: the one with the deeper origin."""
    made = [(graph.producer[name].index, name) for name in node.inputs if name in graph.producer]
    products = [
        pair for pair in made if graph.producer[pair[1]].op in ("MatMul", "Mul", "Div", "Add", "Cast")
    ]
    return max(products or made, default=(0, node.inputs[0]))[1]
