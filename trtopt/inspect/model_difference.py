"""Two models, node by node: what was added, removed and changed, whatever the nodes are called.

Nodes are matched in rounds, the strictest first: those computed alike of the same weights, or used alike;
those with other weights of these shapes; those of one name; last by order. A round takes what others left.
"""

from __future__ import annotations

import difflib
import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import OWN_DOMAINS, graphs_of, opset_of, real_inputs, refill, subgraphs_of
from trtopt.onnxio.model_file import ModelFile, array_of, remove_seal
from trtopt.onnxio.model_info import tensor_spec
from trtopt.onnxio.prepare import normalise
from trtopt.onnxio.shape_inference import declared_values, schema_of
from trtopt.onnxio.weights import stretches
from trtopt.records import FactChange, GraphNode, ModelDifference, NodeChange, TensorChange, WeightChange

_SHOWN = 8
"""Values of a tensor among the attributes; of a larger one a digest."""
Weigh = Callable[[onnx.TensorProto], Hashable]


def model_difference(a: ModelFile, b: ModelFile, names: tuple[str, str]) -> ModelDifference:
    """How B differs from A; `names` are theirs."""
    ours, theirs = _Side(a, names[0]), _Side(b, names[1])
    ours.call_ends_as(theirs)
    theirs.call_ends_as(ours)
    pairs = _match(ours, theirs)
    back = {other: own for own, other in pairs.items()}
    changed: list[NodeChange] = []
    tensors: list[TensorChange] = []
    edges = [(ours.reads[own], theirs.reads[other]) for own, other in sorted(pairs.items())]
    for (own, other), (before, after) in zip(sorted(pairs.items()), edges, strict=True):
        node, new = ours.nodes[own], theirs.nodes[other]
        count = [f"{len(before)} → {len(after)} inputs"] if len(before) != len(after) else []
        rewired = [
            f"reads {two!r} instead of {one!r}" for one, two in _rewired(ours, theirs, before, after, back)
        ]
        if what := [*_attribute_changes(node, new), *count, *rewired]:
            changed.append(NodeChange(node=node.name, other=new.name, op=node.op_type, what="; ".join(what)))
        for one, two in zip(node.output, new.output, strict=False):
            texts = ours.text_of(one), theirs.text_of(two)
            if texts[0] != texts[1] and one not in ours.ends:
                tensors.append(TensorChange(role="inner", name=one, a=texts[0], b=texts[1]))
    known = {theirs.keys[name]: name for name in theirs.outputs}
    given = [(one, known[ours.keys[one]]) for one in ours.outputs if ours.keys[one] in known]
    edges.append(([one for one, _ in given], [two for _, two in given]))
    read = dict.fromkeys(pair for reads in edges for pair in zip(*reads, strict=False))
    weights = (
        _weight_change(ours, theirs, one, two)
        for one, two in read
        if one in ours.weights and two in theirs.weights
    )
    facts: list[tuple[str, str | None, str | None]] = [
        *_differing(ours.facts, theirs.facts),
        *_reordered(ours, theirs),
    ]
    facts += [
        (f"source of output {one}", ours.source(one), theirs.source(two))
        for one, two in _rewired(ours, theirs, *edges[-1], back)
    ]
    return ModelDifference(
        a=names[0],
        b=names[1],
        facts=tuple(FactChange(what=what, a=before, b=after) for what, before, after in facts),
        tensors=(*_end_changes(ours, theirs), *tensors),
        added=tuple(theirs.listed(place) for place in range(len(theirs.nodes)) if place not in back),
        removed=tuple(ours.listed(place) for place in range(len(ours.nodes)) if place not in pairs),
        changed=tuple(changed),
        weights=tuple(filter(None, weights)),
        same=len(pairs) - len(changed),
        renamed=sum(ours.nodes[one].name != theirs.nodes[two].name for one, two in pairs.items()),
    )


