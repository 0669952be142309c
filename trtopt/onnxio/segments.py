"""A graph cut into segments that run one after the other, some of them on parts of the batch.

A node belongs to the first cut whose tensors need it, the others to the last segment; what depends on no
input is repeated in every segment that reads it. A segment that runs on parts of the batch may not look at
several samples at once: every tensor in it must grow with the batch along axis 0 alone. What keeps its shape
and still mixes samples is not found so: outputs are to be compared as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx

from trtopt.errors import UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.graph_walk import reads_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.model_info import dtype_name
from trtopt.onnxio.shape_inference import infer_shapes, skeleton_at
from trtopt.records import BatchSplit, Shape, TensorSpec

_MIXING = frozenset(
    ("Softmax", "LogSoftmax", "Hardmax", "CumSum", "TopK", "ArgMax", "ArgMin", "Concat", "Split")
)
"""Operators that leave the batch in front and mix samples where their axis is 0."""
_ALIGNMENT = 256
"""Bytes; CUDA engines want their inputs and outputs at such addresses."""


@dataclass(frozen=True)
class GraphSegment:
    """One segment: its model, and what it reads and makes at one run's batch; it runs `parts` times."""

    model: ModelFile
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parts: int


@dataclass(frozen=True)
class Cut:
    """A place to cut: the tensors that carry all, and their bytes for one sample."""

    tensors: tuple[str, ...]
    bytes_per_sample: int


