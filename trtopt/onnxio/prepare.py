"""From a model as exporters write it to one that rules can walk: inlined, sorted, named, its shapes known."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
import onnx.inliner

from trtopt.errors import InvalidModelError, UnsupportedOpError
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    graphs_of,
    name_apart,
    name_nodes,
    opset_of,
    parts_of,
    reads_of,
    real_inputs,
    refill,
    subgraphs_of,
)
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import EXPORT_AGAIN, check, check_functions, forget_placeholders

_CARRIED = {
    onnx.AttributeProto.FLOAT,
    onnx.AttributeProto.INT,
    onnx.AttributeProto.STRING,
    onnx.AttributeProto.TENSOR,
    onnx.AttributeProto.GRAPH,
    onnx.AttributeProto.FLOATS,
    onnx.AttributeProto.INTS,
    onnx.AttributeProto.STRINGS,
}
_PLAIN = {"float": np.float32, "int": np.int64, "string": object}
"""What elements a Constant's attributes hold that are no tensors: `value_float`, `value_ints` and so on."""
_RENAME = "tensor names must be unique: export the model again, or rename in the tool that merged graphs"
_OPSET_OF_NONE = 17
"""What every TensorRT and ONNX Runtime reads."""
_MOST_DENSE_BYTES = 1 << 30


def count_nodes(model: onnx.ModelProto) -> int:
    """How many nodes the model has, those inside others included."""
    return sum(len(inner.node) for inner in graphs_of(model.graph))