class _Side:
    """One of the models, in the form that is matched."""

    def __init__(self, file: ModelFile, path: str) -> None:
        try:
            model = normalise(file.proto)
        except ModelError as error:
            raise type(error)(f"{path}: {error.problem}", error.remedy) from None
        remove_seal(model)
        self.file, self.nodes = file, [*_nodes_in(model.graph)]
        self.reads = [
            [*node.input, *(item.name for inner in subgraphs_of(node) for item in inner.output)]
            for node in self.nodes
        ]
        _drop_defaults(model)
        self.weights = {item.name: item for part in graphs_of(model.graph) for item in part.initializer}
        self.entries = {
            item.name: (place, index)
            for place, node in enumerate(self.nodes)
            for inner in subgraphs_of(node)
            for index, item in enumerate(inner.input)
        }
        self.makers = {
            name: (place, index)
            for place, node in enumerate(self.nodes)
            for index, name in enumerate(node.output)
            if name
        }
        self.inputs = {item.name: tensor_spec(item).type_text for item in real_inputs(model.graph)}
        self.outputs = {item.name: tensor_spec(item).type_text for item in model.graph.output}
        self.ends = {*self.inputs, *self.outputs}
        self.keys: dict[str, Hashable] = {}
        self._values = declared_values(model)
        self.facts = {
            "IR version": str(file.proto.ir_version),
            "producer": f"{model.producer_name} {model.producer_version}".strip(),
            **{f"opset {one.domain or 'ai.onnx'}": str(one.version) for one in model.opset_import},
            **{f"metadata {one.key}": one.value for one in model.metadata_props},
        }

    def call_ends_as(self, other: _Side) -> None:
        """Inputs and outputs that the other has are known by name, those that it lacks by their place."""
        for own, its in ((self.inputs, other.inputs), (self.outputs, other.outputs)):
            alone = [name for name in own if name not in its]
            self.keys |= {name: alone.index(name) if name in alone else name for name in own}

    def origin(self, name: str, matched: Mapping[int, int]) -> Hashable:
        """Where a tensor comes from; None: from a node that the other side lacks."""
        if name not in self.makers and name not in self.entries:
            return "weight" if name in self.weights else ("input", self.keys.get(name))
        place, index = self.makers.get(name) or self.entries[name]
        return (matched[place], index, name in self.makers) if place in matched else None

    def source(self, name: str) -> str:
        """What gives an output, in words."""
        return self.nodes[self.makers[name][0]].name if name in self.makers else name

    def listed(self, place: int) -> GraphNode:
        """A node that has no match."""
        node = self.nodes[place]
        return GraphNode(node=node.name, op=node.op_type)

    def text_of(self, name: str) -> str | None:
        """A tensor's type and shape."""
        value = self._values.get(name)
        return None if value is None else tensor_spec(value).type_text

    @cached_property
    def tokens(self) -> list[Hashable]:
        """What each node is, without its name."""
        return [(_operator(node), tuple(sorted(_attributes(node).items()))) for node in self.nodes]

    @cached_property
    def with_weights(self) -> list[Hashable]:
        """The same with the values of its weights."""
        held = ([self.weights[name] for name in reads if name in self.weights] for reads in self.reads)
        return [(token, *map(self.by_value, own)) for token, own in zip(self.tokens, held, strict=True)]

    @cached_property
    def _digests(self) -> dict[str, bytes]:
        return {name: _digest(item, self.file.folder) for name, item in self.weights.items()}

    def by_value(self, item: onnx.TensorProto) -> Hashable:
        """A weight's type, shape and values."""
        return item.data_type, tuple(item.dims), self._digests[item.name]

    def up(self, weigh: Weigh) -> list[int]:
        """A number for each node that is the same where all that it is computed of is."""
        known: dict[str, int] = {name: hash(("input", self.keys[name])) for name in self.inputs}
        known |= {name: hash(weigh(item)) for name, item in self.weights.items()}

        def of(name: str) -> int:
            if name not in known and name in self.entries:  # its node comes after those in it
                place, index = self.entries[name]
                known[name] = hash((self.tokens[place], index, *map(of, self.nodes[place].input)))
            return known.get(name, 0)

        found = []
        for node, token, reads in zip(self.nodes, self.tokens, self.reads, strict=True):
            found.append(hash((token, *map(of, reads))))
            known |= {name: hash((found[-1], index)) for index, name in enumerate(node.output)}
        return found

    def down(self, weigh: Weigh) -> list[int]:
        """The same for all that is computed of it."""
        uses: dict[str, list[int]] = defaultdict(list)
        for name in self.outputs:
            uses[name].append(hash(("output", self.keys[name])))
        found = []
        for place in reversed(range(len(self.nodes))):
            reads, outputs = self.reads[place], self.nodes[place].output
            held = [hash(weigh(self.weights[name])) for name in reads if name in self.weights]
            found.append(hash((self.tokens[place], *held, *(tuple(sorted(uses[name])) for name in outputs))))
            for index, name in enumerate(reads):
                uses[name].append(hash((found[-1], index)))
        return found[::-1]


