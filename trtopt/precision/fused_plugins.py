"""Encoder layers of a float model as nodes of the INT8 plugins that come with TensorRT 8.6.

The parser imports a node of an operator that it does not know as the plugin of that name; the node's
attributes are the plugin's fields. These plugins take no Q/DQ: the ranges of tensors, and the types of those
that no other layer decides, lie in the file's metadata (`trtopt.ranges`), from which the builder sets them.

Between the plugins a layer's tensors are (1, E, B·S, 1), E the hidden size, B the batch and S the tokens of a
sequence: products are 1x1 convolutions. Each file is for one batch size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.errors import ModelError
from trtopt.onnxio.extraction import with_nodes
from trtopt.onnxio.graph_walk import (
    ELEMENTWISE,
    RANGES,
    WEAK_TYPES,
    attribute,
    names_in,
    nodes_for,
    refill,
    take_name,
)
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.prepare import sort_nodes
from trtopt.onnxio.weights import constant
from trtopt.precision.calibrate import copy_model
from trtopt.precision.placement.draft import Node, View, is_op, matching
from trtopt.precision.qdq import drop_unread
from trtopt.precision.running import open_proto

_DOMAIN = "trt.plugins"
"""TensorRT's parser goes by the operator's name alone; ONNX's checker passes over domains that it lacks."""
_HEAD = 64
_TOKENS = 384
_HIDDEN = (768, 1024)
"""What version 3 of the plugins has kernels for (`qkvToContextInt8InterleavedPlugin.cpp`,
`skipLayerNormInt8InterleavedKernelHFace.cu`)."""
_EPSILON = 1e-5
"""The kernel adds next to nothing to the variance; so does a model with no more than this."""
_NEAR = 1e-3
_SPLIT, _TURNED = [0, 2, 1, 3], [0, 2, 3, 1]
"""Transposes of (B, S, heads, 64): of queries and values, and of keys."""


class _Declined(Exception):
    """Why a subgraph is no encoder layer that the plugins have."""


@dataclass(frozen=True)
class _Weighted:
    """A product with a constant and a sum with another, or a normalisation, by the names of tensors."""

    source: str
    weights: str
    bias: str
    result: str


