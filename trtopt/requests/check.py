"""The request of `check`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Argument, Option
from trtopt.requests.shared import (
    Axes,
    Backend,
    Batch,
    BoundsOptions,
    Data,
    Request,
    Shapes,
    Timeout,
    Trust,
    model_names,
    samples,
)


@dataclass(frozen=True)
class CheckRequest(Request):
    """What to compare with which reference."""

    path: Annotated[
        str | Path,
        Argument(
            "an ONNX file (its 16-bit arithmetic is emulated), a build folder, or an engine in one.",
            metavar="MODEL",
        ),
    ]
    against: Annotated[
        str | Path,
        Option(
            "The reference ONNX file.",
            python="the reference ONNX file; it runs with ONNX Runtime's own optimisations off.",
            must_exist=True,
        ),
    ]
    _: KW_ONLY
    data: Annotated[Data, samples("Samples [default: seeded random ones]")] = None
    task: Annotated[
        str | None,
        Option(
            "Measure this model's task metric too.",
            python="a model of the collection, or a model file (TOML), whose task metric is measured too.",
            flag="--model",
            metavar="NAME|FILE.toml",
            names=model_names,
            is_path=True,
        ),
    ] = None
    batch: Annotated[Batch, "Batch sizes of engines [default: each engine's own]."] = None
    shapes: Shapes = None
    axes: Axes = None
    backend: Annotated[
        Backend, "What to run engines with [default: auto, their own, or the CPU if there is no GPU]."
    ] = None
    timeout: Timeout = None
    trust: Trust = ()
    bounds: BoundsOptions = None
    layers: Annotated[bool, Option("Rank where in the graph the error enters (ONNX files).")] = False
