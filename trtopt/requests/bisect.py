"""The request of `bisect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from trtopt.options import Option, Output
from trtopt.precision.bounds import Bounds, bounds_in
from trtopt.requests.shared import (
    BackendName,
    Batch,
    BoundsOptions,
    Data,
    Method,
    OnnxFile,
    Profile,
    Request,
    Table,
    TargetFound,
    Timeout,
    samples,
)
from trtopt.targets import DEFAULT


@dataclass(frozen=True)
class BisectRequest(Request):
    """What to keep accurate, and how that is judged."""

    model: OnnxFile
    output: Annotated[
        str | Path | None, Output("File to write the resulting model to.", "quantised model")
    ] = None
    _: KW_ONLY
    precision: Annotated[Literal["fp16", "bf16", "int8", "fp8"], Option("The low precision.")]
    bounds: BoundsOptions = None
    data: Annotated[Data, samples("Samples to evaluate accuracy on, and to find ranges on")] = None
    calib: Annotated[
        str | Path | None, Option("Other samples for ranges and values.", metavar="DATA", is_path=True)
    ] = None
    table: Annotated[Table, "Ranges from an earlier trtopt quantize."] = None
    method: Annotated[Method, "How ranges are found, as for trtopt quantize."] = None
    target: Annotated[TargetFound, f"TensorRT to write for [default: the engines', else {DEFAULT}]."] = None
    exclude: Annotated[
        Sequence[str], Option("Nodes or operators to keep in any case.", metavar="PATTERN")
    ] = ()
    include: Annotated[
        Sequence[str], Option("Nodes to lower regardless of the rules.", metavar="PATTERN")
    ] = ()
    backend: Annotated[
        BackendName,
        Option("Evaluator: engines [default with a GPU], or ONNX Runtime, which emulates the precision."),
    ] = "auto"
    batch: Annotated[Batch, "Batch sizes of the engines."] = None
    profile: Annotated[Profile, "A recipe for the engines."] = None
    timeout: Timeout = None
    max_evaluations: Annotated[int, Option("Maximum number of node sets to evaluate.")] = 200

    @cached_property
    def accuracy(self) -> Bounds:
        """What the result must meet."""
        return bounds_in(self.bounds or {})
