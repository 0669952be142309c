"""Whether a graph that is cut gives what the whole gives: its segments run on parts of a small batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import onnx

from trtopt.data import feeds
from trtopt.errors import ModelError
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.segments import GraphSegment, segments_of
from trtopt.records import BatchSplit, Shape
from trtopt.rewrite import equivalence
from trtopt.rewrite.equivalence import Array
from trtopt.rewrite.rule import Exactness

_PARTS, _ROWS = 2, 4
"""What mixes samples shows in two parts of two samples each."""
_HALF = {"float16", "bfloat16"}
_QUANTISED = {"int8", "float8_e4m3fn", "int4"}


def check_split(
    model: ModelFile, types: Sequence[str], splits: Sequence[BatchSplit], shapes: Mapping[str, Shape]
) -> float:
    """Run a model whole and cut on one seeded input; returns the largest error, of outputs of 1.

    `types` are the element types that the graph contains, `shapes` those of its inputs at any batch.

    Raises:
        UsageError: it cannot be cut there.
        Unrunnable: ONNX Runtime cannot run it.
        ModelError: an output differs: what runs on parts of the batch mixes samples.
    """
    sized = {name: (_ROWS, *shape[1:]) for name, shape in shapes.items()}
    halved = [msgspec.structs.replace(one, parts=min(one.parts, _PARTS)) for one in splits]
    segments = segments_of(model, halved, sized)
    given = feeds.seeded(_at(model.proto, sized))[0]
    (wanted,) = equivalence.run(model, [given])
    found = run_segments(segments, given.values)
    kind: Exactness = "N" if _QUANTISED.isdisjoint(types) else "A"  # a rounding may move a value by one step
    worst = 0.0
    for name, value in wanted.items():
        error = equivalence.error_between(value, found[name])
        if error > equivalence.bound(kind, value.dtype, not _HALF.isdisjoint(types)):
            raise ModelError(
                f"--split {' '.join(map(str, splits))}: output {name!r} differs by {error:.3g} from that of "
                "the whole graph: what is before a cut mixes the samples of a batch",
                "cut before the node that does, or build without --split",
            )
        worst = max(worst, error)
    return worst


def run_segments(segments: Sequence[GraphSegment], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All that segments make of inputs, by ONNX Runtime on the CPU, each part of the batch on its own."""
    values = dict(inputs)
    for segment in segments:
        rows = len(values[segment.inputs[0].name]) // segment.parts
        parts = [
            feeds.Feed(
                f"part {turn}",
                {spec.name: values[spec.name][turn * rows : (turn + 1) * rows] for spec in segment.inputs},
            )
            for turn in range(segment.parts)
        ]
        made = equivalence.run(segment.model, parts)
        values |= {spec.name: np.concatenate([one[spec.name] for one in made]) for spec in segment.outputs}
    return values


def _at(proto: onnx.ModelProto, shapes: Mapping[str, Shape]) -> onnx.ModelProto:
    """The model with fixed shapes of its inputs."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for item in fixed.graph.input:
        for axis, size in zip(item.type.tensor_type.shape.dim, shapes.get(item.name, ()), strict=False):
            axis.dim_value = size
    return fixed
