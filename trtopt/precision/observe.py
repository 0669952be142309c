"""What values the tensors inside a model take: every one of them is handed to a visitor, in bounded memory.

The model runs on ONNX Runtime, unoptimised, with its inner tensors as further outputs. How many samples run
at once is chosen so that all tensors of a run fit into a limit. Where those of one sample do not, the model
is cut into stages: each hands on what the next ones read, and its other tensors are gone before those run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays
from trtopt.device.ort.reference import crash_context
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import inferred, types_of
from trtopt.precision.stages import cut, open_proto

LIMIT_BYTES = 512 << 20
"""The most that the observed tensors of one run may take together, by their inferred shapes."""
_MOST_AT_ONCE = 32
Visitor = Callable[[str, NDArray[Any], int], None]
"""Is called with a tensor's name, its values (samples along the first axis), the first sample's number."""


@dataclass(frozen=True)
class Observed:
    """How a model was observed: over how many samples, how many at once, in how many stages."""

    samples: int
    batch: int
    stages: int


def float_tensors(model: ModelFile, kinds: Collection[int] = (onnx.TensorProto.FLOAT,)) -> tuple[str, ...]:
    """The inputs of a model and outputs of its nodes that are of these types, in the order of the graph."""
    typed = types_of(model.proto)  # also behind operators that ONNX's inference does not know
    names = [spec.name for spec in specs_of(model.proto)]
    names += [name for node in model.proto.graph.node for name in node.output if name]
    return tuple(name for name in names if typed.get(name) in kinds)


def observe(
    model: ModelFile,
    source: SampleSource,
    names: Collection[str],
    visit: Visitor,
    *,
    limit_bytes: int = LIMIT_BYTES,
    at_once: int = _MOST_AT_ONCE,
) -> Observed:
    """Run `source` through the model and hand every tensor in `names`, batch after batch, to `visit`.

    Each tensor is visited once for every batch, in the order of the samples; tensors inside subgraphs cannot
    be observed. The model runs once over the data, at most `at_once` samples at a time. The memory that is
    bounded is that of the observed tensors; ONNX Runtime also needs that of one run, which includes what
    stages pass on, and weights are mapped from their file.
    """
    specs = specs_of(model.proto)
    first = next(source.batches(specs, 1))
    batch, shards = _plan(model, first, names, limit_bytes, at_once)
    types = {name: info.elem_type for name, info in _inferred_types(model.proto).items()}
    stages = cut(model.proto, shards, types)
    sessions = [open_proto(model, stage.proto) if stage.proto.graph.output else None for stage in stages]
    samples = 0
    for feed in source.batches(specs, batch):
        held = feed
        for stage, session in zip(stages, sessions, strict=True):
            if session is not None:
                with crash_context(f"samples {samples} to {samples + samples_in(feed, specs) - 1}"):
                    held = held | session.run({name: held[name] for name in held.keys() & stage.reads})
            for name in stage.names:
                visit(name, held[name], samples)
            held = feed | {name: held[name] for name in stage.later}
        samples += samples_in(feed, specs)
    return Observed(samples=samples, batch=batch, stages=len(stages))


def shards_of(
    model: ModelFile, source: SampleSource, names: Collection[str], limit_bytes: int = LIMIT_BYTES
) -> list[list[str]]:
    """`names` in runs whose tensors fit into the limit together, for one sample at a time."""
    return _plan(model, next(source.batches(specs_of(model.proto), 1)), names, limit_bytes, 1)[1]


def _plan(
    model: ModelFile, first: Arrays, names: Collection[str], limit_bytes: int, at_once: int
) -> tuple[int, list[list[str]]]:
    """How many samples at once, and which tensors in which stage, by the shapes that one sample gives."""
    sizes = _sizes(model.proto, first, names)
    shards: list[list[str]] = [[]]
    room = limit_bytes
    for name in _in_order(model.proto, names):
        if sizes[name] > room and shards[-1]:
            shards.append([])
            room = limit_bytes
        shards[-1].append(name)
        room -= sizes[name]
    together = sum(sizes.values())
    batch = 1 if len(shards) > 1 else max(1, min(at_once, limit_bytes // max(together, 1)))
    return batch, shards


def _in_order(model: onnx.ModelProto, names: Collection[str]) -> Iterator[str]:
    wanted = set(names)
    for item in (*model.graph.input, *model.graph.initializer):
        if item.name in wanted:
            yield item.name
    yield from (name for node in model.graph.node for name in node.output if name in wanted)


def _sizes(model: onnx.ModelProto, feed: Arrays, names: Collection[str]) -> dict[str, int]:
    """Bytes of each tensor for the shapes in `feed`; where a shape is unknown, as many as the largest."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for item in fixed.graph.input:
        for axis, length in zip(
            item.type.tensor_type.shape.dim, feed[item.name].shape if item.name in feed else (), strict=False
        ):
            axis.dim_value = length
    del fixed.graph.value_info[:]
    for item in fixed.graph.output:
        item.type.tensor_type.ClearField("shape")
    types = _inferred_types(fixed)
    known: dict[str, int] = {}
    for name in names:
        axes = types[name].shape.dim if name in types and types[name].HasField("shape") else None
        if axes is not None and all(axis.HasField("dim_value") for axis in axes):
            known[name] = 4 * math.prod(axis.dim_value for axis in axes)
    largest = max(known.values(), default=1)
    return {name: known.get(name, largest) for name in names}


def _inferred_types(model: onnx.ModelProto) -> dict[str, Any]:
    graph = inferred(model).graph
    return {
        item.name: item.type.tensor_type
        for item in (*graph.input, *graph.value_info, *graph.output)
        if item.type.HasField("tensor_type")
    }
