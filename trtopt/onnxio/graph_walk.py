"""Walking an ONNX model: subgraphs, functions, operators, names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from trtopt.errors import InvalidModelError

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message


Part: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"
_Part = TypeVar("_Part", bound="onnx.GraphProto | onnx.FunctionProto")

OWN_DOMAINS = ("", "ai.onnx")
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes whose number is an element type."""
_NO_LENGTH = re.compile(r"\?|\*|-1|_|unk|unk__\d+|none|null|any|unknown|undefined|dynamic|", re.IGNORECASE)
"""Names that exporters and converters give every open axis, or count through."""
ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish",
    "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
"""All of either kind, by name."""
DRAWN = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip
"""Operators whose results differ from run to run."""
WEAK_TYPES = "trtopt.weak_types"
"""Metadata of this key names types that a weakly typed TensorRT may use where the graph has FP32."""
RANGES = "trtopt.ranges"
"""Metadata of this key: JSON of the largest |x| and of types, by tensor, that a weakly typed builder sets."""


def names_length(name: str) -> bool:
    """Whether axes of this name have one length; those called `?` or alike may all differ."""
    return not _NO_LENGTH.fullmatch(name.strip())


def name_of(node: onnx.NodeProto) -> str:
    """The node's name; of one without the name that TensorRT's parser gives it."""
    return node.name or f"node_of_{next(iter(node.output), '')}"


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of one of the node's attributes."""
    import onnx

    entries = (entry for entry in node.attribute if entry.name == name)
    return next(map(onnx.helper.get_attribute_value, entries), default)


def subgraphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that the node has as attributes, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of(part: _Part) -> Iterator[_Part | onnx.GraphProto]:
    """The graph (or function) and, depth first, every subgraph of its nodes."""
    yield part
    for node in part.node:
        for inner in subgraphs_of(node):
            yield from graphs_of(inner)


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node, and every one inside it."""
    yield node
    yield from (one for part in subgraphs_of(node) for inner in graphs_of(part) for one in inner.node)


def parts_of(model: onnx.ModelProto) -> Iterator[Part]:
    """The model's graph, its functions, and every subgraph of either."""
    for part in (model.graph, *model.functions):
        yield from graphs_of(part)


def refill(field: Any, items: Iterable[Any]) -> None:
    """Give a repeated field of a message these items, some of which may be its own."""
    items = list(items)
    del field[:]
    field.extend(items)


def real_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs that a caller must give: older files list initializers among the inputs."""
    initializers = {item.name for item in graph.initializer}
    return [item for item in graph.input if item.name not in initializers]


def reads_of(node: onnx.NodeProto) -> set[str]:
    """Every name that the node reads, also from inside its subgraphs."""
    names = {name for name in node.input if name}
    for inner in subgraphs_of(node):
        made = set(_made_in(inner))
        names |= {name for item in inner.node for name in reads_of(item)} - made
        names |= {item.name for item in inner.output} - made
    return names


def nodes_for(
    nodes: Iterable[onnx.NodeProto], names: Iterable[str], given: Set[str] = frozenset()
) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes, in order, that `names` need where tensors in `given` are there; and all that these read."""
    needed, kept = set(names), []
    for node in reversed(list(nodes)):
        if needed.intersection(node.output) - given:
            kept.append(node)
            needed |= reads_of(node)
    return kept[::-1], needed


def check_texts(message: Message) -> None:
    """Every text of a model must be one: protobuf returns text that is no UTF-8 as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if hasattr(value, "ListFields") else value:
                check_texts(inner)
        elif field.type == field.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    text.decode()


def check_types(model: onnx.ModelProto, path: Path) -> None:
    """Every element type that tensors are declared with or cast to must be one that ONNX has.

    ONNX's checker does not check it, and later readers of the model expect no other.
    """
    import onnx

    known = set(onnx.TensorProto.DataType.values())
    castable = known - {onnx.TensorProto.UNDEFINED}
    for part in parts_of(model):
        for value in (
            (*part.input, *part.output, *part.value_info) if isinstance(part, onnx.GraphProto) else ()
        ):
            _check_type(value.type.tensor_type.elem_type, known, f"tensor {value.name!r}", path)
        for node in part.node:
            for item in node.attribute:
                if item.name in TYPE_ATTRIBUTES and node.domain in OWN_DOMAINS and not item.ref_attr_name:
                    allowed = castable if node.op_type == "Cast" else known
                    _check_type(
                        item.i, allowed, f"{item.name!r} of node {node.name!r} ({node.op_type})", path
                    )


def _check_type(found: int, known: set[int], where: str, path: Path) -> None:
    if found not in known:
        raise InvalidModelError(
            f"{path}: {where} has the unknown element type {found}", "export the model again"
        )


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that the model imports; 0 if it imports none."""
    return max((entry.version for entry in model.opset_import if entry.domain in OWN_DOMAINS), default=0)


