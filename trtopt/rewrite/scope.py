"""One graph under edit: the queries and the few edits that rules need.

`onnx_graphsurgeon` compares tensors and nodes by name and content; everything here goes by identity.
A node without outputs is dead: `Scope.nodes` passes over it and `Scope.sweep` takes it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from trtopt.onnxio import model_file, weights
from trtopt.onnxio.graph_walk import OWN_DOMAINS, take_name
from trtopt.onnxio.shape_inference import LARGE_BYTES
from trtopt.targets import Target

Array = np.ndarray[Any, Any]
STANDARD = (None, *OWN_DOMAINS)
"""The domains of the standard operators, as onnx-graphsurgeon has them."""


@dataclass
class Context:
    """What all scopes of a model share: the target, where its weights lie, which names are taken or fixed."""

    target: Target
    opset: int
    folder: Path
    spool: Path | None = None
    taken: set[str] = field(default_factory=set)
    """Names of nodes and tensors in use."""
    fixed: set[str] = field(default_factory=set)
    """Names of the outputs of the model and of its subgraphs: each must keep its tensor."""
    stuck: set[str] = field(default_factory=set)
    """Names of nodes that turned out to resist folding."""

    def fresh(self, like: str) -> str:
        """An unused name, made from `like`."""
        return take_name(like, self.taken)


class Scope:
    """The main graph or a subgraph of it, with the operations that rules need."""

    def __init__(self, graph: Any, context: Context) -> None:
        self.graph = graph
        self.context = context
        self._local = {id(node) for node in graph.nodes}
        self._cursors: dict[int, int] = {}
        """Where an input of a node was found last, by the node's identity."""
        self.at = "the search"
        """The node that a rule looks at, or replaces."""

    @property
    def target(self) -> Target:
        """The TensorRT that the model is rewritten for."""
        return self.context.target

    @property
    def opset(self) -> int:
        """The version of the standard operators that the model imports."""
        return self.context.opset

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────

    def nodes(self, *ops: str) -> Iterator[Any]:
        """The live nodes of these standard operators (of any, without `ops`), as they stood at the start."""
        for node in list(self.graph.nodes):
            if node.outputs and (not ops or self.is_one_of(node, *ops)):
                self.at = node.name
                yield node

    def is_one_of(self, node: Any, *ops: str) -> bool:
        """Whether the node is one of these standard operators."""
        return node.op in ops and node.domain in STANDARD

    def producer(self, tensor: Any, *ops: str) -> Any | None:
        """The node of this scope that makes `tensor`, if it is one of `ops` (of any, without them)."""
        if len(tensor.inputs) != 1 or id(tensor.inputs[0]) not in self._local:
            return None
        node = tensor.inputs[0]
        return node if not ops or self.is_one_of(node, *ops) else None

    def is_fixed(self, tensor: Any) -> bool:
        """Whether the tensor is an output of the model or of a subgraph."""
        return tensor.name in self.context.fixed

    def only_use(self, tensor: Any, *ops: str) -> Any | None:
        """The one node that reads `tensor`, once, if nothing else needs it and it is one of `ops`."""
        if self.is_fixed(tensor) or len(tensor.outputs) != 1 or id(tensor.outputs[0]) not in self._local:
            return None
        node = tensor.outputs[0]
        return node if not ops or self.is_one_of(node, *ops) else None

    def is_read_only_here(self, tensor: Any) -> bool:
        """Whether only nodes of this very graph read the tensor, none of another around or inside it."""
        return all(id(user) in self._local for user in tensor.outputs)

    def is_constant(self, tensor: Any) -> bool:
        """Whether the tensor is an initializer."""
        return isinstance(tensor, gs.Constant)

    def value(self, tensor: Any) -> Array | None:
        """A constant's values, read-only; None for anything else, also for types that NumPy lacks."""
        if not isinstance(tensor, gs.Constant):
            return None
        if isinstance(tensor._values, LazyValues):
            if not isinstance(tensor.dtype, np.dtype | type) or np.dtype(tensor.dtype).kind not in "fiub":
                return None
            return model_file.array_of(tensor._values.tensor, self.context.folder)
        return tensor._values if tensor._values.dtype.kind in "fiub" else None

    def is_small(self, tensor: Any) -> bool:
        """Whether the tensor is a constant that takes part in folding."""
        return isinstance(tensor, gs.Constant) and tensor._values.nbytes < LARGE_BYTES

    def scalar(self, tensor: Any) -> float | None:
        """The value of a constant with exactly one element."""
        if not isinstance(tensor, gs.Constant) or int(np.prod(tensor.shape, dtype=np.int64)) != 1:
            return None
        value = self.value(tensor)
        return None if value is None else float(value.reshape(-1)[0])

    def integers(self, node: Any, attribute: str, position: int) -> list[int] | None:
        """Integers that older opsets keep in an attribute and newer ones in a constant input.

        None if neither is given or the input is computed.
        """
        if attribute in node.attrs:
            return [int(item) for item in node.attrs[attribute]]
        if len(node.inputs) <= position or node.inputs[position].is_empty():
            return None
        value = self.value(node.inputs[position])
        return None if value is None else [int(item) for item in value.reshape(-1)]

    def rank(self, tensor: Any) -> int | None:
        """The tensor's number of axes, if known."""
        return None if tensor.shape is None else len(tensor.shape)

    def static_shape(self, tensor: Any) -> tuple[int, ...] | None:
        """The tensor's shape if every axis of it is known."""
        if tensor.shape is None or not all(
            isinstance(axis, int | np.integer) and axis >= 0 for axis in tensor.shape
        ):
            return None
        return tuple(int(axis) for axis in tensor.shape)

    def same_rank(self, first: Any, second: Any) -> bool:
        """Whether both have the same number of axes, as far as is known; the proof sees to the rest."""
        ranks = self.rank(first), self.rank(second)
        return None in ranks or ranks[0] == ranks[1]

    def dtype(self, tensor: Any) -> Any | None:
        """The NumPy type of the tensor; None if unknown or not NumPy's."""
        known = tensor.dtype is not None and not isinstance(tensor.dtype, int)
        return np.dtype(tensor.dtype) if known else None

    def element(self, tensor: Any) -> int | None:
        """ONNX's number of the tensor's type, which BF16 has too; None if unknown."""
        if tensor.dtype is None or isinstance(tensor.dtype, int):
            return tensor.dtype
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)))

    def is_float(self, tensor: Any) -> bool:
        """Whether the tensor is FP32 or FP16. TensorRT has no FP64, ONNX Runtime not of all operators."""
        return self.dtype(tensor) in (np.float32, np.float16)

    # ── edits ───────────────────────────────────────────────────────────────────────────────────────────

    def constant(self, values: Array, like: str) -> Any:
        """A new initializer, named after `like`; a large one is put into a file."""
        name, spool = self.context.fresh(like), self.context.spool
        is_small = spool is None or values.nbytes < model_file.SPOOLED_BYTES
        if is_small and values.dtype.kind in "fiub":  # BF16 has another type there
            return gs.Constant(name, np.ascontiguousarray(values).reshape(values.shape))
        return gs.Constant(name, LazyValues(weights.constant(values, name, spool)))

    def insert(
        self,
        before: Any,
        op: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: dict[str, Any] | None = None,
    ) -> Any:
        """Put a new node in front of the node `before`."""
        name = self.context.fresh(f"{before.name}/{op}")
        node = gs.Node(op, name, dict(attrs or {}), list(inputs), list(outputs))
        at = next(index for index, other in enumerate(self.graph.nodes) if other is before)
        self.graph.nodes.insert(at, node)
        self._local.add(id(node))
        return node

    def adopt(self, inner: Any, before: Any) -> None:
        """Move the nodes of the graph `inner` in front of the node `before` of this one."""
        at = next(index for index, other in enumerate(self.graph.nodes) if other is before)
        self.graph.nodes[at:at] = inner.nodes
        self._local |= {id(node) for node in inner.nodes}
        inner.nodes = []

    def compute(self, before: Any, op: str, inputs: Sequence[Any], like: Any, **attrs: Any) -> Any:
        """The output of a new node in front of `before`; it has the type of `like`, its shape is open."""
        out = gs.Variable(self.context.fresh(f"{before.name}/{op}_out"), dtype=like.dtype)
        self.insert(before, op, inputs, [out], attrs)
        return out

    def replace(self, node: Any, op: str, inputs: Sequence[Any], attrs: dict[str, Any] | None = None) -> Any:
        """Let a new node make what `node` makes first; it takes the name of `node`, which dies."""
        outputs = list(node.outputs[:1])
        new = self.insert(node, op, inputs, [], attrs)
        node.outputs.clear()
        self._bury(node)
        new.outputs.extend(outputs)
        new.name = node.name
        return new

    def rewire(self, old: Any, new: Any) -> None:
        """Let every reader of `old` read `new` instead."""
        for user in list(old.outputs):  # once for each input that reads it
            start = self._cursors.get(id(user), 0)  # a Sum of thousands is not searched from its beginning
            places = chain(range(start, len(user.inputs)), range(start))
            position = next(place for place in places if user.inputs[place] is old)
            user.inputs[position] = new
            self._cursors[id(user)] = position + 1

    def why_not_bypass(self, node: Any, source: Any) -> str | None:
        """Why the first output of `node` cannot give way to `source`; None if it can."""
        if not self.is_fixed(node.outputs[0]):
            return None
        if self.is_fixed(source) or self.producer(source) is None:
            return "its output is an output of the graph, whose name must stay, and so must its input's"
        return None

    def bypass(self, node: Any, source: Any) -> None:
        """Let `source` stand for the first output of `node`, which dies; a graph's output keeps its name."""
        out = node.outputs[0]
        node.outputs.clear()
        if self.is_fixed(out):
            maker = source.inputs[0]
            position = next(index for index, tensor in enumerate(maker.outputs) if tensor is source)
            maker.outputs[position] = out
            self.rewire(source, out)
        else:
            self.rewire(out, source)
        self._bury(node)

    def set_input(self, node: Any, position: int, tensor: Any) -> None:
        """Give `node` another input; what is then unused is removed."""
        old = node.inputs[position]
        node.inputs[position] = tensor
        self._forget(old)

    def kill(self, node: Any) -> None:
        """Take the node and whatever only it needed out of the graph."""
        node.outputs.clear()
        self._bury(node)

    def _bury(self, node: Any) -> None:
        inputs = list(node.inputs)
        for subgraph in node.subgraphs(recursive=True):
            for inner in subgraph.nodes:
                inputs += list(inner.inputs)
                inner.inputs.clear()
                inner.outputs.clear()  # another scope may be at work in there
        node.inputs.clear()
        for tensor in inputs:
            self._forget(tensor)

    def _forget(self, tensor: Any) -> None:
        maker = self.producer(tensor)
        if maker is not None and not any(out.outputs or self.is_fixed(out) for out in maker.outputs):
            self.kill(maker)

    def sweep(self) -> None:
        """Remove nodes that were killed or whose outputs are unused."""
        for node in reversed(self.graph.nodes):
            if not any(out.outputs or self.is_fixed(out) for out in node.outputs):
                self.kill(node)
        self.graph.nodes = [node for node in self.graph.nodes if node.outputs]
        self._local = {id(node) for node in self.graph.nodes}
