"""The request of `cast`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from trtopt.options import Option, Output
from trtopt.requests.shared import Data, OnnxFile, Request, Target, samples
from trtopt.targets import DEFAULT


@dataclass(frozen=True)
class CastRequest(Request):
    """What to write in 16 bits."""

    model: OnnxFile
    output: Annotated[str | Path, Output("File to write.", "model")]
    _: KW_ONLY
    precision: Annotated[Literal["fp16", "bf16"], Option("The 16-bit type to write.")] = "fp16"
    data: Annotated[
        Data,
        samples(
            "Real inputs, which decide what stays FP32 [default: seeded random ones, for overflows alone]"
        ),
    ] = None
    target: Annotated[Target, "TensorRT to cast for (scales)."] = DEFAULT
    exclude: Annotated[
        Sequence[str],
        Option("Nodes to keep in FP32: 'encoder.0.*'.", metavar="PATTERN", aliases=("--keep",)),
    ] = ()
    keep_op: Annotated[Sequence[str], Option("Operators to keep in FP32: Softmax.", metavar="OP")] = ()
    include: Annotated[
        Sequence[str], Option("Nodes to cast regardless of their values.", metavar="PATTERN")
    ] = ()
    threshold: Annotated[
        float | None,
        Option("Largest |x| in 16 bits [default: a quarter of the type's largest].", metavar="VALUE"),
    ] = None
    cast_io: Annotated[bool, Option("Make the model's FP32 inputs and outputs 16-bit too.")] = False
    compare: Annotated[
        bool,
        Option(
            "Do not compare the result with the original.",
            python="run the result against the original.",
            flag="--no-compare",
        ),
    ] = True