class CutGraph:
    """The main graph of a model with an open batch axis, its inputs at `shapes`, with the batch in front."""

    def __init__(self, proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> None:
        self.proto, self.graph = proto, proto.graph
        self.batch = next(iter(shapes.values()), (1,))[:1]
        weights = {item.name for item in self.graph.initializer}
        self.inputs = tuple(item.name for item in self.graph.input if item.name not in weights)
        self.outputs = tuple(item.name for item in self.graph.output)
        self._specs = _specs_at(proto, shapes)
        twice = {name: (2 * shape[0], *shape[1:]) if shape else shape for name, shape in shapes.items()}
        self._twice = _specs_at(proto, twice)
        self.reads = [reads_of(node) for node in self.graph.node]
        self.maker = {
            name: index for index, node in enumerate(self.graph.node) for name in node.output if name
        }
        depends = set(self.inputs)
        self.working: list[int] = []
        """The nodes that depend on an input, in order."""
        for index, node in enumerate(self.graph.node):
            if not depends.isdisjoint(self.reads[index]):
                depends |= set(node.output)
                self.working.append(index)
        self.depends = depends

    @property
    def fixed_input(self) -> str | None:
        """An input without an open batch axis in front; None where all have one."""
        for item in self.graph.input:
            axes = item.type.tensor_type.shape.dim
            if item.name in self.inputs and (not axes or axes[0].dim_value > 0):
                return str(item.name)
        return None

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Which working nodes read a tensor."""
        found: dict[str, list[int]] = {}
        for index in self.working:
            for name in self.reads[index]:
                found.setdefault(name, []).append(index)
        return found

    def spec(self, name: str, parts: int = 1) -> TensorSpec:
        """A tensor that segments exchange, of one of `parts` parts of the batch."""
        known = self._specs.get(name)
        if known is None or not self._has_batch(name) or known.shape[:1] != self.batch:
            why = "its shape is not known" if known is None else f"of shape {list(known.shape)} at batch "
            where = why if known is None else f"{why}{self.batch[0]}: the batch is not its first axis"
            raise UsageError(
                f"--split: {name!r} cannot be cut along the batch: {where}",
                "cut elsewhere; `trtopt tune` finds places",
            )
        rows = int(known.shape[0]) // parts
        return TensorSpec(name=name, dtype=known.dtype, shape=(rows, *known.shape[1:]))

    def mixes(self, index: int) -> str | None:
        """Why a node cannot run on part of the batch; None where nothing shows that it cannot."""
        node = self.graph.node[index]
        first = next((name for name in node.output if name in self._specs), None)
        if first is not None and self._is_a_length(first):
            return None
        axis = next((item.i for item in node.attribute if item.name == "axis"), None)
        rank = len(self._specs[first].shape) if first is not None else 0
        if node.op_type in _MIXING and axis is not None and rank and axis % rank == 0:
            return "works along the batch"
        for name in node.output:
            if name and not self._has_batch(name):
                what = "whose first axis is not the batch" if name in self._specs else "of unknown shape"
                return f"makes {name!r}, {what}"
        return None

    def _has_batch(self, name: str) -> bool:
        """Whether the first axis, and no other, grows with the batch."""
        once, twice = self._specs.get(name), self._twice.get(name)
        if once is None or twice is None or not once.shape:
            return False
        return twice.shape == (2 * int(once.shape[0]), *once.shape[1:])

    def _is_a_length(self, name: str) -> bool:
        """Whether a tensor holds lengths of axes, as Reshape takes them."""
        spec = self._specs[name]
        return spec.dtype in ("int64", "int32") and len(spec.shape) <= 1 and not self._has_batch(name)

    def ancestors(self, names: Sequence[str]) -> set[int]:
        """The working nodes that these tensors need."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            index = self.maker.get(waiting.pop())
            if index is not None and index not in found:
                found.add(index)
                waiting += self.reads[index]
        return found & set(self.working)

    def assigned(self, splits: Sequence[BatchSplit]) -> dict[int, int]:
        """The segment of every working node, from 0."""
        for name in (name for split in splits for name in split.tensors):
            self._check_name(name)
        segments = dict.fromkeys(self.working, len(splits))
        for number, split in reversed(list(enumerate(splits))):
            segments |= dict.fromkeys(self.ancestors(split.tensors), number)
        empty = set(range(len(splits) + 1)) - set(segments.values())
        if empty:
            place = min(empty)
            cut, side = (splits[place], "before") if place < len(splits) else (splits[-1], "behind")
            raise UsageError(
                f"--split {cut}: nothing is left to run {side} this cut",
                "give the cuts in the order of the graph, each behind the one before",
            )
        for number, split in enumerate(splits):
            named = {name for one in splits[: number + 1] for name in one.tensors}
            crossing = self._crossing(segments, number) - named
            if crossing:
                every = BatchSplit(
                    tensors=(*split.tensors, *sorted(crossing)), parts=split.parts, layouts=split.layouts
                )
                raise UsageError(
                    f"--split {split}: {', '.join(map(repr, sorted(crossing)))} also "
                    f"{'cross' if len(crossing) > 1 else 'crosses'} the cut",
                    f"cut where fewer tensors do, or name them all: --split {every}",
                )
        return segments

    def _check_name(self, name: str) -> None:
        if name in self.maker and name in self.depends:
            return
        makes = [made for index in self.working for made in self.graph.node[index].output if made]
        near = difflib.get_close_matches(name, makes, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        what = "is an input or a constant" if name in self.depends or name in self.maker else "no such tensor"
        raise UsageError(
            f"--split {name}: {what} in the graph that is built",
            f"{hint}name a tensor of the build folder's model.onnx, which is rewritten and quantised",
        )

    def _crossing(self, segments: Mapping[int, int], number: int) -> set[str]:
        """What segments up to `number` make and later ones read."""
        return {
            name
            for index, segment in segments.items()
            if segment > number
            for name in self.reads[index]
            if segments.get(self.maker.get(name, -1), number + 1) <= number
        }

    def cuts(self, most_tensors: int = 1) -> Iterator[Cut]:
        """Every place where few tensors carry all, and the nodes before it can run on parts of the batch."""
        place = {index: position for position, index in enumerate(self.working)}
        last = {
            name: max(place[reader] for reader in readers)
            for name, readers in self.readers.items()
            if name in self.maker
        }
        live: set[str] = set()
        for position, index in enumerate(self.working[:-1]):
            if self.mixes(index) is not None:
                return
            live |= {name for name in self.graph.node[index].output if last.get(name, -1) > position}
            live = {name for name in live if last[name] > position}
            if not 1 <= len(live) <= most_tensors or not all(self._specs_with_batch(live)):
                continue
            names = tuple(sorted(live, key=lambda name: self.maker[name]))
            try:
                self.assigned((BatchSplit(tensors=names, parts=1),))
            except UsageError:  # an output of the front that the tensors do not need
                continue
            yield Cut(names, sum(self._bytes(name) for name in names) // int(self.batch[0]))

    def _specs_with_batch(self, names: set[str]) -> Iterator[bool]:
        for name in names:
            known = self._specs.get(name)
            yield known is not None and self._has_batch(name) and known.shape[:1] == self.batch

    def _bytes(self, name: str) -> int:
        spec = self._specs[name]
        count = 1
        for axis in spec.shape:
            count *= int(axis)
        return count * numpy_dtype(spec.dtype).itemsize


def _specs_at(proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> dict[str, TensorSpec]:
    """The tensors of the main graph whose type and shape are known."""
    fixed = skeleton_at(proto, shapes)
    try:
        graph = infer_shapes(fixed).graph
    except onnx.shape_inference.InferenceError:
        graph = fixed.graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        axes = kind.shape.dim
        if kind.elem_type and kind.HasField("shape") and all(axis.HasField("dim_value") for axis in axes):
            shape = tuple(axis.dim_value for axis in axes)
            found[value.name] = TensorSpec(name=value.name, dtype=dtype_name(kind.elem_type), shape=shape)
    return found


def segments_of(
    model: ModelFile, splits: Sequence[BatchSplit], shapes: Mapping[str, Shape], *, aligned: bool = False
) -> tuple[GraphSegment, ...]:
    """The segments of a model at the whole batch's `shapes`, in the order in which they run.

    `aligned`: slices must begin where CUDA engines can read them.
    """
    cut = CutGraph(model.proto, shapes)
    _check_ends(cut)
    segments = cut.assigned(splits)
    made = []
    for number in range(len(splits) + 1):
        parts = splits[number].parts if number < len(splits) else 1
        nodes = [index for index in cut.working if segments[index] == number]
        if parts > 1:
            _check_parts(cut, nodes, splits[number])
        own = {name for index in nodes for name in cut.graph.node[index].output}
        later = {name for index, segment in segments.items() if segment > number for name in cut.reads[index]}
        read = {name for index in nodes for name in cut.reads[index]} & cut.depends
        inputs = tuple(
            cut.spec(name, parts) for name in (*cut.inputs, *cut.maker) if name in read and name not in own
        )
        outputs = tuple(
            cut.spec(name, parts) for name in cut.maker if name in own and name in later.union(cut.outputs)
        )
        if aligned and parts > 1:
            _check_alignment((*inputs, *outputs), splits[number])
        made.append(GraphSegment(_extracted(model, cut, nodes, inputs, outputs), inputs, outputs, parts))
    return tuple(made)


def _check_ends(cut: CutGraph) -> None:
    if cut.fixed_input is not None:
        raise UsageError(
            f"--split: input {cut.fixed_input!r} has no open batch axis in front",
            "make it dynamic first: trtopt rewrite MODEL --dynamic-batch -o FILE",
        )
    read = set().union(*cut.reads)
    for name in cut.outputs:
        if name not in cut.depends or name in cut.inputs:
            raise UsageError(
                f"--split: output {name!r} depends on no node of the graph's that reads an input",
                "build without --split",
            )
        cut.spec(name)
    for name in cut.inputs:
        if name in read:
            cut.spec(name)


def _check_parts(cut: CutGraph, nodes: Sequence[int], split: BatchSplit) -> None:
    for index in nodes:
        why = cut.mixes(index)
        if why is not None:
            node = cut.graph.node[index]
            raise UsageError(
                f"--split {split}: node {node.name or node.output[0]!r} ({node.op_type}) {why}: "
                "it cannot run on parts of the batch",
                "cut before it; `trtopt tune` finds places",
            )


def _check_alignment(specs: Sequence[TensorSpec], split: BatchSplit) -> None:
    for spec in specs:
        nbytes = numpy_dtype(spec.dtype).itemsize
        for axis in spec.shape:
            nbytes *= int(axis)
        if nbytes % _ALIGNMENT and spec.name not in split.layouts:
            raise UsageError(
                f"--split {split}: {spec.name!r} takes {nbytes} bytes in one part, no multiple of "
                f"{_ALIGNMENT}, at which CUDA engines want their inputs and outputs",
                "choose fewer parts, or cut elsewhere",
            )


def _extracted(
    model: ModelFile,
    cut: CutGraph,
    nodes: Sequence[int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> ModelFile:
    """The model of some working nodes, and of the constants that they read."""
    kept = set(nodes)
    waiting = [name for index in nodes for name in cut.reads[index]]
    given = {spec.name for spec in inputs}
    while waiting:
        index = cut.maker.get(name := waiting.pop())
        if index is not None and index not in kept and name not in given:
            kept.add(index)
            waiting += cut.reads[index]
    names = {name for index in kept for name in (*cut.reads[index], *cut.graph.node[index].output)}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    _keep(graph.node, [cut.graph.node[index] for index in sorted(kept)])
    _keep(graph.initializer, [item for item in cut.graph.initializer if item.name in names])
    _keep(graph.input, [_declared(cut, spec) for spec in inputs])
    _keep(graph.output, [_declared(cut, spec) for spec in outputs])
    outer = given.union(spec.name for spec in outputs)
    _keep(
        graph.value_info,
        [item for item in cut.graph.value_info if item.name in names and item.name not in outer],
    )
    return replace(model, proto=proto)


def _keep(field: object, items: Sequence[object]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in items]  # type: ignore[attr-defined]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]


def _declared(cut: CutGraph, spec: TensorSpec) -> onnx.ValueInfoProto:
    """The tensor with an open batch, under the name that the model's inputs have for it."""
    first = next(item for item in cut.graph.input if item.name in cut.inputs)
    batch = first.type.tensor_type.shape.dim[0].dim_param or "N"
    kind = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(spec.dtype))
    return onnx.helper.make_tensor_value_info(spec.name, kind, [batch, *spec.shape[1:]])
