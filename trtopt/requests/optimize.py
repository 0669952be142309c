"""The request of `optimize`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Option, Output
from trtopt.requests.shared import (
    DURATION,
    Axes,
    BackendName,
    Batch,
    Data,
    Duration,
    Force,
    OnnxFile,
    Request,
    Shapes,
    samples,
)


@dataclass(frozen=True)
class OptimizeRequest(Request):
    """The bounds that the fastest engine is to meet."""

    model: OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "Build folder to create [default: MODEL.trtopt].",
            "folder",
            python="the build folder [default: the model's name with `.trtopt`, in the current folder].",
        ),
    ] = None
    _: KW_ONLY
    data: Annotated[
        Data,
        Option(
            samples("Samples"),
            python="samples: an .npz, a folder of them or `module:function`. With them the fastest "
            "precision that "
            "keeps `min_cosine` is chosen, where engines can be measured; without them the graph's is kept.",
            metavar="DATA",
            is_path=True,
        ),
    ] = None
    slo: Annotated[str | None, Option("Latency bound, as p99=10ms.", metavar="pN=LIMIT")] = None
    min_cosine: Annotated[
        float,
        Option(
            "Minimum cosine of every output against MODEL.",
            python="minimum cosine of every output against the model, -1 to 1.",
            metavar="VALUE",
            limits=(-1, 1),
        ),
    ] = 0.99
    batch: Annotated[Batch, "Batch sizes, one engine each [default: 1,8,32]."] = None
    shapes: Shapes = None
    axes: Axes = None
    backend: Annotated[
        BackendName,
        Option(
            "What to build with.",
            python="what to build with. On a machine without a GPU the measurement runs on ONNX Runtime.",
        ),
    ] = "auto"
    duration: Duration = DURATION
    force: Force = False
