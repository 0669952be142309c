"""A model raised to a newer opset: every node in the form of that opset, everything else as it was.

ONNX's own version converter is not used: it turns an asymmetric Resize into another, loses names and knows
neither subgraphs nor functions.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import UnsupportedOpError
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    Part,
    graphs_of,
    opset_of,
    parts_of,
    reads_of,
    set_nodes,
    subgraphs_of,
)
from trtopt.onnxio.model_file import is_external
from trtopt.onnxio.operator_changes import CHANGES, OLDEST, SAME, NoNewerFormError
from trtopt.onnxio.prepare import inferred
from trtopt.onnxio.unique_names import unused_name

_IR_VERSIONS = ((21, 10), (19, 9), (15, 8), (0, 7))


def raise_opset(model: onnx.ModelProto, to: int) -> None:
    """Write the model's nodes as opset `to`, 13 or newer, wants them, in place; one that is as new stays.

    Nodes keep their names, metadata and order; new ones are named after the node that they belong to.
    """
    now = opset_of(model)
    if now >= to:
        return
    raiser = _Raiser(model, to)
    raiser.graph(model.graph, raiser.known, {}, {}, now)
    for function in model.functions:
        raiser.function(function)
    for entry in model.opset_import:
        if entry.domain in OWN_DOMAINS:
            entry.version = to
    least = next(ir for opset, ir in _IR_VERSIONS if to >= opset)
    model.ir_version = max(model.ir_version, least)


@cache
def _history() -> dict[str, list[int]]:
    """The opsets in which each of ONNX's own operators was new or changed, in order."""
    found = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in OWN_DOMAINS:
            found[schema.name].add(schema.since_version)
    return {name: sorted(versions) for name, versions in found.items()}


class _Raiser:
    """Walks the graphs and functions of one model."""

    def __init__(self, model: onnx.ModelProto, to: int) -> None:
        self._to = to
        self._functions = {(_domain(item.domain), item.name) for item in model.functions}
        self.known = inferred(model).graph if self._is_changed(model.graph, opset_of(model)) else model.graph
        self._taken = set(_names_in(model))
        self._read = {item.name for part in graphs_of(model.graph) for item in part.output}
        self._read |= {name for function in model.functions for name in function.output}
        self._read |= {name for part in parts_of(model) for node in part.node for name in reads_of(node)}

    def _is_changed(self, graph: onnx.GraphProto, now: int) -> bool:
        nodes = [node for part in graphs_of(graph) for node in part.node if self._is_own(node)]
        return any((node.op_type, step) in CHANGES for node in nodes for step in self._steps(node, now))

    def _is_own(self, node: onnx.NodeProto) -> bool:
        return node.domain in OWN_DOMAINS and ("", node.op_type) not in self._functions

    def _steps(self, node: onnx.NodeProto, now: int) -> list[int]:
        return [step for step in _history().get(node.op_type, ()) if now < step <= self._to]

    def graph(
        self,
        graph: onnx.GraphProto,
        known: onnx.GraphProto,
        types: MutableMapping[str, onnx.TypeProto.Tensor],
        constants: MutableMapping[str, onnx.TensorProto],
        now: int,
    ) -> None:
        """Rewrite a graph, and those inside its nodes; `known` is the same graph with inferred types."""
        own = _constants_of(graph)
        constants = ChainMap(own, constants)
        types = ChainMap(_types_of(known, own), types)
        around = _Around(types, constants, self._taken, self._read)
        nodes = []
        for node, twin in zip(graph.node, known.node, strict=True):
            for inner, inner_known in zip(subgraphs_of(node), subgraphs_of(twin), strict=True):
                self.graph(inner, inner_known, types, constants, now)
            nodes += self._raised(node, now, around)
        graph.initializer.extend(around.made)
        set_nodes(graph, nodes)

    def function(self, function: onnx.FunctionProto) -> None:
        """Rewrite a function; the constants that it needs become nodes."""
        now = max((item.version for item in function.opset_import if item.domain in OWN_DOMAINS), default=0)
        if not 0 < now < self._to:
            return
        nodes = []
        for node in function.node:
            around = _Around({}, _constants_of(function), self._taken, self._read)
            for inner in subgraphs_of(node):
                self.graph(inner, inner, {}, _constants_of(function), now)
            raised = self._raised(node, now, around)
            nodes += [onnx.helper.make_node("Constant", [], [item.name], value=item) for item in around.made]
            nodes += raised
        set_nodes(function, nodes)
        for entry in function.opset_import:
            if entry.domain in OWN_DOMAINS:
                entry.version = self._to

    def _raised(self, node: onnx.NodeProto, now: int, around: _Around) -> list[onnx.NodeProto]:
        """The nodes with the meaning at the new opset that `node` has at opset `now`."""
        if not self._is_own(node):
            return [node]
        steps = self._steps(node, now)
        if not steps:
            return [node]
        step = steps[0]
        if step == _history()[node.op_type][0]:
            raise self._refused(node, now, f"is not of opset {now}; at {step} ONNX has another of that name")
        if (node.op_type, step) in SAME:
            return self._raised(node, step, around)
        change = CHANGES.get((node.op_type, step))
        if change is None or step <= OLDEST:
            raise self._refused(node, now, f"changed at opset {step} in a way that trtopt does not know")
        op = node.op_type
        try:
            made = change(node, around)
        except NoNewerFormError as error:
            node.op_type = op
            raise self._refused(node, now, str(error)) from None
        return [done for item in made for done in self._raised(item, step, around)]

    def _refused(self, node: onnx.NodeProto, now: int, why: str) -> UnsupportedOpError:
        name = node.name or next(iter(node.output), "")
        return UnsupportedOpError(
            f"opset {now} cannot be raised to {self._to}: node {name!r} ({node.op_type}) {why}",
            f"export the model again at opset {self._to}",
        )


