"""A dynamic batch axis for a model that was exported with a fixed one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import FixedBatchError
from trtopt.onnxio import prepare
from trtopt.onnxio.graph_walk import graphs_of, set_nodes
from trtopt.onnxio.unique_names import unused_name
from trtopt.rewrite.batch_path import Grown, followed
from trtopt.rewrite.batch_rules import refuse_row_indices

NAME = "batch"


def fixed_batch(model: onnx.ModelProto) -> int:
    """The batch size that every input has as its first axis.

    Raises:
        FixedBatchError: the inputs' first axes differ, or are dynamic already.
    """
    sizes = {}
    for item in feeds.inputs_of(model):
        axes = item.type.tensor_type.shape.dim
        sizes[item.name] = axes[0].dim_value if axes and axes[0].HasField("dim_value") else 0
    if not sizes or 0 in sizes.values():
        raise FixedBatchError(
            "the batch axis is dynamic already, or an input has none", "omit --dynamic-batch"
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise FixedBatchError(
            f"the inputs do not share their first axis ({listed})", "export with a dynamic batch axis"
        )
    return int(next(iter(sizes.values())))


def _unbaked(op: str, shape: list[int], batch: int) -> list[int] | None:
    """The shape operand of a Reshape or Expand without the batch; None if the batch is not in it.

    A Reshape's first axis is what is left over where all its axes are numbers, which is what it was before:
    the batch may be a factor of it.
    """
    if not shape or shape == [1] or shape[0] <= 0:
        return None
    if op == "Expand":
        return [1, *shape[1:]] if shape[0] == batch else None
    if min(shape) > 0:
        return [-1, *shape[1:]] if shape[0] % batch == 0 else None
    return [0 if -1 in shape else -1, *shape[1:]] if shape[0] == batch else None


def _without_batch(
    node: onnx.NodeProto, shape: list[int], batch: int, grown: Mapping[str, Grown]
) -> list[int] | None:
    """A Reshape's or Expand's shape operand without the batch: by the path through the graph, or by value."""
    found = grown.get(node.output[0])
    if found is None or node.input[0] not in grown:
        return _unbaked(node.op_type, shape, batch)
    free = -1 if node.op_type == "Reshape" else 1
    new = [free if place == found.axis else size for place, size in enumerate(found.shape)]
    is_open = len(shape) == len(new) and shape[found.axis] == free and shape.count(free) == 1
    return None if is_open else new


def _patch_shapes(graph: onnx.GraphProto, batch: int, grown: Mapping[str, Grown]) -> list[str]:
    """Give each Reshape and Expand a shape of its own without the batch; the old shapes' names.

    A subgraph's node may read the main graph's constants: the new shapes lie there, to be seen by all.
    """
    outer = {item.name: item for item in graph.initializer if not item.external_data}
    made: dict[tuple[str, tuple[int, ...]], str] = {}
    for inner in graphs_of(graph):
        constants = outer | {item.name: item for item in inner.initializer if not item.external_data}
        for node in inner.node:
            if node.op_type not in ("Reshape", "Expand") or node.input[1] not in constants:
                continue
            name = node.input[1]
            old = onnx.numpy_helper.to_array(constants[name]).reshape(-1).tolist()
            new = _without_batch(node, old, batch, grown)
            if new is not None:
                key = (name, tuple(new))
                if key not in made:
                    made[key] = f"{name}/{NAME}{len(made)}"
                    value = onnx.numpy_helper.from_array(np.array(new, np.int64), made[key])
                    graph.initializer.append(value)
                node.input[1] = made[key]
                for item in node.attribute:  # the one 0 that may be there now is a copy
                    item.i = 0 if item.name == "allowzero" else item.i
    return sorted({name for name, _ in made})


def _patch_sizes(graph: onnx.GraphProto, grown: Mapping[str, Grown]) -> list[str]:
    """Let each Resize to constant sizes take the batch from its input's shape; the old sizes' names."""
    constants = {item.name: item for item in graph.initializer}
    nodes, patched = [], []
    for node in graph.node:
        sizes = node.input[3] if node.op_type == "Resize" and len(node.input) > 3 else ""
        found = grown.get(node.output[0])
        if sizes in constants and found is not None and not any(a.name == "axes" for a in node.attribute):
            base, at = f"{node.output[0]}/{NAME}", found.axis
            length = np.array(found.shape, np.int64)
            for name, value in (("axis", np.array([at])), ("head", length[:at]), ("tail", length[at + 1 :])):
                value = onnx.numpy_helper.from_array(value.astype(np.int64), f"{base}/{name}")
                graph.initializer.append(value)
            nodes += [
                onnx.helper.make_node("Shape", node.input[:1], [f"{base}/shape"]),
                onnx.helper.make_node("Gather", [f"{base}/shape", f"{base}/axis"], [f"{base}/rows"]),
                onnx.helper.make_node(
                    "Concat", [f"{base}/head", f"{base}/rows", f"{base}/tail"], [f"{base}/sizes"], axis=0
                ),
            ]
            node.input[3] = f"{base}/sizes"
            patched.append(sizes)
        nodes.append(node)
    set_nodes(graph, nodes)
    return patched


def _forget_inner_shapes(graph: onnx.GraphProto, batch: int) -> None:
    """Drop what is declared of inner tensors; what goes into and out of a subgraph keeps its other axes.

    A first axis as long as the batch may be the batch or not: it becomes unknown.
    """
    for inner in graphs_of(graph):
        del inner.value_info[:]
        for item in () if inner is graph else (*inner.input, *inner.output):
            axes = item.type.tensor_type.shape.dim
            if axes and axes[0].dim_value == batch:
                axes[0].ClearField("dim_value")


def _known_axes(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    """The lengths of each tensor's axes, None for those that are not fixed."""
    graph = prepare.inferred(model).graph
    found: dict[str, list[int | None]] = {item.name: list(item.dims) for item in graph.initializer}
    for item in (*graph.input, *graph.value_info):
        axes = item.type.tensor_type.shape.dim
        found.setdefault(item.name, [axis.dim_value if axis.HasField("dim_value") else None for axis in axes])
    return found