def _nodes_in(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes; those inside one come before it, as it reads what they make."""
    for node in graph.node:
        for inner in subgraphs_of(node):
            yield from _nodes_in(inner)
        yield node


def _drop_defaults(model: onnx.ModelProto) -> None:
    """Take out attributes that say what their absence would, in place."""
    for part in graphs_of(model.graph):
        for node in part.node:
            schema = schema_of(node.op_type, opset_of(model)) if node.domain in OWN_DOMAINS else None
            known = schema.attributes if schema is not None else {}
            refill(node.attribute, [item for item in node.attribute if not _is_default(item, known)])


def _is_default(item: onnx.AttributeProto, known: Mapping[str, Any]) -> bool:
    usual = known[item.name].default_value if item.name in known else None
    return usual is not None and _attribute_text(item) == _attribute_text(usual)


def _operator(node: onnx.NodeProto) -> Hashable:
    return "" if node.domain in OWN_DOMAINS else node.domain, node.op_type


def _digest(weight: onnx.TensorProto, folder: Path) -> bytes:
    if weight.data_type == onnx.TensorProto.STRING:
        return repr([*weight.string_data]).encode()
    return hashlib.sha256(np.ascontiguousarray(array_of(weight, folder)).view(np.uint8).data).digest()


def _attributes(node: onnx.NodeProto) -> dict[str, str]:
    """Each attribute as text, but for graphs: their nodes are among all others."""
    graphs = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
    return {item.name: _attribute_text(item) for item in node.attribute if item.type not in graphs}


def _attribute_text(item: onnx.AttributeProto) -> str:
    if item.HasField("t"):  # however it is called and stored
        values = onnx.numpy_helper.to_array(item.t)
        text = f"{values.dtype}{list(values.shape)} {values.tolist()}"
        return text if values.size <= _SHOWN else hashlib.sha256(text.encode()).hexdigest()[:12]
    return str(onnx.helper.printable_attribute(item)).partition(" = ")[2]


def _match(a: _Side, b: _Side) -> dict[int, int]:
    """The nodes of A that are in B, by their places."""
    pairs: dict[int, int] = {}
    left, right = [*range(len(a.nodes))], [*range(len(b.nodes))]

    def take(found: Sequence[tuple[int, int]]) -> None:
        pairs.update(found)
        left[:] = [place for place in left if place not in pairs]
        taken = {*pairs.values()}
        right[:] = [place for place in right if place not in taken]

    def by(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> None:
        here: dict[Hashable, list[int]] = defaultdict(list)
        there: dict[Hashable, list[int]] = defaultdict(list)
        for waiting, side, places in ((here, ours, left), (there, theirs, right)):
            for place in places:
                waiting[side[place]].append(place)
        # one of several twins may be another's: they wait for what tells them apart
        alike = [(some, there[key]) for key, some in here.items() if len(some) == len(there[key])]
        take([pair for some, others in alike for pair in zip(some, others, strict=True)])

    for ours, theirs in ((a.by_value, b.by_value), (_dims, _dims)):
        ups, downs = (a.up(ours), b.up(theirs)), (a.down(ours), b.down(theirs))
        by(*(list(zip(up, down, strict=True)) for up, down in zip(ups, downs, strict=True)))
        by(*ups)
        by(*downs)
    by(*([(_operator(node), node.name) for node in side.nodes] for side in (a, b)))
    operators = [[_operator(node) for node in side.nodes] for side in (a, b)]
    for kinds, others in ((a.with_weights, b.with_weights), (a.tokens, b.tokens), operators):
        runs = difflib.SequenceMatcher(None, [kinds[one] for one in left], [others[one] for one in right])
        take(
            [
                (left[run.a + step], right[run.b + step])
                for run in runs.get_matching_blocks()
                for step in range(run.size)
            ]
        )
    return pairs


def _dims(item: onnx.TensorProto) -> Hashable:
    return tuple(item.dims)


def _attribute_changes(node: onnx.NodeProto, new: onnx.NodeProto) -> Iterator[str]:
    before, after = _attributes(node), _attributes(new)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield f"{name} {before.get(name, '–')} → {after.get(name, '–')}"


def _rewired(
    a: _Side, b: _Side, before: Sequence[str], after: Sequence[str], back: Mapping[int, int]
) -> Iterator[tuple[str, str]]:
    """Tensors that come from elsewhere; not where a node was put in front, or taken out: that is listed."""
    both = {place: place for place in back.values()}
    for one, two in zip(before, after, strict=False):
        made, new = a.origin(one, both), b.origin(two, back)
        if None not in (made, new) and made != new:
            yield one, two


def _reordered(a: _Side, b: _Side) -> Iterator[tuple[str, str, str]]:
    for role, own, its in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if own.keys() == its.keys() and [*own] != [*its]:
            yield f"order of {role}", ", ".join(own), ", ".join(its)


def _weight_change(a: _Side, b: _Side, one: str, two: str) -> WeightChange | None:
    first, second = a.weights[one], b.weights[two]
    if a.by_value(first) == b.by_value(second):
        return None
    relative = largest = None
    if first.dims == second.dims and onnx.TensorProto.STRING not in (first.data_type, second.data_type):
        norm = moved = largest = 0.0
        values = (array_of(item, side.file.folder) for item, side in ((first, a), (second, b)))
        for old, new in zip(*map(stretches, values), strict=True):
            before, after = old.astype(np.float64), new.astype(np.float64)
            with np.errstate(invalid="ignore"):  # infinity in both is no step
                step = np.where((before == after) | (np.isnan(before) & np.isnan(after)), 0, after - before)
            norm += float(np.square(before).sum())
            moved += float(np.square(step).sum())
            largest = float(np.maximum(largest, np.abs(step).max(initial=0.0)))
        relative = (moved / norm) ** 0.5 if 0 < norm < np.inf else None
    declared = (
        onnx.helper.make_tensor_value_info(item.name, item.data_type, [*item.dims])
        for item in (first, second)
    )
    before, after = (tensor_spec(one).type_text for one in declared)
    return WeightChange(weight=one, other=two, a=before, b=after, relative=relative, largest=largest)


def _end_changes(a: _Side, b: _Side) -> Iterator[TensorChange]:
    for name, before, after in _differing(a.inputs, b.inputs):
        yield TensorChange(role="input", name=name, a=before, b=after)
    for name, before, after in _differing(a.outputs, b.outputs):
        yield TensorChange(role="output", name=name, a=before, b=after)


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[tuple[str, str | None, str | None]]:
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            yield name, a.get(name), b.get(name)