def unknown_ops(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(operator, node name) of each node of ONNX's own domain that the model's opset does not have."""
    import onnx

    opset = opset_of(model)
    local = {(function.domain, function.name) for function in model.functions}
    return [
        (node.op_type, node.name or "an unnamed node")
        for part in graphs_of(model.graph)
        for node in part.node
        if node.domain in OWN_DOMAINS
        and (node.domain, node.op_type) not in local
        and not onnx.defs.has(node.op_type, opset, "")
    ]


def name_apart(graph: onnx.GraphProto) -> None:
    """Give every node, and every tensor of a subgraph, a name of its own, in place.

    A trace and TensorRT's layers need names of nodes. Branches of an If may call their tensors alike, which
    would be one tensor to all that keeps a table by name; what is called so first keeps its name.
    """
    name_nodes(graph)
    _name_tensors(graph, {}, set(), names_in(graph))


def _usual_name(node: onnx.NodeProto) -> str:
    return node.name or f"{node.op_type}:{next(filter(None, node.output), '')}"


def name_nodes(graph: onnx.GraphProto, like: Callable[[onnx.NodeProto], str] = _usual_name) -> None:
    """Give every node, those of subgraphs included, the name that `like` gives, or it with a number."""
    nodes = [node for inner in graphs_of(graph) for node in inner.node]
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    for node in nodes:
        wanted = name = like(node)
        while name in taken:
            counts[wanted] += 1
            name = f"{wanted}_{counts[wanted]}"
        node.name = name
        taken.add(name)


def unused_name(like: str, taken: Collection[str]) -> str:
    """`like`, or with a number behind it, so that it is none of `taken`."""
    name, count = like, 0
    while name in taken:
        count += 1
        name = f"{like}_{count}"
    return name


def take_name(like: str, taken: set[str]) -> str:
    """An unused name, which is one of `taken` from now on."""
    name = unused_name(like, taken)
    taken.add(name)
    return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The names of all tensors, those of subgraphs included."""
    return {name for part in graphs_of(graph) for name in _made_in(part)}


def _made_in(graph: onnx.GraphProto) -> Iterator[str]:
    """The tensors that are the graph's own."""
    yield from (item.name for item in (*graph.input, *graph.initializer))
    yield from (item.values.name for item in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _name_tensors(graph: onnx.GraphProto, outer: Mapping[str, str], seen: set[str], taken: set[str]) -> None:
    """Rename the graph's own tensors that are in `seen`; `outer` has the new names of those around it."""
    own: dict[str, str] = {}
    for name in dict.fromkeys(_made_in(graph)):
        own[name] = unused_name(name, taken) if name in seen else name
        taken.add(own[name])
    seen |= own.keys() | own.values()
    names = {**outer, **own}
    if any(old != new for old, new in names.items()):
        rename_tensors(graph, names)
    for node in graph.node:
        for inner in subgraphs_of(node):
            _name_tensors(inner, names, seen, taken)


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Write the new names, but for those inside the nodes' subgraphs."""
    for item in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        item.name = names.get(item.name, item.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for item in graph.quantization_annotation:
        item.tensor_name = names.get(item.tensor_name, item.tensor_name)
        for entry in item.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]


def rename_uses(graph: onnx.GraphProto, names: Mapping[str, str], *, makers: bool) -> None:
    """Let nodes, inner ones too, read tensors by other names; with `makers` these are made by those names."""
    for part in graphs_of(graph):
        for node in part.node:
            for field in (node.input, node.output) if makers else (node.input,):
                field[:] = [names.get(name, name) for name in field]
        for item in () if part is graph else part.output:
            item.name = names.get(item.name, item.name)
    for item in graph.initializer if makers else ():
        item.name = names.get(item.name, item.name)


class DisjointNames:
    """Disjoint sets of names (union-find, with path halving); every name begins as a set of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def root(self, name: str) -> str:
        """The name that stands for the set of `name`."""
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def join(self, *names: str) -> None:
        """Make one set of the sets of all these."""
        for other in names[1:]:
            self._parent[self.root(other)] = self.root(names[0])


# Which nodes make tensors whose size depends on the values of the inputs, and which outputs have it.
#
# Only the main graph is read: which branch runs and how often a loop does decides a size, what happens inside
# does not.


_EVERY = tuple(range(8))
SIZING_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "NonZero": (0,),
    "NonMaxSuppression": _EVERY,
    "Unique": (0,),
    "Compress": (1,),
    "TopK": (1,),
    "Range": _EVERY,
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Reshape": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1,),
    "Resize": (2, 3),
    "OneHot": (1,),
    "If": (0,),
    "Loop": (0, 1),
}
"""Operators whose output has a size that the values of these operands decide."""


def data_dependent_outputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Outputs whose size may depend on the inputs' values, each with the first node that makes it so.

    Later nodes may make the size a fixed one again: an output of known shape is none of these.
    """
    by_value = {value.name for value in graph.input} - {item.name for item in graph.initializer}
    causes: dict[str, str] = {}  # of tensors whose sizes depend on values; the values of `by_value` do
    for node in graph.node:
        operands = SIZING_OPERANDS.get(node.op_type, ()) if node.domain in OWN_DOMAINS else ()
        decides = any(node.input[place] in by_value for place in operands if place < len(node.input))
        is_measure = node.op_type in ("Shape", "Size")  # its value is a size, and its size is fixed
        inherited = [causes[name] for name in node.input if name in causes]
        outputs = list(filter(None, node.output))
        if inherited or (not is_measure and not by_value.isdisjoint(node.input)):
            by_value.update(outputs)
        if decides or (inherited and not is_measure):
            causes |= dict.fromkeys(outputs, (node.name or node.op_type) if decides else inherited[0])
    return {value.name: causes[value.name] for value in graph.output if value.name in causes}