@dataclass(frozen=True)
class EncoderLayer:
    """Attention, sum and normalisation, two products with an activation between, sum and normalisation."""

    source: str
    qkv: tuple[_Weighted, _Weighted, _Weighted]
    probabilities: str
    projection: _Weighted
    middle: _Weighted
    inner: _Weighted
    outer: _Weighted
    last: _Weighted

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those whose ranges the plugins and products need."""
        made = (*self.qkv, self.projection, self.middle, self.outer, self.last)
        read = (self.source, self.probabilities, self.projection.source, self.outer.source)
        return (*read, *(one.result for one in made))


def find_layers(model: ModelFile, exclude: Sequence[str] = ()) -> tuple[list[EncoderLayer], dict[str, str]]:
    """The encoder layers of a model whose shapes are all fixed; and why not, by other attention's Softmax.

    Layers with nodes that match a pattern of `exclude` are none.

    Raises:
        ModelError: there is no layer; why.
    """
    view, found, declined = View(model.proto), list[EncoderLayer](), dict[str, str]()
    finder = _Finder(model, view, exclude)
    for softmax in (node for node in view.nodes if is_op(node, "Softmax")):
        if not any(is_op(use.node, "MatMul") for use in view.uses(softmax.output[0])):
            continue  # as at the end of a classifier
        try:
            found.append(finder.layer(softmax))
        except _Declined as reason:
            declined[softmax.name] = str(reason)
    if not found:
        raise ModelError(
            f"no encoder layer that TensorRT's fused plugins have: {reasons_in(declined)}",
            "omit --fused-plugins, or export the model as docs/guides/build.md says",
        )
    return found, declined


def reasons_in(declined: Mapping[str, str]) -> str:
    """Each reason once, with the first node that has it."""
    names: dict[str, list[str]] = {}
    for name, reason in declined.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{same[0]}: {reason}" for reason, same in names.items()) or "it has no attention"


class _Finder:
    """Recognises layers in one graph."""

    def __init__(self, model: ModelFile, view: View, exclude: Sequence[str]) -> None:
        self._model, self._view, self._exclude = model, view, exclude
        self._zeros: dict[str, bool] = {}

    def layer(self, softmax: Node) -> EncoderLayer:
        """The encoder layer around a Softmax."""
        view, probabilities = self._view, str(softmax.output[0])
        if attribute(softmax, "axis", -1) not in (-1, 3):
            raise _Declined("it does not normalise the last axis of four")
        scores, factor = self._scores(softmax.input[0])
        use = view.only_use(probabilities)
        if use is None or use.index != 0 or not view.made_by(use.node.output[0], "MatMul"):
            raise _Declined("its result is not read by one product alone")
        query, key = (self._head(name, perm) for name, perm in zip(scores, (_SPLIT, _TURNED), strict=True))
        value = self._head(use.node.input[1], _SPLIT)
        source, factor = query[0].source, factor * query[1] * key[1]
        if not math.isclose(factor, _HEAD**-0.5, rel_tol=_NEAR) or value[1] != 1:
            raise _Declined(f"scores are scaled by {factor:.4g}, and the plugin has 1/√{_HEAD}")
        qkv = query[0], key[0], value[0]
        if any(one.source != source for one in qkv):
            raise _Declined("queries, keys and values are not of one tensor")
        shape = view.shape(source) or ()
        if not (len(shape) == 3 and shape[0] and (shape[1] or math.inf) <= _TOKENS and shape[2] in _HIDDEN):
            sizes = f"batch, {_TOKENS} tokens at most, {' or '.join(map(str, _HIDDEN))}"
            raise _Declined(f"its input's shape is {shape}, not ({sizes})")
        turned = self._step(use.node.output[0], "Transpose")
        joined = self._step(turned, "Reshape")
        if attribute(view.maker[turned], "perm") != _SPLIT or view.shape(joined) != shape:
            raise _Declined("heads are not joined to what they were split from")
        projection = self._dense(self._step(self._step(joined, "MatMul"), "Add"))
        middle = self._norm(projection.result, source)
        inner, outer = self._feed_forward(middle.result)
        self._check_activation(inner.result, outer.source)
        last = self._norm(outer.result, middle.result)
        for node in nodes_for(view.nodes, [last.result], {source})[0]:
            if pattern := matching(node, self._exclude):
                raise _Declined(f"--exclude {pattern} keeps {node.name} unchanged")
        return EncoderLayer(source, qkv, probabilities, projection, middle, inner, outer, last)

    def _step(self, tensor: str, op: str) -> str:
        """The result of the one node of an operator that alone reads the tensor."""
        use = self._view.only_use(tensor)
        if use is None or (use.index and op != "Add") or not self._view.made_by(use.node.output[0], op):
            raise _Declined(f"{tensor!r} is not read by one {op} alone")
        return str(use.node.output[0])

    def _scores(self, tensor: str) -> tuple[tuple[str, str], float]:
        """The operands of the first product, and what its result is multiplied by; a mask must be zero."""
        factor = 1.0
        while (node := self._view.made_by(tensor, "Add", "Mul", "Div")) is not None:
            if node.op_type != "Add":
                tensor, own = self._scaled(node)
                factor *= own
                continue
            zeros = [name for name in node.input if self._is_zero(name)]
            if not zeros:
                raise _Declined("its scores get a mask that is not 0 throughout, whatever the input")
            tensor = str(node.input[1 - list(node.input).index(zeros[0])])
        node = self._view.made_by(tensor, "MatMul")
        if node is None:
            raise _Declined("its scores are not those of one product")
        return (str(node.input[0]), str(node.input[1])), factor

    def _is_zero(self, tensor: str) -> bool:
        """Whether it depends on no input, and is zero. Rewriting folds no masks of more than 1 MiB."""
        nodes, needed = nodes_for(self._view.nodes, [tensor])
        if tensor not in self._zeros and needed.isdisjoint(self._view.inputs):
            known = self._view.constants.get(tensor)
            if known is None:
                result = onnx.helper.make_empty_tensor_value_info(tensor)
                part = with_nodes(self._model.proto, nodes, (), [result])
                values = open_proto(self._model, part).run({})[tensor]
            else:
                values = array_of(known, self._model.folder)
            self._zeros[tensor] = not values.any()
        return self._zeros.get(tensor, False)

    def _scaled(self, node: Node) -> tuple[str, float]:
        """The operand of a Mul or Div that a constant number goes with, and what that multiplies it by."""
        for own, other in ((1, 0), (0, 1)) if node.op_type == "Mul" else ((1, 0),):
            known = self._view.constants.get(node.input[own])
            if known is not None and math.prod(known.dims) == 1:
                number = float(array_of(known, self._model.folder).reshape(-1)[0])
                return str(node.input[other]), number if node.op_type == "Mul" else 1 / (number or math.nan)
        raise _Declined(f"{node.name} is no product with a number")

    def _head(self, tensor: str, perm: Sequence[int]) -> tuple[_Weighted, float]:
        """The product that an operand of attention is split from, and what it is multiplied by."""
        factor, found = 1.0, [0, 1, 2, 3]
        while (node := self._view.made_by(tensor, "Transpose", "Mul", "Div")) is not None:
            if node.op_type == "Transpose":
                if len(own := attribute(node, "perm", ())) != len(found):
                    break
                found, tensor = [own[axis] for axis in found], str(node.input[0])
            else:
                tensor, number = self._scaled(node)
                factor *= number
        node, shape = self._view.made_by(tensor, "Reshape"), self._view.shape(tensor)
        if node is None or found != list(perm) or shape is None or len(shape) != 4:
            raise _Declined("queries, keys and values are not split into heads by Reshape and Transpose")
        whole, heads = self._view.shape(node.input[0]), shape[2]
        if shape[3] != _HEAD or heads is None or whole != (*shape[:2], heads * _HEAD):
            raise _Declined(f"heads are {shape[3]} wide, and the plugin has {_HEAD}")
        return self._dense(node.input[0]), factor

    def _dense(self, tensor: str) -> _Weighted:
        """The product and the sum with constants that make a tensor."""
        view, node = self._view, self._view.made_by(tensor, "Add")
        for bias, product in () if node is None else (node.input, node.input[::-1]):
            made, added = view.made_by(product, "MatMul"), view.constants.get(bias)
            weights = None if made is None else view.constants.get(made.input[1])
            if made is None or weights is None or added is None:
                continue
            is_fp32 = weights.data_type == added.data_type == onnx.TensorProto.FLOAT
            if is_fp32 and len(added.dims) == 1 and weights.dims[1:] == added.dims:
                return _Weighted(str(made.input[0]), str(made.input[1]), str(bias), tensor)
        raise _Declined(f"{tensor!r} is not made by a product and a sum with FP32 constants")

    def _norm(self, tensor: str, skip: str) -> _Weighted:
        """The normalisation of a tensor's sum with another."""
        view, use = self._view, self._view.only_use(tensor)
        total = None if use is None else view.made_by(use.node.output[0], "Add")
        if total is None or sorted(total.input) != sorted((tensor, skip)):
            raise _Declined(f"{tensor!r} is not added to {skip!r} alone: no layer that normalises its sums")
        node = view.made_by(self._step(total.output[0], "LayerNormalization"))
        assert node is not None
        size = (view.shape(tensor) or ())[-1:]
        constants = [view.constants.get(name) for name in node.input[1:]]
        if len(constants) != 2 or any(one is None or tuple(one.dims) != size for one in constants):
            raise _Declined(f"{node.name} has no constant scale and bias for each channel")
        if any(node.output[1:]):
            raise _Declined(f"{node.name} has further results")
        if attribute(node, "axis", -1) not in (-1, 2) or attribute(node, "epsilon", _EPSILON) > _EPSILON:
            raise _Declined(f"{node.name}: of another axis, or with a large epsilon")
        return _Weighted(total.output[0], str(node.input[1]), str(node.input[2]), str(node.output[0]))

    def _feed_forward(self, tensor: str) -> tuple[_Weighted, _Weighted]:
        """The products after a normalisation: the first reads it, the second is added to it."""
        first, second = list[_Weighted](), list[_Weighted]()
        for use in self._view.uses(tensor):
            made = str(use.node.output[0])
            if self._view.made_by(made, "MatMul") and use.index == 0:
                first.append(self._dense(self._step(made, "Add")))
            elif self._view.made_by(made, "Add"):
                (other,) = [name for name in use.node.input if name != tensor] or [tensor]
                second.append(self._dense(other))
        if len(first) != 1 or len(second) != 1:
            raise _Declined(f"{tensor!r} is not read by two products with a sum around them")
        return first[0], second[0]

    def _check_activation(self, start: str, end: str) -> None:
        """Between two tensors are elementwise nodes with no operands but numbers, nor other readers."""
        view, nodes, ahead = self._view, dict[str, Node](), [end]
        while ahead:
            name = ahead.pop()
            known, node = view.constants.get(name), view.maker.get(name)
            if name == start or (known is not None and math.prod(known.dims) == 1 and len(known.dims) < 2):
                continue
            if node is None or node.op_type not in ELEMENTWISE or len(node.output) != 1:
                raise _Declined(f"{name!r}, between its products, is not made element by element")
            nodes[node.name] = node
            ahead += node.input
        made = {str(node.output[0]) for node in nodes.values()} | {start}
        outside = {use.node.name for name in made - {end} for use in view.uses(name)} - nodes.keys()
        if outside or not made.isdisjoint(view.outputs) or len(view.uses(end)) != 1 or not nodes:
            raise _Declined(f"what is between {start!r} and {end!r} is read elsewhere too")


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────