class _Around:
    """What is around a node; see `operator_changes.Surroundings`."""

    def __init__(
        self,
        types: Mapping[str, onnx.TypeProto.Tensor],
        constants: Mapping[str, onnx.TensorProto],
        taken: set[str],
        read: set[str],
    ) -> None:
        self._types, self._constants, self._taken, self._read = types, constants, taken, read
        self.made: list[onnx.TensorProto] = []

    def type_of(self, tensor: str) -> onnx.TypeProto.Tensor:
        """Its type and shape, as far as they are known."""
        return self._types.get(tensor) or onnx.TypeProto.Tensor()

    def value_of(self, tensor: str) -> NDArray[Any] | None:
        """The values of a small constant, a new one too."""
        found = self._constants.get(tensor) or next((item for item in self.made if item.name == tensor), None)
        return None if found is None or is_external(found) else onnx.numpy_helper.to_array(found)

    def is_read(self, tensor: str) -> bool:
        """Whether a node reads the tensor, or it is an output."""
        return bool(tensor) and tensor in self._read

    def constant(self, values: NDArray[Any], like: str) -> str:
        """The name of a new constant."""
        name = self.name(like)
        self.made.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def name(self, like: str) -> str:
        """A name that nothing in the model has."""
        name = unused_name(like, self._taken)
        self._taken.add(name)
        return name


def _domain(name: str) -> str:
    return "" if name in OWN_DOMAINS else name


def _constants_of(part: Part) -> dict[str, onnx.TensorProto]:
    found = {item.name: item for item in getattr(part, "initializer", ())}
    for node in part.node:
        if node.op_type == "Constant" and node.domain in OWN_DOMAINS:
            found.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
    return found


def _types_of(
    known: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]
) -> dict[str, onnx.TypeProto.Tensor]:
    found = {
        name: onnx.helper.make_tensor_type_proto(item.data_type, list(item.dims)).tensor_type
        for name, item in constants.items()
    }
    values = (*known.input, *known.value_info, *known.output)
    return found | {item.name: item.type.tensor_type for item in values}


def _names_in(model: onnx.ModelProto) -> Iterator[str]:
    for part in parts_of(model):
        for item in (*part.input, *part.output, *getattr(part, "initializer", ())):
            yield item if isinstance(item, str) else item.name
        for node in part.node:
            yield from (node.name, *node.input, *node.output)
