"""Why a build failed, where a tensor of the graph has more elements than TensorRT allows."""

from __future__ import annotations

import math
from pathlib import Path

from trtopt.errors import BuildError
from trtopt.inspect.graph import read_graph
from trtopt.onnxio import model_file
from trtopt.records import BuildPlan, OnnxArtifact
from trtopt.targets import target_of


def explained(error: BuildError, onnx: OnnxArtifact, plan: BuildPlan) -> BuildError:
    """The error, with the largest tensor in front of what TensorRT said, if that breaks its bound.

    TensorRT itself says only that some shape cannot be computed, and names nodes far behind the cause.
    """
    most = target_of(plan.backend).most_elements
    if most is None:
        return error
    largest, size = {name: given.max for name, given in plan.shapes.items()}, plan.batch.max[0]
    shapes = read_graph(model_file.load(Path(onnx.path)).proto, largest).shapes
    elements, name = max((math.prod(shape), name) for name, shape in shapes.items())
    if elements <= most:
        return error
    dims = "×".join(map(str, shapes[name]))
    return type(error)(
        f"{name!r} is {dims} at batch {size}, more than the {most:,} elements that "
        f"TensorRT {plan.backend.version} allows a tensor: {error.problem}",
        f"build for smaller batches or shapes; what grows with the batch alone fits up to "
        f"{size * most // elements}",
    )