def _spread_rows(model: onnx.ModelProto) -> list[str]:
    """Repeat what a Concat joins to every row of a batch, such as a class token; the names of its inputs."""
    known, nodes, spread = _known_axes(model), [], []
    for node in model.graph.node:
        rows = [name for name in node.input if known.get(name, [0])[:1] == [None]]
        single = [name for name in node.input if known.get(name, [0])[:1] == [1]]
        if node.op_type == "Concat" and rows and single and node.attribute[0].i % len(known[single[0]]):
            base, inner = f"{node.output[0]}/{NAME}", len(known[single[0]]) - 1
            zero, ones = np.zeros(1, np.int64), np.ones(inner, np.int64)
            for name, value in ((f"{base}/first", zero), (f"{base}/ones", ones)):
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            nodes += [
                onnx.helper.make_node("Shape", rows[:1], [f"{base}/shape"]),
                onnx.helper.make_node("Gather", [f"{base}/shape", f"{base}/first"], [f"{base}/rows"]),
                onnx.helper.make_node("Concat", [f"{base}/rows", f"{base}/ones"], [f"{base}/all"], axis=0),
            ]
            for place, name in enumerate(node.input):
                if name in single:
                    node.input[place] = f"{base}/{place}"
                    nodes.append(onnx.helper.make_node("Expand", [name, f"{base}/all"], [node.input[place]]))
            spread += single
        nodes.append(node)
    set_nodes(model.graph, nodes)
    return spread


def _free_the_name(graph: onnx.GraphProto) -> None:
    """Let axes that are called `batch` already, and are not the batch, go by another name."""
    values = [item for inner in graphs_of(graph) for item in (*inner.input, *inner.output, *inner.value_info)]
    axes = [axis for item in values for axis in item.type.tensor_type.shape.dim]
    other = unused_name(NAME, {axis.dim_param for axis in axes} | {NAME})
    for axis in axes:
        if axis.dim_param == NAME:
            axis.dim_param = other


def declare_outputs(model: onnx.ModelProto, batch: int, grown: Mapping[str, int | None]) -> None:
    """Declare the outputs, in place, as they have been seen: the axis that grows with the batch, no other.

    An axis that was the batch itself is called so; one of several rows a sample becomes unknown.
    """
    for item in model.graph.output:
        if item.name not in grown:
            continue
        for place, axis in enumerate(item.type.tensor_type.shape.dim):
            if place != grown[item.name] and axis.dim_param == NAME:
                axis.dim_value = batch
            elif place == grown[item.name] and axis.dim_value == batch:
                axis.dim_param = NAME
            elif place == grown[item.name]:
                axis.ClearField("dim_value")


def make_dynamic(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int, list[str]]:
    """A copy of a prepared model whose batch axis is called `batch`, the old size, the names of what changed.

    In a Reshape's shape the baked batch becomes −1, in an Expand's 1, where it is found by following it or,
    beyond that, at the front; in subgraphs too. A Resize of all axes reads the batch from its input.
    What a Concat of the main graph joins to the batch is repeated.
    Outputs whose first axis was the batch get the name too; inner shapes are dropped.

    Raises:
        FixedBatchError: there is no one fixed batch, or a node picks or adds rows of it by number.
    """
    batch = fixed_batch(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    grown = followed(model, batch)
    refuse_row_indices(model, grown or followed(model, batch, as_far_as_it_goes=True))
    patched = [*_patch_shapes(copy.graph, batch, grown), *_patch_sizes(copy.graph, grown)]
    _free_the_name(copy.graph)
    default = {item.name for item in copy.graph.initializer}
    for item in (*copy.graph.input, *copy.graph.output):
        axes = item.type.tensor_type.shape.dim
        if item.name not in default and axes and axes[0].dim_value == batch:
            axes[0].dim_param = NAME
    _forget_inner_shapes(copy.graph, batch)
    patched += _spread_rows(copy)
    declare_outputs(
        copy, batch, {item.name: grown[item.name].axis for item in copy.graph.output if item.name in grown}
    )
    prepare.inferred(copy)
    return copy, batch, patched