def sort_nodes(graph: onnx.GraphProto, outer: frozenset[str] | None = None) -> None:
    """Put nodes after those they read from, in place; nodes in order stay in order, subgraphs included."""
    once = (graph.input, graph.output) if outer is None else (graph.input,)  # a branch may give one twice
    for values in once:
        name, count = next(iter(Counter(item.name for item in values).most_common(1)), ("", 0))
        if count > 1:
            raise InvalidModelError(f"tensor name {name!r} is given to more than one tensor", _RENAME)
    known = set(outer or ()) | {item.name for item in (*graph.input, *graph.initializer)}
    known |= {item.values.name for item in graph.sparse_initializer}
    maker: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in maker or name in known:
                raise InvalidModelError(
                    f"tensor name {name!r} is given to more than one tensor, again by node {node.name!r}",
                    _RENAME,
                )
            maker[name] = index
    waiting, readers = [0] * len(graph.node), [[] for _ in graph.node]  # type: list[int], list[list[int]]
    for index, node in enumerate(graph.node):
        for name in sorted(reads_of(node) - known):
            if name not in maker:
                raise InvalidModelError(
                    f"node {node.name!r} ({node.op_type}) reads {name!r}, which is no input of the model, no "
                    "initializer and no output of a node",
                    "export the model again: its initializer or node was lost",
                )
            readers[maker[name]].append(index)
            waiting[index] += 1
    missing = [item.name for item in graph.output if item.name not in maker and item.name not in known]
    if missing:
        raise InvalidModelError(f"no node produces the output {missing[0]!r}", EXPORT_AGAIN)
    ready = [index for index, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(graph.node):
        stuck = next(node.name for node, count in zip(graph.node, waiting, strict=True) if count)
        raise InvalidModelError(f"the graph has a cycle through node {stuck!r}", EXPORT_AGAIN)
    if order != list(range(len(order))):
        nodes = [graph.node[index] for index in order]
        refill(graph.node, nodes)
    visible = frozenset(known | set(maker))
    for node in graph.node:
        for inner in subgraphs_of(node):
            sort_nodes(inner, visible)


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """What a sparse tensor stands for, as an initializer."""
    values, places = map(onnx.numpy_helper.to_array, (sparse.values, sparse.indices))
    if math.prod(sparse.dims) * values.itemsize > _MOST_DENSE_BYTES:
        raise UnsupportedOpError(
            f"sparse tensor {name!r} takes more than {_MOST_DENSE_BYTES >> 30} GiB with its zeros",
            "export the model with dense weights",
        )
    one_each = places.shape in (values.shape, (*values.shape, len(sparse.dims)))
    if not one_each or places.dtype != np.int64 or min(places.min(initial=0), *sparse.dims, 0) < 0:
        raise InvalidModelError(f"sparse tensor {name!r} does not have a place for each value", EXPORT_AGAIN)
    whole = np.zeros(sparse.dims, values.dtype)
    try:
        whole[tuple(places.T) if places.ndim > 1 else np.unravel_index(places, whole.shape)] = values
    except (IndexError, ValueError) as error:
        raise InvalidModelError(f"sparse tensor {name!r}: {error}", EXPORT_AGAIN) from None
    return onnx.numpy_helper.from_array(whole, name)


def _constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """What a Constant node holds, as an initializer of its output's name."""
    if len(node.attribute) != 1:
        raise InvalidModelError(
            f"Constant {node.name or node.output[0]!r} has {len(node.attribute)} values", EXPORT_AGAIN
        )
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    kind = attribute.name.removeprefix("value_").removesuffix("s")
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
        return tensor
    if attribute.name == "sparse_value":
        return _dense(value, node.output[0])
    if kind not in _PLAIN:
        raise InvalidModelError(
            f"Constant {node.name or node.output[0]!r} holds {attribute.name!r}", EXPORT_AGAIN
        )
    return onnx.numpy_helper.from_array(np.array(value, _PLAIN[kind]), node.output[0])


def lower_constants(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes into initializers, in place and in all subgraphs.

    One that makes an output of its graph stays a node, its value a tensor.
    """
    for inner in graphs_of(graph):
        outputs = {item.name for item in inner.output}
        kept = []
        for node in inner.node:
            if node.op_type != "Constant" or node.domain not in OWN_DOMAINS:
                kept.append(node)
                continue
            tensor = _constant_tensor(node)
            if node.output[0] in outputs:
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("value", tensor))
                kept.append(node)
            else:
                inner.initializer.append(tensor)
        if len(kept) < len(inner.node):
            refill(inner.node, kept)


def _refuse_lossy_attributes(graph: onnx.GraphProto) -> None:
    for inner in graphs_of(graph):
        for node in inner.node:
            for item in node.attribute:
                empty = item.type in (item.INTS, item.FLOATS, item.STRINGS) and not (
                    item.ints or item.floats or item.strings
                )
                if item.type not in _CARRIED or empty:
                    raise UnsupportedOpError(
                        f"node {node.name!r} ({node.op_type}): attribute {item.name!r} would be lost",
                        "use the model without rewriting",
                    )


def _spell_plainly(model: onnx.ModelProto) -> None:
    """Give what has two spellings in ONNX the usual one, in place.

    The standard operators' domain is also called `ai.onnx`; weights may be written as sparse tensors; some
    exporters write an open axis as −1, or call it `?`; older ones list every initializer among the inputs,
    though TensorRT takes none as an input.
    """
    for item in (*model.opset_import, *(node for inner in graphs_of(model.graph) for node in inner.node)):
        if item.domain == "ai.onnx":
            item.domain = ""
    for inner in graphs_of(model.graph):
        inner.initializer.extend(_dense(item, item.values.name) for item in inner.sparse_initializer)
        del inner.sparse_initializer[:]
        for item in (*inner.input, *inner.output, *inner.value_info):
            for axis in item.type.tensor_type.shape.dim:
                if axis.HasField("dim_value") and axis.dim_value < 0:
                    axis.ClearField("dim_value")
    forget_placeholders(model.graph)
    nodes = [node for part in parts_of(model) for node in part.node]
    if not opset_of(model) and not any(node.domain in OWN_DOMAINS for node in nodes):
        model.opset_import.add(domain="", version=_OPSET_OF_NONE)  # for the operators that are put in
    refill(model.graph.input, real_inputs(model.graph))
    model.ir_version = max(model.ir_version, 4)  # older ones want every initializer among the inputs


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the nodes of its functions in their place, where they are of its opset."""
    if not model.functions:
        return model
    check_functions(model)
    return onnx.inliner.inline_local_functions(model)


def inline_and_name(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same, sorted and with a name for each node, as what is reported on a model names them."""
    inlined = inline_functions(model)
    name_nodes(inlined.graph)
    sort_nodes(inlined.graph)
    return inlined


def prepare(model: ModelFile) -> ModelFile:
    """The model with a sound copy of its graph: functions inlined, Constant nodes made initializers."""
    copy = normalise(model.proto)
    _refuse_lossy_attributes(copy.graph)
    return replace(model, proto=copy)


def normalise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Such a copy, also of a model with attributes that no rewritten one can have."""
    copy = deepcopy(model)
    _spell_plainly(copy)
    if not opset_of(copy):
        raise InvalidModelError("the model names no version of the standard operators", EXPORT_AGAIN)
    copy = inline_functions(copy)
    if copy.functions:
        raise UnsupportedOpError(
            f"function {copy.functions[0].name!r} cannot be inlined: it is of another opset than the model",
            "export the model again with one opset, or use it without rewriting",
        )
    name_apart(copy.graph)
    sort_nodes(copy.graph)
    check(copy)
    lower_constants(copy.graph)
    return copy