def write_plugins(file: ModelFile, layers: Sequence[EncoderLayer], amax: Mapping[str, float]) -> ModelFile:
    """A copy of the model whose layers are nodes of the plugins; `amax` are tensors' largest |x|."""
    writer = _Writer(copy_model(file), amax)
    made = {one.result for layer in layers for one in (layer.middle, layer.inner, layer.last)}
    graph = writer.file.proto.graph
    refill(graph.node, [node for node in graph.node if made.isdisjoint(node.output)])
    for layer in layers:
        writer.layer(layer)
    writer.finish()
    return writer.file


class _Writer:
    """Appends nodes to a model in place, and keeps what its metadata will say."""

    def __init__(self, file: ModelFile, amax: Mapping[str, float]) -> None:
        self.file, self._graph, self._amax = file, file.proto.graph, amax
        self._view = View(file.proto)
        self._taken = names_in(self._graph) | {node.name for node in self._graph.node}
        self._packed: dict[str, str] = {}
        """The tensor of (1, E, B·S, 1) by the one of (B, S, E)."""
        self._lengths: dict[tuple[int, int], tuple[str, str]] = {}
        self._ranges: dict[str, float] = {}
        self._types: dict[str, str] = {}

    def layer(self, layer: EncoderLayer) -> None:
        """Write one layer; it must come after the layer that it reads from."""
        source, like = self._pack(layer.source), layer.projection.source
        batch, tokens, hidden = self._shape(layer.source)
        qkv = self._limit(self._product(source, layer.qkv, like), *(one.result for one in layer.qkv))
        context = self._plugin(
            "CustomQKVToContextPluginDynamic",
            [qkv, *self._lengths_of(batch, tokens)],
            like,
            hidden_size=hidden,
            num_heads=hidden // _HEAD,
            dq_probs=(self._amax[layer.probabilities] or 1.0) / 127,
            use_int8_scale_max=1,
        )
        middle = self._norm(context, layer.projection, source, layer.middle)
        self._product(middle, [layer.inner], layer.inner.result, layer.inner.result)
        activated = layer.outer.source
        self._norm(self._limit(activated, activated), layer.outer, middle, layer.last)

    def finish(self) -> None:
        """Take out what nothing reads any more, and write the settings into the metadata."""
        sort_nodes(self._graph)
        refill(self._graph.node, nodes_for(self._graph.node, (one.name for one in self._graph.output))[0])
        del self._graph.value_info[:]  # of tensors that have another layout now
        model = self.file.proto
        drop_unread(model)
        refill(model.metadata_props, [one for one in model.metadata_props if one.key != WEAK_TYPES])
        model.metadata_props.add(key=WEAK_TYPES, value="float16 int8")
        model.metadata_props.add(key=RANGES, value=json.dumps({"ranges": self._ranges, "types": self._types}))
        model.opset_import.add(domain=_DOMAIN, version=1)

    # ── pieces ──────────────────────────────────────────────────────────────────────────────────────────

    def _shape(self, tensor: str) -> tuple[int, int, int]:
        batch, tokens, hidden = map(int, filter(None, self._view.shape(tensor) or ()))
        return batch, tokens, hidden

    def _values(self, name: str) -> NDArray[Any]:
        return array_of(self._view.constants[name], self.file.folder)

    def _constant(self, values: NDArray[Any], like: str) -> str:
        tensor = constant(np.ascontiguousarray(values), take_name(like, self._taken), self.file.spool)
        self._graph.initializer.append(tensor)
        return tensor.name

    def _node(self, op: str, inputs: Sequence[str], like: str, result: str = "", **attributes: Any) -> str:
        name = take_name(f"{like}/{op}", self._taken)
        node = onnx.helper.make_node(op, inputs, [result or name], f"{name}/node", **attributes)
        self._graph.node.append(node)
        return str(node.output[0])

    def _limit(self, tensor: str, *like: str) -> str:
        """Give a tensor the range of the widest of others, and never none."""
        self._ranges[tensor] = max(float(np.finfo(np.float16).tiny), *(self._amax[name] for name in like))
        return tensor

    def _plugin(self, op: str, inputs: Sequence[str], like: str, **fields: Any) -> str:
        """A plugin's node, whose result has the range of the tensor `like`."""
        fields |= {"domain": _DOMAIN, "plugin_version": "3", "plugin_namespace": ""}
        return self._limit(self._node(op, inputs, like, **fields), like)

    def _lengths_of(self, batch: int, tokens: int) -> tuple[str, str]:
        """Where each sequence begins, and a tensor of which the plugin reads the length alone."""
        if (batch, tokens) not in self._lengths:
            starts = np.arange(batch + 1, dtype=np.int32) * np.int32(tokens)
            longest = self._constant(np.zeros(tokens, np.int32), "longest_sequence")
            self._lengths[batch, tokens] = self._constant(starts, "starts_of_sequences"), longest
        return self._lengths[batch, tokens]

    def _product(self, source: str, parts: Sequence[_Weighted], like: str, result: str = "") -> str:
        """Products of one tensor side by side, with their sums, as a convolution."""
        kernel = np.concatenate([self._values(one.weights).T for one in parts])[:, :, None, None]
        bias = np.concatenate([self._values(one.bias) for one in parts])
        weights = self._constant(kernel, f"{like}/kernel"), self._constant(bias, f"{like}/bias")
        return self._node("Conv", [source, *weights], like, result, kernel_shape=[1, 1])

    def _norm(self, source: str, dense: _Weighted, skip: str, norm: _Weighted) -> str:
        """A product and the plugin's node; and its result as the graph had it, for readers that stay."""
        like = norm.result
        tensor = self._limit(self._product(source, [dense], dense.result), dense.result)
        beta, gamma = (self._values(name).tolist() for name in (norm.bias, norm.weights))
        made = self._plugin("CustomSkipLayerNormPluginDynamic", [tensor, skip], like, beta=beta, gamma=gamma)
        self._packed[like] = made
        plain = self._node("Identity", [made], like)
        # the last one has no INT8 reader that would ask for its type
        self._types |= {made: "INT8", plain: "FLOAT"}
        turned = self._node("Transpose", [plain], like, perm=[0, 2, 1, 3])
        shape = self._constant(np.array(self._shape(like), np.int64), f"{like}/shape")
        self._node("Reshape", [turned, shape], like, like)
        return made

    def _pack(self, tensor: str) -> str:
        """The tensor as (1, E, B·S, 1)."""
        if tensor not in self._packed:
            batch, tokens, hidden = self._shape(tensor)
            shape = self._constant(np.array([batch * tokens, hidden, 1, 1], np.int64), f"{tensor}/shape")
            flat = self._node("Reshape", [tensor, shape], tensor)
            self._packed[tensor] = self._node("Transpose", [flat], tensor, perm=[2, 1, 0, 3])
            for name in (tensor, flat, self._packed[tensor]):
                self._limit(name, tensor)
        return self._packed[tensor]
